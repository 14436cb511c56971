"""The demo's page: one HTML file that needs nothing else, not even a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from attnknn.metrics import Estimate, reliability_curve
from attnknn.predict import Reason
from attnknn.study.demo import CLEAR, PEER, Abstention, Contender, DemoRun, Edit, Explained
from attnknn.study.draw import bar, digit, reliability_diagram

_MOST = 8  # neighbors in a picture row

_STYLE = """
:root { color-scheme: light }
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  color: #1f2933; background: #f5f6f8 }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem }
h2 { font-size: 1.25rem; margin: 0 0 .5rem }
p { margin: .4rem 0 .8rem; max-width: 46rem }
section { background: #fff; border: 1px solid #e1e5ea; border-radius: 10px; padding: 1.1rem 1.2rem;
  margin: 1rem 0 }
.quiet, figcaption, .note { color: #52606d; font-size: .9rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #e8ebef; text-align: right; white-space: nowrap }
th { font-weight: 600; color: #52606d; font-size: .85rem; vertical-align: bottom }
th:first-child, td:first-child { text-align: left }
td small { display: block; color: #7b8794; font-size: .75rem; line-height: 1.3 }
tr.peer td { background: #fafbfc }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 1rem }
figure { margin: 0 }
.diagram { width: 100%; height: auto; max-width: 26rem; font-size: 12px }
.diagram text { fill: #52606d } .middle { text-anchor: middle } .end { text-anchor: end }
.small { text-anchor: middle; font-size: 9px }
.grid { stroke: #e8ebef } .diagonal { stroke: #1f2933; stroke-dasharray: 4 4; stroke-width: 1.2 }
.accuracy { fill: #3b82c4 } .count { fill: #b8c4d0 }
.gap { stroke-width: 1 } .over { fill: #e0793a66; stroke: #c65d1e } .under { fill: #3aa17e55; stroke: #1f7a5c }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .25em 0 .7em;
  vertical-align: -.05em }
.answer { display: grid; grid-template-columns: auto 1fr; gap: 1.2rem; align-items: start }
.query { text-align: center } .query b { font-size: 1.05rem }
.digit { image-rendering: pixelated; border: 1px solid #cbd2d9; border-radius: 4px; display: block;
  max-width: 100% }
.query .digit { margin: 0 auto .3rem }
.neighbors { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .7rem;
  list-style: none; padding: 0; margin: 0 }
.neighbors li { border: 1px solid #e1e5ea; border-radius: 8px; padding: .5rem; font-size: .82rem;
  line-height: 1.35 }
.neighbors li.agrees { border-color: #3aa17e } .neighbors li.differs { border-color: #e0793a }
.neighbors .digit { width: 5.5rem; height: auto; margin-bottom: .35rem }
.neighbors b { font-size: .95rem } .neighbors span { color: #52606d; display: block; white-space: nowrap }
.bar { width: 100%; height: 7px; display: block; margin: .2rem 0 }
.bar-ground { fill: #eceff3 } .bar-fill { fill: #3b82c4 }
.chances { list-style: none; padding: 0; margin: .5rem 0 0; font-size: .82rem; text-align: left }
.chances li { display: grid; grid-template-columns: 1.2em 1fr 3em; gap: .4em; align-items: center }
code { background: #eef1f4; padding: .1em .35em; border-radius: 4px; font-size: .92em }
@media (max-width: 44rem) { .neighbors { grid-template-columns: repeat(auto-fill, minmax(6.9rem, 1fr)) }
  .answer { grid-template-columns: 1fr } .query { text-align: left }
  .query .digit { margin: 0 0 .3rem } .chances { max-width: 16rem } section { padding: .9rem } }
"""


def page(run: DemoRun, versions: dict[str, str]) -> str:
    """The whole page."""
    sections = [
        _results(run),
        _calibration(run),
        _answer(
            run,
            "A right answer, and why",
            run.right,
            f"Of the right answers with a probability above {CLEAR:g} it was the least sure.",
        ),
        _answer(run, "A wrong answer, and why", run.wrong, "It was the surest of the wrong ones."),
        _abstention(run, run.abstention),
        _edit(run, run.edit),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Attn-KNN demo: handwritten digits</title><style>{_STYLE}</style></head><body><main>"
        f"{_opening(run, versions)}{''.join(sections)}</main></body></html>\n"
    )


def _opening(run: DemoRun, versions: dict[str, str]) -> str:
    digits = run.digits
    made_with = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        "<header><h1>Handwritten digits, answered with real examples</h1>"
        f"<p>{len(digits.learn)} digits of 8 &times; 8 pixels are the bank; {len(digits.test)} others are asked "
        "about, and no duplicate is on both sides. Each answer is the vote of the nearest examples, so it can be "
        "looked at, and changed by editing an example.</p>"
        f'<p class="quiet">Made by <code>attnknn demo --seed {run.seed}</code> in {run.seconds:.0f} s with '
        f"{escape(made_with)}.</p></header>"
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _results(run: DemoRun) -> str:
    heads = ["weights", "k", "accuracy", "NLL", "ECE", "its floor", "Brier", "predict"]
    body = "".join(_result(each) for each in run.contenders)
    table = f'<div class="wide"><table><thead>{_row(heads, "th")}</thead><tbody>{body}</tbody></table></div>'
    gaps = "".join(
        f"<p>{escape(gap.metric.capitalize())}, softmax minus {PEER}: <b>{gap.mean:+.4f}</b> "
        f"[{gap.low:+.4f}, {gap.high:+.4f}] &ndash; {escape(gap.verdict)}.</p>"
        for gap in run.gaps
    )
    return _section(
        "Results",
        "<p>All methods see the same bare pixels. The first four choose k and calibrate by leave-one-out; "
        f"{PEER}&rsquo;s KNeighborsClassifier has the k and weights ({escape(run.peer_weights)}) that did best on "
        "a fifth of the examples. Below each number is its 95&nbsp;% interval over test rows.</p>",
        table,
        gaps,
        f'<p class="note">{_on_infinity(run)}The ECE of a perfectly calibrated model would be around its floor, '
        "not 0. Predict is the time for all test rows.</p>",
    )


def _on_infinity(run: DemoRun) -> str:
    endless = [each.name for each in run.contenders if each.metrics["nll"].value == float("inf")]
    if not endless:
        return ""
    return f"NLL is infinite for {escape(', '.join(endless))}: a true digit was given probability 0. "


def _result(each: Contender) -> str:
    scores = [_scored(each.metrics[name]) for name in ("accuracy", "nll", "ece", "ece_floor", "brier")]
    cells = [escape(each.name), str(each.k), *scores, f"{each.milliseconds:.0f} ms"]
    peer = ' class="peer"' if each.name == PEER else ""
    return f"<tr{peer}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _scored(found: Estimate) -> str:
    return f"{_number(found.value)}<small>{_number(found.low)} &ndash; {_number(found.high)}</small>"


def _number(value: float) -> str:
    return "&infin;" if value == float("inf") else f"{value:.4f}"


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _calibration(run: DemoRun) -> str:
    truth = run.digits.y[run.digits.test]
    figures = []
    for name in ("softmax", PEER):
        each = run.contender(name)
        score, floor = each.metrics["ece"], each.metrics["ece_floor"]
        title = f"Reliability diagram of {name}"
        figures.append(
            f"<figure>{reliability_diagram(reliability_curve(each.chances, truth, 10), title)}"
            f"<figcaption><b>{escape(name)}</b>: ECE {score.value:.4f}, floor {floor.value:.4f}</figcaption>"
            "</figure>"
        )
    return _section(
        "Do the probabilities hold?",
        "<p>Answers are sorted by their confidence. Where bars reach the dashed line, answers given with, say, "
        "80&nbsp;% confidence are right 80&nbsp;% of the time. Counts below are on a logarithmic scale.</p>"
        '<p class="note"><span class="key" style="background:#3b82c4"></span>accuracy'
        '<span class="key" style="background:#e0793a"></span>too sure by this much'
        '<span class="key" style="background:#3aa17e"></span>not sure enough by this much</p>',
        f'<div class="pair">{"".join(figures)}</div>',
    )


def _answer(run: DemoRun, title: str, found: Explained | None, why: str) -> str:
    if found is None:
        return _section(title, "<p>There was none among the test rows.</p>")
    reasons = found.reasons
    said = "right" if reasons.prediction == found.truth else f"but it is a {found.truth}"
    return _section(
        title,
        f"<p>Row {found.row} is answered <b>{escape(str(reasons.prediction))}</b> with probability "
        f"{found.confidence:.3f}: {said}. {escape(why)}</p>",
        _picture(run, found),
    )


def _picture(run: DemoRun, found: Explained) -> str:
    """The query with its probabilities, and its neighbors with their weights."""
    reasons = found.reasons
    query = digit(run.digits.X[found.row], f"the digit of row {found.row}, a {found.truth}", 128)
    chances = "".join(
        f"<li><b>{escape(str(label))}</b>{bar(p)}<span>{p:.3f}</span></li>" for label, p in _leading(found)
    )
    shown = reasons.neighbors[:_MOST]
    neighbors = "".join(_neighbor(run, each, reasons.prediction) for each in shown)
    rest = len(reasons.neighbors) - len(shown)
    more = f'<p class="note">and {rest} more neighbors with less weight</p>' if rest else ""
    return (
        f'<div class="answer"><div class="query">{query}<b>row {found.row}</b>, truth {found.truth}'
        f'<ul class="chances">{chances}</ul></div>'
        f'<div><ul class="neighbors">{neighbors}</ul>{more}</div></div>'
    )


def _leading(found: Explained, most: int = 3) -> list[tuple[Any, float]]:
    """The most probable labels, the true one always among them."""
    chances = found.reasons.probabilities
    ranked = sorted(chances, key=lambda label: -chances[label])
    first = ranked[:most] if found.truth in ranked[:most] else [*ranked[: most - 1], found.truth]
    return [(label, chances[label]) for label in first]


def _neighbor(run: DemoRun, reason: Reason, prediction: Any) -> str:
    picture = digit(run.digits.X[int(reason.id)], f"example {reason.id}, labelled {reason.label}", 80)
    side = "agrees" if reason.label == prediction else "differs"
    return (
        f'<li class="{side}">{picture}<b>label {escape(str(reason.label))}</b>{bar(reason.weight)}'
        f"<span>weight {reason.weight:.3f}</span><span>distance {reason.distance:.1f}</span>"
        f"<span>id {escape(str(reason.id))}</span></li>"
    )


def _abstention(run: DemoRun, found: Abstention) -> str:
    without = found.rows - found.answered
    text = (
        f"<p>Asked to answer only with a confidence of {found.threshold:.3f} or more "
        f"&ndash; a threshold chosen on validation examples &ndash; the model answers {found.answered} of "
        f"{found.rows} rows, and {found.wrong_answered} of these answers are wrong. "
        f"Answering every row, {found.wrong_before} were. It leaves {without} to somebody else.</p>"
    )
    if found.example is None:
        return _section("Saying nothing when unsure", text)
    unsure = f"<p>The least sure of them, row {found.example.row}, a {found.example.truth}:</p>"
    return _section("Saying nothing when unsure", text, unsure, _picture(run, found.example))


def _edit(run: DemoRun, found: Edit | None) -> str:
    title = "Editing one example changes the answer at once"
    if found is None:
        return _section(title, "<p>No close call among the test rows hung on one example.</p>")
    rows: Sequence[tuple[str, Explained, str]] = (
        ("as learned", found.before, ""),
        (f"example {found.example} relabelled {found.label} to {found.new_label}", found.relabelled,
         f"{found.relabel_ms:.1f} ms"),
        (f"example {found.example} removed", found.removed, f"{found.remove_ms:.1f} ms"),
    )  # fmt: skip
    body = "".join(
        _row([name, str(each.reasons.prediction), f"{each.confidence:.3f}", spent], "td")
        for name, each, spent in rows
    )
    heads = _row(["bank", "answer", "probability", "edit and predict"], "th")
    pictures = (
        f"{digit(run.digits.X[found.before.row], f'the digit of row {found.before.row}', 96)}"
        f"<figcaption>row {found.before.row}, a {found.before.truth}</figcaption>",
        f"{digit(run.digits.X[found.example], f'example {found.example}', 96)}"
        f"<figcaption>example {found.example}, label {found.label}</figcaption>",
    )
    figures = "".join(
        f'<figure style="display:inline-block;margin-right:1.5rem">{each}</figure>' for each in pictures
    )
    return _section(
        title,
        f"<p>Row {found.before.row} is a close call. Its heaviest neighbor for {found.label} is example "
        f"{found.example}; nothing is retrained when that one is edited.</p>{figures}",
        f'<div class="wide"><table><thead>{heads}</thead><tbody>{body}</tbody></table></div>',
    )

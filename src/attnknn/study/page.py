"""The report as a page: one HTML file that opens anywhere, verdicts first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from attnknn.study.efficiency import HEAD, table
from attnknn.study.figures import Figure
from attnknn.study.plots import SHOWN
from attnknn.study.published import claims, published
from attnknn.study.recipe import STUDIES
from attnknn.study.svg import STYLE, svg
from attnknn.study.tables import METRICS, finite, in_words
from attnknn.study.verdicts import of_leads, verdict

_PAGE = """
:root { color-scheme: light dark; --line: #d5dae0; --quiet: #5a6673; --ground: #fff; --text: #1f2933 }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a434d; --quiet: #a3afbb; --ground: #14181c; --text: #e6eaee } }
* { box-sizing: border-box }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.8rem; margin: 0 } h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem } nav { margin-top: 1.5rem }
.quiet { color: var(--quiet); font-size: .9rem } p, li { max-width: 52rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, td.words { text-align: left } td.words { white-space: normal }
td small { color: var(--quiet); display: block }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1.5rem }
figure { margin: 0 } pre { overflow-x: auto; font-size: .8rem } dt { font-weight: 600; margin-top: .8rem }
dd { margin: .2rem 0 0 1rem }
"""


_WORST = ("fail", "not run", "reported", "pass")


def page_of(report: Mapping[str, Any], figures: Mapping[str, Figure], leads: Sequence[str]) -> str:
    """The whole page.

    Args:
        report: As a study writes it.
        figures: By name, in the order in which they are shown.
        leads: Methods that the study is about.
    """
    title = f"{report['study']}: {report['config']['data']}"
    parts = [
        *_section("Verdicts", _verdicts(report, leads)),
        *_section("The four claims", _claims([report])),
        *_numbers(report, figures),
        *_section("How it was made", _made(report)),
    ]
    return _page(title, _under(report), parts)


def overview_of(report: Mapping[str, Any], drawn: Mapping[str, tuple[Mapping[str, Figure], Sequence[str]]]) -> str:
    """The page of several studies: the claims first, then each of them.

    Args:
        report: As ``run_all`` writes it.
        drawn: The figures of each study, and the methods that it is about.
    """
    studies: Mapping[str, Mapping[str, Any]] = report["studies"]
    title = f"{report['config']['data']}: {len(studies)} studies"
    links = " · ".join(f'<a href="#{name}">{name}</a>' for name in studies)
    parts = [*_section("The four claims", _claims(list(studies.values()))), f"<nav>{links}</nav>"]
    for name, each in studies.items():
        figures, leads = drawn[name]
        inner = [*_section("Verdicts", _verdicts(each, leads), 3), *_numbers(each, figures, 3)]
        line = f'<p class="quiet">{escape(STUDIES[name].line)}</p>'
        parts += [f'<section id="{name}"><h2>{name}</h2>{line}', *inner, "</section>"]
    parts += _section("How it was made", "".join(_made(each) for each in list(studies.values())[:1]))
    return _page(title, _under(next(iter(studies.values()))), parts)


def _page(title: str, under: str, parts: Iterable[str]) -> str:
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{meta}<title>{escape(title)}</title><style>{_PAGE}{STYLE}</style></head>"
    body = f"<body><main><h1>{escape(title)}</h1>{under}{''.join(parts)}</main></body>"
    return f'<!doctype html><html lang="en">{head}{body}</html>'


def _under(report: Mapping[str, Any]) -> str:
    return f'<p class="quiet">{escape(subtitle(report))}</p>'


def subtitle(report: Mapping[str, Any]) -> str:
    """The line under the title."""
    seeds, quick = len(report["seeds"]), report["config"]["most_rows"] is not None
    words = f"{seeds} seed{'s' * (seeds != 1)}; intervals are of 95 %; commit {report['commit']}"
    return words + "; quick: short trainings, few settings tried" * quick


def _numbers(report: Mapping[str, Any], figures: Mapping[str, Figure], level: int = 2) -> list[str]:
    """Tables and figures of one study."""
    return [
        *_section("Numbers", _methods(report["methods"]), level),
        *_section("Time of each stage", _stages(report), level),
        *_section("Searches", _searches(report), level),
        *_section("Figures", _figures(figures), level),
        *_section("Before calibration", _methods(report["uncalibrated"]), level),
        *_section("What others reported", _published(report), level),
        *_section("What was not run", _not_run(report), level),
    ]


def _section(title: str, body: str, level: int = 2) -> list[str]:
    return [f"<section><h{level}>{title}</h{level}>", body, "</section>"] if body else []


def _verdicts(report: Mapping[str, Any], leads: Sequence[str]) -> str:
    """What was found; comparisons that found nothing are folded away."""
    sentences = sentences_of(report, leads)
    nothing = [each for each in sentences if "no difference found" in each or " cannot be compared " in each]
    found = [each for each in sentences if each not in nothing]
    count = f"{len(nothing)} comparison{'s' * (len(nothing) != 1)} without a difference"
    folded = f"<details><summary>{count}</summary>{_list(nothing)}</details>" if nothing else ""
    return _list(found) + folded


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in sentences) + "</ul>" if sentences else ""


def sentences_of(report: Mapping[str, Any], leads: Sequence[str]) -> list[str]:
    """What a study found: differences of its leads, checks, what attention adds, and what is retained."""
    return [*of_leads(report["verdicts"], leads), *checked(report), *overheads(report), *retained(report)]


def checked(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each check of the theory: its verdicts over the seeds, and what the worst of them found."""
    each: dict[str, list[Mapping[str, Any]]] = {}
    for told in (told for some in report["settings"].values() for told in some if told):
        for check in told.get("checks", ()):
            each.setdefault(check["name"], []).append(check)
    sentences = []
    for name, some in each.items():
        verdicts = [check["verdict"] for check in some]
        worst = next((check for word in _WORST for check in some if check["verdict"] == word), some[0])
        counts = ", ".join(f"{word} in {verdicts.count(word)}" for word in _WORST if word in verdicts)
        words = counts if len(some) > 1 else verdicts[0]
        sentences.append(f"{name}: {words}. {worst['claim']} {worst['found']}")
    return sentences


def retained(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each method and place with changed labels or rows: what is left of its accuracy."""
    return [
        f"{name} keeps {found['mean']:.1%} of its accuracy"
        for name, found in report["retention"].items()
        if finite(found["mean"])
    ]


def _claims(reports: Sequence[Mapping[str, Any]]) -> str:
    """The claims of the documents behind this package, and what these numbers say to each."""
    answers = {name: answered(name, reports) for name in claims()}
    items = "".join(
        f"<dt>{name}</dt><dd>{escape(claim.claim)}</dd><dd><b>{escape(answers[name])}</b></dd>"
        for name, claim in claims().items()
    )
    return f"<dl>{items}</dl>"


def answered(claim: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """What the first of some reports that can say anything says to a claim; else what would have to be run."""
    study, answer = _ANSWERS[claim]
    found = (answer(each) for each in sorted(reports, key=lambda each: each["study"] != study))
    return next((words for words in found if words), f"not run: attnknn study {study}")


def _compared(report: Mapping[str, Any], metrics: Sequence[str], *others: str) -> str:
    """Attention against those of the others that there are, and by how much ECE changes relative to the first."""
    gaps = report["differences"].get("attention", {})
    there = [name for name in others if name in gaps]
    found = [
        verdict("attention", other, SHOWN[metric], gaps[other][metric])
        for other in there
        for metric in metrics
        if metric in gaps[other]
    ]
    if there and "ece" in metrics:
        before, now = (report["methods"][name]["ece"]["mean"] for name in (there[0], "attention"))
        found += [f"ECE changes by {(now - before) / before:+.0%}"] if finite(before) and before > 0 else []
    return "; ".join(found)


def _robustness(report: Mapping[str, Any]) -> str:
    """What is left at the far end of each line; the places before it are in the table."""
    if report["study"] != "noise":
        return ""
    ends: dict[str, str] = {}  # by line, the place where most is wrong
    for place, told in sorted(report["points"].items(), key=lambda each: float(each[1]["at"])):
        if told["line"]:
            ends[told["line"]] = place
    kept = {
        place: [
            f"{name} keeps {found['mean']:.1%}"
            for name in ("attention", "uniform")
            if (found := report["retention"].get(f"{name}@{place}")) and finite(found["mean"])
        ]
        for place in ends.values()
    }
    return "; ".join(f"{' and '.join(each)} of the accuracy at {place}" for place, each in kept.items() if each)


def overheads(report: Mapping[str, Any]) -> list[str]:
    """What weighing adds to a query, by the first seed that was timed."""
    told = [each for some in report["settings"].values() for each in some if each and "overhead" in each]
    return [str(each["overhead"]) for each in told[:1]]


_ANSWERS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]]] = {
    "calibration": ("main", lambda report: _compared(report, ("ece", "nll"), "uniform")),
    "accuracy": ("main", lambda report: _compared(report, ("accuracy",), "uniform", "cnn", "hgb")),
    "robustness": ("noise", _robustness),
    "overhead": ("efficiency", lambda report: "; ".join(overheads(report))),
}
"""The study that answers a claim best, and how a report answers it."""


def _stages(report: Mapping[str, Any]) -> str:
    head, *rows = stages(report) or [[]]
    return _table(head, rows) if rows else ""


def stages(report: Mapping[str, Any]) -> list[list[str]]:
    """Milliseconds per query of the first seed that was timed: the heads of columns, then a row for each batch."""
    timed = [told["stages"] for some in report["settings"].values() for told in some if told and "stages" in told]
    if not timed:
        return []
    names = list(timed[0][0]["ms_per_query"])
    rows = [
        [f"batches of {one['batch']:,}", *(f"{one['ms_per_query'][name]:.4f}" for name in names)]
        for one in timed[0]
    ]
    return [["milliseconds per query", *names], *rows]


def _searches(report: Mapping[str, Any]) -> str:
    rows = [[escape(cell) for cell in row] for row in table(report.get("places", {}))]
    return _table(HEAD, rows) if rows else ""


def _methods(methods: Mapping[str, Mapping[str, Any]]) -> str:
    shown = [name for name in METRICS if any(name in each for each in methods.values())]
    if not shown:
        return ""
    rows = [
        [escape(name), *(_number(each.get(metric), metric) for metric in shown)] for name, each in methods.items()
    ]
    return _table(["method", *(METRICS[name] for name in shown)], rows)


def _number(found: Mapping[str, Any] | None, metric: str) -> str:
    mean, interval = in_words(found, metric)
    return mean + (f"<small>{interval}</small>" if interval else "")


def _published(report: Mapping[str, Any]) -> str:
    found = published(report["study"], report["config"]["data"])
    rows = []
    for each in found:
        ours = report["methods"].get(each.method, {}).get(each.metric)
        setting = ", ".join(f"{name} {value}" for name, value in each.setting.items())
        words = f"{each.document}, {each.place}" + (f": {each.note}" if each.note else "")
        rows.append(
            [
                escape(each.method),
                escape(setting),
                each.metric,
                f"{each.value:.4g}",
                _number(ours, each.metric),
                escape(words),
            ]
        )
    return _table(["method", "setting", "metric", "published", "here", "where"], rows, words=5) if rows else ""


def _figures(figures: Mapping[str, Figure]) -> str:
    drawn = "".join(f"<figure>{svg(figure)}</figure>" for figure in figures.values())
    return f'<div class="figures">{drawn}</div>' if drawn else ""


def _not_run(report: Mapping[str, Any]) -> str:
    lines = "".join(f"<li>{escape(each)}</li>" for each in not_run(report))
    return f"<ul>{lines}</ul>" if lines else ""


def not_run(report: Mapping[str, Any]) -> list[str]:
    """A line for each cell and each search that was not run, with the reason."""
    found = {**report["not_run"], **report["failed"], **dict.fromkeys(report["missing"], "not asked for yet")}
    found |= {name: each["not_run"] for name, each in report.get("places", {}).items() if "not_run" in each}
    return [f"not run: {name}: {why}" for name, why in found.items()]


def _made(report: Mapping[str, Any]) -> str:
    told = {name: report[name] for name in ("command", "commit", "source_hash", "config", "environments")}
    return f"<pre>{escape(json.dumps(told, indent=1))}</pre>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=words' if at == words else ''}>{each}</td>" for at, each in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

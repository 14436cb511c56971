"""The report as a page: one HTML file that opens anywhere, verdicts first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from attnknn.study.answers import CLAIMED, MEASURES, STATISTICS, answers, not_run, sentences_of, subtitle
from attnknn.study.figures import Figure
from attnknn.study.grids import Grid, grids_of
from attnknn.study.making import alike, made_of_all
from attnknn.study.published import claims
from attnknn.study.recipe import STUDIES
from attnknn.study.svg import STYLE, svg
from attnknn.study.verdicts import NOTHING, UNKNOWN

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
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child, td.words { text-align: left } td.words { white-space: normal }
td small { color: var(--quiet); display: block; font-size: .78em }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1.5rem }
figure { margin: 0 } pre { overflow-x: auto; font-size: .8rem } dt { font-weight: 600; margin-top: .8rem }
dd { margin: .2rem 0 0 1rem }
"""


FOLDED: Final = ("calibration-error", "uncalibrated", "published")
"""Tables that are folded away until they are asked for, where they are long."""

_LONG: Final = 16  # rows


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
        *_section("Notes", _list(report.get("notes", ()))),
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
        notes = _section("Notes", _list(each.get("notes", ())), 3)
        inner = [*_section("Verdicts", _verdicts(each, leads), 3), *notes, *_numbers(each, figures, 3)]
        parts += [f'<section id="{name}"><h2>{name}</h2>{_quiet(STUDIES[name].line)}', *inner, "</section>"]
    parts += _section("How it was made", _made_of_all(studies))
    return _page(title, _under(next(iter(studies.values()))), parts)


def _page(title: str, under: str, parts: Iterable[str]) -> str:
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{meta}<title>{escape(title)}</title><style>{_PAGE}{STYLE}</style></head>"
    body = f"<body><main><h1>{escape(title)}</h1>{under}{''.join(parts)}</main></body>"
    return f'<!doctype html><html lang="en">{head}{body}</html>'


def _under(report: Mapping[str, Any]) -> str:
    return _quiet(subtitle(report))


def _quiet(words: str) -> str:
    return f'<p class="quiet">{escape(words)}</p>' if words else ""


def _numbers(report: Mapping[str, Any], figures: Mapping[str, Figure], level: int = 2) -> list[str]:
    """Tables and figures of one study."""
    first, last = grids_of(report)
    return [
        *(part for grid in first for part in _section(grid.title, _table(grid), level)),
        *_section("Figures", _figures(figures), level),
        *(part for grid in last for part in _section(grid.title, _table(grid), level)),
        *_section("What was not run", _list(not_run(report)), level),
    ]


def _section(title: str, body: str, level: int = 2) -> list[str]:
    return [f"<section><h{level}>{escape(title)}</h{level}>", body, "</section>"] if body else []


def _verdicts(report: Mapping[str, Any], leads: Sequence[str]) -> str:
    """What was found; comparisons of methods that found nothing are folded away."""
    sentences, compared = sentences_of(report, leads), set(report["verdicts"])
    nothing = [each for each in sentences if each in compared and (NOTHING in each or UNKNOWN in each)]
    found = [each for each in sentences if each not in nothing]
    count = f"{len(nothing)} comparison{'s' * (len(nothing) != 1)} without a difference"
    folded = f"<details><summary>{count}</summary>{_list(nothing)}</details>" if nothing else ""
    return _list(found) + folded


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in sentences) + "</ul>" if sentences else ""


def _claims(reports: Sequence[Mapping[str, Any]]) -> str:
    """The claims of the documents behind this package, and what these numbers say to each."""
    items = "".join(
        f"<dt>{name}</dt><dd>{escape(claim.claim)}</dd>"
        + "".join(f"<dd><b>{escape(each)}</b></dd>" for each in answers(name, reports))
        for name, claim in claims().items()
    )
    return f"{_quiet(CLAIMED)}<dl>{items}</dl>{_quiet(STATISTICS)}{_quiet(MEASURES)}"


def _figures(figures: Mapping[str, Figure]) -> str:
    drawn = "".join(f"<figure>{svg(figure)}</figure>" for figure in figures.values())
    return f'<div class="figures">{drawn}</div>' if drawn else ""


def _made(report: Mapping[str, Any]) -> str:
    told = {name: report[name] for name in ("command", "commit", "source_hash", "config", "environments")}
    return _json(told)


def _made_of_all(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """What all studies share once, then what each has of its own."""
    shared, own = made_of_all(studies)
    apart = "".join(f"<h3>{name}</h3>{_json(told)}" for name, told in own.items() if told)
    return _json(shared) + _quiet(alike(own)) + apart


def _json(told: Mapping[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(told, indent=1))}</pre>"


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in grid.head)
    body = "".join(f"<tr>{''.join(_cells(row, grid.words))}</tr>" for row in grid.rows)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    if grid.name not in FOLDED or len(grid.rows) < _LONG:
        return table
    return f"<details><summary>{len(grid.rows)} rows</summary>{table}</details>"


def _cells(row: Sequence[str], words: int | None) -> Iterable[str]:
    """The cells of a row; lines after the first are small, and so is the place of a method in its name."""
    for at, text in enumerate((row[0].replace("@", "\n@", 1), *row[1:])):
        first, *small = map(escape, text.split("\n"))
        lines = first + "".join(f"<small>{each}</small>" for each in small)
        yield f"<td{' class=words' if at == words else ''}>{lines}</td>"

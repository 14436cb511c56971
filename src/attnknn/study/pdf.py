"""The report as one PDF to print or to send: the sentences of the page first, then its tables and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnknn.study.answers import CLAIMED, MEASURES, STATISTICS, answers, not_run, sentences_of, subtitle
from attnknn.study.figures import Figure
from attnknn.study.grids import Grid, grids_of
from attnknn.study.making import alike, made_of_all
from attnknn.study.paper import BOLD, MONO, NOTE, TITLE, Paper
from attnknn.study.published import claims
from attnknn.study.recipe import STUDIES
from attnknn.study.record import write_bytes
from attnknn.study.rendered import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Page


def write_pdf(sheets: Sequence[Page], title: str, path: Path) -> None:
    """Write sheets of A4 as a PDF; the same sheets give the same bytes.

    Args:
        sheets: As ``sheets_of`` or ``overview_sheets`` makes them.
        title: What readers show above it.
        path: The file.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    need_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import PdfPages

    written = BytesIO()
    about = {"Title": title, "CreationDate": None}  # a date would make every file new
    # Letters stay letters, which readers can search, and sheets their size, whatever is set for other figures.
    settings = rc_context({"pdf.fonttype": 42, "savefig.bbox": "standard"})
    with settings, PdfPages(written, metadata=about) as pages:
        for sheet in sheets:
            pages.savefig(sheet)
    write_bytes(path, written.getvalue())


def sheets_of(report: Mapping[str, Any], figures: Mapping[str, Figure], leads: Sequence[str]) -> list[Page]:
    """The sheets of a report.

    Args:
        report: As a study writes it.
        figures: By name, in the order in which they are shown.
        leads: Methods that the study is about.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    paper = _paper(title_of(report), subtitle(report))
    _verdicts(paper, report, leads)
    _claims(paper, [report])
    _study(paper, report, figures)
    _made(paper, report)
    return paper.sheets


def overview_sheets(
    report: Mapping[str, Any], drawn: Mapping[str, tuple[Mapping[str, Figure], Sequence[str]]]
) -> list[Page]:
    """The sheets of several studies: the claims first, then each of them.

    Args:
        report: As ``run_all`` makes it.
        drawn: The figures of each study, and the methods that it is about.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    studies: Mapping[str, Mapping[str, Any]] = report["studies"]
    paper = _paper(title_of(report), subtitle(next(iter(studies.values()))))
    _claims(paper, list(studies.values()))
    for name, each in studies.items():
        figures, leads = drawn[name]
        paper.heading(name, 120.0)
        paper.words(STUDIES[name].line, NOTE)
        _verdicts(paper, each, leads)
        _study(paper, each, figures)
    _made_of_all(paper, studies)
    return paper.sheets


def title_of(report: Mapping[str, Any]) -> str:
    """What a report is called."""
    data = report["config"]["data"]
    return f"{data}: {len(report['studies'])} studies" if "studies" in report else f"{report['study']}: {data}"


def _paper(title: str, under: str) -> Paper:
    paper = Paper(title)
    paper.words(title, TITLE)
    paper.words(under, NOTE)
    return paper


def _verdicts(paper: Paper, report: Mapping[str, Any], leads: Sequence[str]) -> None:
    _list(paper, "Verdicts", sentences_of(report, leads))
    _list(paper, "Notes", report.get("notes", ()))


def _study(paper: Paper, report: Mapping[str, Any], figures: Mapping[str, Figure]) -> None:
    """Tables and figures of one study, and what it lacks."""
    first, last = grids_of(report)
    for grid in first:
        _table(paper, grid)
    paper.figures(figures.values())
    for grid in last:
        _table(paper, grid)
    _list(paper, "What was not run", not_run(report))


def _list(paper: Paper, title: str, sentences: Iterable[str]) -> None:
    for at, sentence in enumerate(sentences):
        if not at:
            paper.heading(title)
        paper.words(sentence, indent=10.0, mark="\N{BULLET}")


def _claims(paper: Paper, reports: Sequence[Mapping[str, Any]]) -> None:
    paper.heading("The four claims")
    paper.words(CLAIMED, NOTE)
    for name, claim in claims().items():
        paper.words(name, BOLD, follows=40.0)
        paper.words(claim.claim, indent=10.0)
        for sentence in answers(name, reports):
            paper.words(sentence, BOLD, indent=10.0)
    for words in (STATISTICS, MEASURES):
        paper.words(words, NOTE)


def _table(paper: Paper, grid: Grid) -> None:
    paper.table(grid.title, grid.head, grid.rows, grid.words)


def _made(paper: Paper, report: Mapping[str, Any]) -> None:
    """Command, commit, settings, and the machines that cells came from."""
    paper.heading("How it was made")
    told = [(name, report[name]) for name in ("command", "commit", "source_hash")]
    told += [(f"config: {name}", value) for name, value in report["config"].items()]
    told += [item for each in report["environments"] for item in each.items()]
    _items(paper, told)


def _made_of_all(paper: Paper, studies: Mapping[str, Mapping[str, Any]]) -> None:
    """The same of several studies: what they share, then what each has of its own."""
    paper.heading("How it was made")
    shared, own = made_of_all(studies)
    _items(paper, shared.items())
    if alike(own):
        paper.words(alike(own), NOTE)
    for name, told in own.items():
        if told:
            paper.words(name, BOLD, follows=20.0)
            _items(paper, told.items())


def _items(paper: Paper, told: Iterable[tuple[str, Any]]) -> None:
    for name, value in told:
        paper.words(f"{name}: {value if isinstance(value, str) else json.dumps(value)}", MONO, indent=10.0)

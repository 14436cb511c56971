"""The report as one PDF to print or to send: the sentences of the page first, then its tables and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnknn.study import efficiency
from attnknn.study.figures import Figure
from attnknn.study.page import answered, not_run, sentences_of, stages, subtitle
from attnknn.study.paper import BOLD, MONO, NOTE, TITLE, Paper
from attnknn.study.published import claims, published
from attnknn.study.record import write_bytes
from attnknn.study.rendered import need_matplotlib
from attnknn.study.tables import METRICS, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Page


def write_pdf(report: Mapping[str, Any], figures: Mapping[str, Figure], leads: Sequence[str], path: Path) -> None:
    """Write a report as a PDF of A4 sheets; the same report gives the same bytes.

    Args:
        report: As a study writes it.
        figures: By name, in the order in which they are shown.
        leads: Methods that the study is about.
        path: The file.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    need_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import PdfPages

    written = BytesIO()
    about = {"Title": _title(report), "CreationDate": None}  # a date would make every file new
    # Letters stay letters, which readers can search, and sheets their size, whatever is set for other figures.
    settings = rc_context({"pdf.fonttype": 42, "savefig.bbox": "standard"})
    with settings, PdfPages(written, metadata=about) as pages:
        for sheet in sheets_of(report, figures, leads):
            pages.savefig(sheet)
    write_bytes(path, written.getvalue())


def sheets_of(report: Mapping[str, Any], figures: Mapping[str, Figure], leads: Sequence[str]) -> list[Page]:
    """The sheets of a report; arguments as for :func:`write_pdf`."""
    paper = Paper(_title(report))
    paper.words(_title(report), TITLE)
    paper.words(subtitle(report), NOTE)
    _list(paper, "Verdicts", sentences_of(report, leads))
    _claims(paper, report)
    _methods(paper, "Numbers", report["methods"])
    _table(paper, "Time of each stage", stages(report))
    searches = efficiency.table(report.get("places", {}))
    _table(paper, "Searches", [list(efficiency.HEAD), *searches], words=len(efficiency.HEAD) - 1)
    paper.figures(figures.values())
    _methods(paper, "Before calibration", report["uncalibrated"])
    _table(paper, "What others reported", _published(report), words=4)
    _list(paper, "What was not run", not_run(report))
    _made(paper, report)
    return paper.sheets


def _title(report: Mapping[str, Any]) -> str:
    return f"{report['study']}: {report['config']['data']}"


def _list(paper: Paper, title: str, sentences: Iterable[str]) -> None:
    for at, sentence in enumerate(sentences):
        if not at:
            paper.heading(title)
        paper.words(sentence, indent=10.0, mark="\N{BULLET}")


def _claims(paper: Paper, report: Mapping[str, Any]) -> None:
    paper.heading("The four claims")
    for name, claim in claims().items():
        paper.words(name, BOLD, follows=40.0)
        paper.words(claim.claim, indent=10.0)
        paper.words(answered(name, [report]), BOLD, indent=10.0)


def _methods(paper: Paper, title: str, methods: Mapping[str, Mapping[str, Any]]) -> None:
    shown = [name for name in METRICS if any(name in each for each in methods.values())]
    rows = [[name, *(_number(each.get(metric), metric) for metric in shown)] for name, each in methods.items()]
    _table(paper, title, [["method", *(METRICS[name] for name in shown)], *rows] if shown else [])


def _number(found: Mapping[str, Any] | None, metric: str) -> str:
    return "\n".join(each for each in in_words(found, metric) if each)


def _published(report: Mapping[str, Any]) -> list[list[str]]:
    rows = [["method", "metric", "published", "here", "where"]]
    for each in published(report["study"], report["config"]["data"]):
        ours = report["methods"].get(each.method, {}).get(each.metric)
        setting = "".join(f", {name} {value}" for name, value in each.setting.items())
        words = f"{each.document}, {each.place}" + (f": {each.note}" if each.note else "")
        rows.append(
            [f"{each.method}{setting}", each.metric, f"{each.value:.4g}", _number(ours, each.metric), words]
        )
    return rows


def _table(paper: Paper, title: str, lines: Sequence[Sequence[str]], words: int | None = None) -> None:
    """A table whose first line is its head; nothing where it has no other."""
    if len(lines) > 1:
        paper.table(title, lines[0], lines[1:], words)


def _made(paper: Paper, report: Mapping[str, Any]) -> None:
    """Command, commit, settings, and the machines that cells came from."""
    paper.heading("How it was made")
    told = [(name, report[name]) for name in ("command", "commit", "source_hash")]
    told += [(f"config: {name}", value) for name, value in report["config"].items()]
    told += [item for each in report["environments"] for item in each.items()]
    for name, value in told:
        paper.words(f"{name}: {value if isinstance(value, str) else json.dumps(value)}", MONO, indent=10.0)

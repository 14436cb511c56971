"""What a study leaves in its folder beside its cells: the report, its page, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from attnknn.study.cells import Cells
from attnknn.study.figures import Figure
from attnknn.study.page import overview_of, page_of
from attnknn.study.plots import plots_of
from attnknn.study.recipe import STUDIES
from attnknn.study.record import write_bytes, write_json
from attnknn.study.tables import write_tables

Extra = Literal["figures", "pdf"]


def write_report(report: Mapping[str, Any], cells: Cells) -> None:
    """Write ``report.json``, ``index.html`` and ``tables/``."""
    folder = cells.folder
    write_json(folder / "report.json", report)
    write_bytes(folder / "index.html", page_of(report, *_drawn(report, cells)).encode())
    write_tables(report, folder / "tables")


def write_overview(report: Mapping[str, Any], every: Sequence[Cells], folder: Path) -> None:
    """Write ``report.json`` and ``index.html`` of several studies together."""
    write_json(folder / "report.json", report)
    drawn = {cells.recipe.study: _drawn(report["studies"][cells.recipe.study], cells) for cells in every}
    write_bytes(folder / "index.html", overview_of(report, drawn).encode())


def write_figures(report: Mapping[str, Any], cells: Cells) -> None:
    """Write ``figures/NAME.png`` and ``.svg``.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    from attnknn.study.rendered import write_figure

    folder = cells.folder / "figures"
    folder.mkdir(exist_ok=True)
    for name, figure in _drawn(report, cells)[0].items():
        for suffix in ("png", "svg"):
            write_figure(figure, folder / f"{name}.{suffix}")


def write_document(report: Mapping[str, Any], cells: Cells) -> None:
    """Write ``report.pdf``.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    from attnknn.study.pdf import write_pdf

    write_pdf(report, *_drawn(report, cells), cells.folder / "report.pdf")


EXTRAS: Final[Mapping[Extra, Callable[[Mapping[str, Any], Cells], None]]] = {
    "figures": write_figures,
    "pdf": write_document,
}
"""What a study leaves only where it is asked to."""


def _drawn(report: Mapping[str, Any], cells: Cells) -> tuple[dict[str, Figure], tuple[str, ...]]:
    """The figures of a report, and the methods that it is about."""
    leads = STUDIES[cells.recipe.study].leads
    return plots_of(report, cells, leads), leads

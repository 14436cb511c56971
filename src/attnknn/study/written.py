"""What a study leaves in its folder beside its cells: the report, its page, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnknn.study.cells import Cells
from attnknn.study.page import page_of
from attnknn.study.plots import plots_of
from attnknn.study.recipe import STUDIES
from attnknn.study.record import write_bytes, write_json
from attnknn.study.tables import write_tables


def write_report(report: Mapping[str, Any], cells: Cells) -> None:
    """Write ``report.json``, ``index.html`` and ``tables/``."""
    folder, leads = cells.folder, STUDIES[cells.recipe.study].leads
    write_json(folder / "report.json", report)
    write_bytes(folder / "index.html", page_of(report, plots_of(report, cells, leads), leads).encode())
    write_tables(report, folder / "tables")


def write_figures(report: Mapping[str, Any], cells: Cells) -> list[Path]:
    """Write ``figures/NAME.png`` and ``.svg``.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    from attnknn.study.rendered import write_figure

    folder = cells.folder / "figures"
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in plots_of(report, cells, STUDIES[cells.recipe.study].leads).items():
        for suffix in ("png", "svg"):
            paths.append(folder / f"{name}.{suffix}")
            write_figure(figure, paths[-1])
    return paths

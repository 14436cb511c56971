"""What a study leaves in its folder beside its cells: the report, its page, tables, figures, and a PDF."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from attnknn.errors import MissingExtra
from attnknn.study.answers import answered
from attnknn.study.cells import Cells
from attnknn.study.figures import Figure
from attnknn.study.grids import Grid, grids_of
from attnknn.study.page import overview_of, page_of
from attnknn.study.plots import plots_of
from attnknn.study.published import claims
from attnknn.study.recipe import STUDIES
from attnknn.study.record import write_bytes, write_json
from attnknn.study.svg import STYLE, svg
from attnknn.study.tables import as_csv, as_latex, differences_csv, differences_latex, grid_csv, grid_latex

Extra = Literal["figures", "pdf"]
_METRICS: Final = ("methods", "uncalibrated")
Drawn = tuple[dict[str, Figure], tuple[str, ...]]  # figures by name, and the methods that a study is about


def write_report(report: Mapping[str, Any], cells: Cells, also: Collection[Extra] = ()) -> Drawn:
    """Write ``report.json``, ``index.html``, ``tables/`` and ``figures/``.

    Args:
        report: What was found.
        cells: Where the predictions are, and where to write.
        also: ``figures`` draws them as .png too, where there is matplotlib; ``pdf`` writes ``report.pdf``.

    Returns:
        What was drawn, and the methods that the study is about.

    Raises:
        MissingExtra: A PDF takes matplotlib.
    """
    folder, drawn = cells.folder, _drawn(report, cells)
    write_json(folder / "report.json", report)
    write_bytes(folder / "index.html", page_of(report, *drawn).encode())
    write_tables(report, folder / "tables")
    write_figures(drawn[0], folder / "figures", png="figures" in also)
    if "pdf" in also:
        from attnknn.study.pdf import sheets_of, write_pdf

        write_pdf(
            sheets_of(report, *drawn), f"{report['study']}: {report['config']['data']}", folder / "report.pdf"
        )
    return drawn


def write_overview(
    report: Mapping[str, Any], drawn: Mapping[str, Drawn], folder: Path, also: Collection[Extra] = ()
) -> None:
    """The same of several studies together; files of one study begin with its name.

    Args:
        report: As ``run_all`` makes it.
        drawn: What ``write_report`` gave for each study.
        folder: Where to write; each study has a folder of its own in it.
        also: As in ``write_report``.
    """
    _forget(folder, STUDIES.keys() - report["studies"].keys())
    write_json(folder / "report.json", report)
    write_bytes(folder / "index.html", overview_of(report, drawn).encode())
    _write_grid(claims_grid(list(report["studies"].values())), folder / "tables")
    for name, each in report["studies"].items():
        write_tables(each, folder / "tables", f"{name}-")
        for file in _files(drawn[name][0], folder / name / "figures"):
            write_bytes(folder / "figures" / f"{name}-{file.name}", file.read_bytes())
    if "pdf" in also:
        from attnknn.study.pdf import overview_sheets, title_of, write_pdf

        write_pdf(overview_sheets(report, drawn), title_of(report), folder / "report.pdf")


def write_tables(report: Mapping[str, Any], folder: Path, prefix: str = "") -> None:
    """Write every table as .csv and, with booktabs, as .tex; those of metrics hold the value of each seed."""
    for kind in _METRICS:
        write_bytes(folder / f"{prefix}{kind}.csv", as_csv(report[kind]).encode())
        write_bytes(folder / f"{prefix}{kind}.tex", as_latex(report[kind]).encode())
    if report["differences"]:  # one method alone has none
        write_bytes(folder / f"{prefix}differences.csv", differences_csv(report["differences"]).encode())
        write_bytes(folder / f"{prefix}differences.tex", differences_latex(report["differences"]).encode())
    for grid in (each for some in grids_of(report) for each in some if each.name not in _METRICS):
        _write_grid(grid, folder, prefix)


def _write_grid(grid: Grid, folder: Path, prefix: str = "") -> None:
    rows = (grid.head, *grid.rows)
    for suffix, text in (("csv", grid_csv(rows)), ("tex", grid_latex(rows, grid.words))):
        write_bytes(folder / f"{prefix}{grid.name}.{suffix}", text.encode())


def claims_grid(reports: Sequence[Mapping[str, Any]]) -> Grid:
    """The four claims, and what some reports say to each."""
    rows = ((name, each.claim, answered(name, reports)) for name, each in claims().items())
    return Grid("claims", "The four claims", ("about", "claim", "found"), tuple(rows), words=2)


def write_figures(figures: Mapping[str, Figure], folder: Path, *, png: bool = True) -> None:
    """Write ``NAME.svg`` of each figure and, where there is matplotlib and it is asked for, ``NAME.png``."""
    if figures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        write_bytes(folder / f"{name}.svg", alone(figure).encode())
        if png and not_drawn(["figures"]) is None:
            from attnknn.study.rendered import write_figure

            write_figure(figure, folder / f"{name}.png")


def alone(figure: Figure) -> str:
    """A figure as an SVG file of its own, in the colors that a page would give it."""
    page = ".plot { color: #1f2933 } @media (prefers-color-scheme: dark) { .plot { color: #e6eaee } }"
    head, _, rest = svg(figure).partition(">")
    return f"{head}><style>{STYLE}{page}</style>{rest}\n"


def not_drawn(also: Collection[str]) -> str | None:
    """Why there will be no pictures, in one line; None where there will be, or where none are asked for."""
    from attnknn.study.rendered import need_matplotlib

    if "figures" not in also:
        return None
    try:
        need_matplotlib()
    except MissingExtra as missing:
        return f"no figures/*.png, but *.svg: {missing}"
    return None


def _forget(folder: Path, studies: Collection[str]) -> None:
    """Remove tables and figures that an earlier report of all had of studies that this one does not have."""
    for name in studies:
        for path in (*folder.glob(f"tables/{name}-*"), *folder.glob(f"figures/{name}-*")):
            path.unlink(missing_ok=True)


def _files(figures: Iterable[str], folder: Path) -> list[Path]:
    """The files of figures that are there."""
    return [
        path for name in figures for suffix in ("svg", "png") if (path := folder / f"{name}.{suffix}").exists()
    ]


def _drawn(report: Mapping[str, Any], cells: Cells) -> Drawn:
    """The figures of a report, and the methods that it is about."""
    leads = STUDIES[cells.recipe.study].leads
    return plots_of(report, cells, leads), leads

"""Figures by matplotlib, which the extra ``plots`` brings: into files, or on sheets and axes of the caller."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

from attnknn.errors import InvalidInput, MissingExtra
from attnknn.study.figures import Bars, Figure, Lines, Matrix, Numbers, Reliability, Series, tick_text
from attnknn.study.svg import COLORS, DASHES, MOST_MARKED, MOST_NAMED, MOST_NUMBERED, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Page
    from matplotlib.figure import SubFigure
    from numpy.typing import NDArray

    Sheet: TypeAlias = Page | SubFigure

INK, QUIET = "#1f2933", "#52606d"
HEIGHTS = (5, 1)
"""Of the two parts of a reliability diagram, relative to each other."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GRID, _ROWS = "#e3e7ec", "#b8c4d0"
_SHADES = {"accuracy": (COLORS[0], 0.85), "too sure": (COLORS[1], 0.35), "not sure enough": (COLORS[2], 0.5)}
# A date would make every file new, though it shows the same.
_UNDATED: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def write_figure(figure: Figure, path: Path) -> None:
    """Draw a figure into a file; its suffix says which kind.

    Args:
        figure: What to draw.
        path: Ends with ``.png``, ``.svg`` or ``.pdf``.

    Raises:
        InvalidInput: The suffix is another one.
        MissingExtra: There is no matplotlib.
    """
    if path.suffix not in _UNDATED:
        raise InvalidInput(f"a figure's file ends with {', '.join(_UNDATED)}, got {path.name!r}")
    sheet = blank(size_of(figure))
    draw(figure, sheet)
    settle(sheet)
    sheet.savefig(path, format=path.suffix[1:], dpi=160, metadata=_UNDATED[path.suffix])


def need_matplotlib() -> None:
    """Refuse at once where nothing can be drawn, before anything is computed for it.

    Raises:
        MissingExtra: There is no matplotlib.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as missing:
        raise MissingExtra("figures need matplotlib: pip install 'attnknn[plots]'") from missing


def blank(size: tuple[float, float]) -> Page:
    """A sheet of so many inches, width first, whose parts make room for each other."""
    need_matplotlib()
    from matplotlib.figure import Figure as Page
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Page(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))


def draw(figure: Figure, sheet: Sheet) -> None:
    """Draw a figure with title and legend on a whole sheet, or on a part of one."""
    match figure:
        case Lines():
            _lines(figure, sheet)
        case Bars():
            _bars(figure, sheet)
        case Reliability():
            _reliability(figure, sheet)
        case Matrix():
            _matrix(figure, sheet)
    sheet.suptitle(plain(figure.title), color=INK, fontsize=12, fontweight="bold", wrap=True)


def settle(sheet: Page) -> None:
    """Lay a sheet out for good, so that it always is the same: the solver leaves the last bits to chance."""
    engine = sheet.get_layout_engine()
    if engine is not None:
        engine.execute(sheet)
    sheet.set_layout_engine("none")
    for axes in sheet.axes:
        left, bottom, width, height = (round(part, 5) for part in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height))


def size_of(figure: Figure) -> tuple[float, float]:
    """Width and height in inches that suit a figure."""
    match figure:
        case Lines():
            return 6.4, 4.2 + 0.12 * len(figure.series)
        case Bars():
            return 6.8, 1.7 + 0.34 * len(figure.names)
        case Reliability():
            return 5.2, 6.6
        case Matrix():
            side = min(9.0, max(4.2, 2.0 + 0.5 * len(figure.names)))
            return side, side


def _lines(figure: Lines, sheet: Sheet) -> None:
    axes = _axes(sheet)
    for at, each in zip(figure.looks, figure.series, strict=True):
        _series(axes, each, at)
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log" if figure.log_y else "linear")
    _tick(axes, "x", figure.x_ticks)
    _tick(axes, "y", figure.y_ticks)
    axes.set_ylabel(plain(figure.y_label))
    _below(axes, figure.x_label, figure.note)
    _legend(sheet, axes)


def _series(axes: Axes, series: Series, at: int) -> None:
    known = [not math.isnan(y) for y in series.y]
    name = series.name if any(known) else f"{series.name} (not run)"
    dash: Any = (0, DASHES[at]) if DASHES[at] else "-"
    look: dict[str, Any] = {"color": COLORS[at], "linestyle": dash, "linewidth": 1.8, "clip_on": False}
    stride = max(1, math.ceil(len(known) / MOST_MARKED))
    axes.plot(series.x, series.y, marker=MARKERS[at], markersize=5, markevery=stride, label=plain(name), **look)
    for run in runs([here and series.interval(point) is not None for point, here in enumerate(known)]):
        x, ends = [series.x[p] for p in run], [series.interval(p) or (math.nan, math.nan) for p in run]
        low, high = [end[0] for end in ends], [end[1] for end in ends]
        if len(run) == 1:
            axes.vlines(x, low, high, color=COLORS[at], linewidth=1.3)
        else:
            axes.fill_between(x, low, high, color=COLORS[at], alpha=0.14, linewidth=0)


def _bars(figure: Bars, sheet: Sheet) -> None:
    axes = _axes(sheet)
    axes.grid(visible=False, axis="y")
    places = range(len(figure.names))
    spans = [0.0 if math.isnan(value) else value - figure.base for value in figure.values]
    axes.barh(places, spans, left=figure.base, height=0.6, color=COLORS[0], alpha=0.85)
    for at in places:
        beside = axes.annotate(figure.label(at), (1.01, at), xycoords=("axes fraction", "data"))
        beside.set(verticalalignment="center", color=INK, fontsize=9)
    _bar_marks(axes, figure)
    axes.set_yticks(places, [plain(name) for name in figure.names])
    axes.set_ylim(len(figure.names) - 0.4, -0.6)
    _tick(axes, "x", figure.ticks)
    _below(axes, figure.y_label, " ".join(figure.notes))
    if axes.get_legend_handles_labels()[1]:
        _legend(sheet, axes)


def _bar_marks(axes: Axes, figure: Bars) -> None:
    """Intervals over the bars, and what others reported below them."""
    places = range(len(figure.names))
    known = [(at, *ends) for at in places if (ends := figure.interval(at)) and not math.isnan(figure.values[at])]
    for order, (at, low, high) in enumerate(known):
        label = None if order else "95 % interval"
        axes.plot([low, high], [at, at], color=INK, linewidth=1.3, marker="|", markersize=7, label=label)
    reported = [(value, at + 0.4) for at in places if (value := figure.reported(at)) is not None]
    if reported:
        x, y = zip(*reported, strict=True)
        axes.plot(x, y, linestyle="", marker="^", markersize=6, color=COLORS[1], label="published", clip_on=False)


def _reliability(figure: Reliability, sheet: Sheet) -> None:
    upper, lower = sheet.subplots(2, 1, sharex=True, height_ratios=HEIGHTS)
    draw_reliability(figure, upper, lower)
    _legend(sheet, upper)


def draw_reliability(figure: Reliability, upper: Axes, lower: Axes) -> None:
    """Draw a diagram without title and legend: accuracy on one pair of axes, the rows of each bin on another."""
    for axes in (upper, lower):
        dress(axes)
    for at in figure.shown:
        _bin(upper, figure, at)
    for name, (color, alpha) in _SHADES.items():
        upper.bar([0], [0], color=color, alpha=alpha, label=name)
    if any(figure.interval(at) for at in figure.shown):
        upper.errorbar([], [], [], color=INK, linewidth=1.2, capsize=3, label="95 % interval")
    upper.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1.2)
    _counts(lower, figure)
    _tick(upper, "x", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    _tick(upper, "y", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    upper.set_ylabel("accuracy")


def _counts(axes: Axes, figure: Reliability) -> None:
    for at in figure.shown:
        left, wide = figure.edges[at], figure.edges[at + 1] - figure.edges[at]
        axes.bar(left, figure.count[at], wide, align="edge", color=_ROWS, edgecolor="white")
    axes.set_yscale("log")
    axes.set_yticks(figure.count_ticks, [tick_text(tick) for tick in figure.count_ticks])
    axes.set_yticks([], minor=True)
    axes.set_ylim(0.7, 1.2 * max(*figure.count, 1))  # a bin of one row still shows
    axes.set_ylabel("rows")
    axes.set_xlabel("confidence")


def _bin(axes: Axes, figure: Reliability, at: int) -> None:
    left, wide = figure.edges[at], figure.edges[at + 1] - figure.edges[at]
    right, sure, interval = figure.accuracy[at], figure.confidence[at], figure.interval(at)
    agreed, gap = min(sure, right), abs(sure - right)
    color, alpha = _SHADES["accuracy"]
    axes.bar(left, agreed, wide, align="edge", color=color, alpha=alpha, edgecolor="white")
    color, alpha = _SHADES["too sure" if sure > right else "not sure enough"]
    axes.bar(left, gap, wide, bottom=agreed, align="edge", color=color, alpha=alpha, edgecolor="white")
    if interval:
        middle = left + wide / 2
        axes.plot([middle, middle], interval, color=INK, linewidth=1.2, marker="_", markersize=5)


def _matrix(figure: Matrix, sheet: Sheet) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    axes = _axes(sheet)
    axes.grid(visible=False)
    classes = range(len(figure.names))
    shares = [[figure.share(truth, answer) for answer in classes] for truth in classes]
    blues = LinearSegmentedColormap.from_list("shares", ["#ffffff", COLORS[0]])
    depths = [[0.08 + 0.92 * share if share else 0.0 for share in row] for row in shares]
    axes.imshow(depths, cmap=blues, vmin=0, vmax=1)
    if len(figure.names) <= MOST_NUMBERED:
        for truth in classes:
            for answer in classes:
                color = "white" if shares[truth][answer] > 0.55 else INK
                count = f"{figure.counts[truth][answer]}"
                axes.text(answer, truth, count, ha="center", va="center", color=color, fontsize=8)
    axes.spines[:].set(visible=True, color=_GRID)
    names = [plain(name) for name in figure.names] if len(figure.names) <= MOST_NAMED else []
    places = range(len(names))
    axes.set_xticks(places, names, rotation=90 if any(len(name) > 3 for name in names) else 0)
    axes.set_yticks(places, names)
    axes.set_xlabel("answer")
    axes.set_ylabel("truth")


def _axes(sheet: Sheet) -> Axes:
    axes = sheet.subplots()
    dress(axes)
    return axes


def subplots(count: int, size: tuple[float, float]) -> NDArray[Any]:
    """Axes beside each other in a figure that pyplot knows, so that notebooks and ``show`` show it."""
    need_matplotlib()
    import matplotlib.pyplot as plt

    axes: NDArray[Any] = plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)[1][0]
    return axes


def dress(axes: Axes) -> None:
    """Give axes the look of all figures."""
    axes.set_axisbelow(True)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.tick_params(colors=INK, length=0, pad=6, labelsize=9)
    axes.xaxis.label.set_color(QUIET)
    axes.yaxis.label.set_color(QUIET)
    axes.spines[:].set_visible(False)


def title(axes: Axes, words: str) -> None:
    """Words above axes."""
    axes.set_title(plain(words), color=INK, fontsize=11)


def _tick(axes: Axes, side: str, ticks: Numbers) -> None:
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_ticks(ticks, [tick_text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)
    (axes.set_xlim if side == "x" else axes.set_ylim)(ticks[0], ticks[-1])


def _below(axes: Axes, label: str, note: str) -> None:
    axes.set_xlabel("\n".join([plain(label), *wrap(plain(note), 88)]))


def _legend(sheet: Sheet, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(4, 84 // (max(map(len, labels)) + 8)))
    sheet.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def plain(words: str) -> str:
    """Words as they are: matplotlib would read what stands between dollars as mathematics."""
    return words.replace("$", r"\$")

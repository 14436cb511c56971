"""Figures as inline SVG for a page: vector lines, a value on every mark, no script, nothing from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from textwrap import wrap

from attnknn.study.figures import Bars, Figure, Lines, Matrix, Numbers, Reliability, Series, said, tick_text

# Okabe and Ito's colors, strongest first; their yellow is darkened, as it would vanish on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b8a700")
DASHES = ((), (7, 3), (2, 2), (9, 3, 2, 3), (5, 5), (12, 4), (1, 3), (7, 2, 2, 2, 2, 2))
MOST_NUMBERED = 12  # classes of a matrix with numbers in its cells
MOST_NAMED = 24  # classes of a matrix with names on its sides
MOST_MARKED = 24  # points of a line with a marker on each

WIDTH = 360  # units of the view box; 13 units of text are 11.6 px where the figure is 320 px wide
_EDGE, _LETTER, _ROW = 8, 7.8, 18
_MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3-3h6v6h-6z",
    "m0-4l4 7h-8z",
    "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "m0 4l4-7h-8z",
    "m-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "m-4-2.3l1.7-1.7l2.3 2.3l2.3-2.3l1.7 1.7l-2.3 2.3l2.3 2.3l-1.7 1.7l-2.3-2.3l-2.3 2.3l-1.7-1.7l2.3-2.3z",
    "m0-5l1.3 3.3h3.5l-2.8 2.2l1 3.5l-3-2l-3 2l1-3.5l-2.8-2.2h3.5z",
)

# Text and frames take the page's own color. Wide figures get smaller units of text, hence the same on screen.
STYLE = f"""
.plot {{ {" ".join(f"--plot-{at}: {color};" for at, color in enumerate(COLORS))} --plot-6: currentColor;
  display: block; width: 100%; max-width: 45rem; height: auto; overflow: visible;
  font: 13px/1.2 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums }}
@media (prefers-color-scheme: dark) {{
  .plot {{ --plot-0: #2f94d6; --plot-1: #e8742a; --plot-2: #1db58a; --plot-5: #8fd0ff; --plot-7: #f0e442 }}
}}
figure:has(> .plot) {{ container-type: inline-size }}
@container (min-width: 440px) {{ .plot {{ font-size: 11px }} }}
@container (min-width: 560px) {{ .plot {{ font-size: 9px }} }}
@container (min-width: 660px) {{ .plot {{ font-size: 7.8px }} }}
.plot text {{ fill: currentColor }} .plot .p-title {{ font-size: 1.08em; font-weight: 600 }}
.plot .p-middle {{ text-anchor: middle }} .plot .p-end {{ text-anchor: end }}
.plot .p-quiet {{ fill-opacity: .75 }} .plot .p-small {{ font-size: .955em }} .plot .p-light {{ fill: #fff }}
.plot path, .plot line, .plot rect {{ vector-effect: non-scaling-stroke }}
.plot .p-grid {{ stroke: currentColor; stroke-opacity: .15 }}
.plot .p-frame {{ fill: none; stroke: currentColor; stroke-opacity: .3 }}
.plot .p-diagonal {{ stroke: currentColor; stroke-dasharray: 4 4; stroke-width: 1.3 }}
.plot .p-line {{ fill: none; stroke: var(--ink); stroke-width: 2; stroke-linejoin: round; pointer-events: none }}
.plot .p-band {{ fill: var(--ink); fill-opacity: .14; pointer-events: none }}
.plot .p-mark {{ fill: var(--ink); stroke: transparent; stroke-width: 8 }}
.plot .p-spot {{ fill: transparent }} .plot .p-spot:hover {{ fill: var(--ink) }}
.plot .p-whisker {{ fill: none; stroke: currentColor; stroke-width: 1.4; pointer-events: none }}
.plot .p-series .p-whisker {{ stroke: var(--ink) }}
.plot .p-bar {{ fill: var(--plot-0); fill-opacity: .85 }} .plot .p-count {{ fill: currentColor; fill-opacity: .3 }}
.plot .p-over {{ fill: var(--plot-1); fill-opacity: .35; stroke: var(--plot-1) }}
.plot .p-under {{ fill: var(--plot-2); fill-opacity: .5; stroke: var(--plot-2); stroke-dasharray: 3 2 }}
.plot .p-published {{ fill: var(--plot-1) }} .plot .p-cell {{ fill: #0072b2 }}
.plot .p-target {{ fill: transparent }} .plot g:hover > .p-target {{ fill: currentColor; fill-opacity: .06 }}
""" + "\n".join(
    f".plot .p-{at} {{ --ink: var(--plot-{at}) }}"
    + (f" .plot .p-{at} .p-line {{ stroke-dasharray: {' '.join(map(str, dash))} }}" if dash else "")
    for at, dash in enumerate(DASHES)
)


def svg(figure: Figure) -> str:
    """The figure as one ``<svg>`` element; the page holds ``STYLE`` once.

    Inside a ``<figure>`` its text keeps its size from 320 to 720 pixels of width.
    """
    title = _texts(figure.title, _EDGE, 16, "p-title", 38)
    top = 16.0 + _ROW * (len(title) - 1) + 10
    match figure:
        case Lines():
            parts, bottom = _lines(figure, top)
        case Bars():
            parts, bottom = _bars(figure, top)
        case Reliability():
            parts, bottom = _reliability(figure, top)
        case Matrix():
            parts, bottom = _matrix(figure, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {bottom:.0f}" role="img" '
        f'aria-label="{escape(figure.title)}">{"".join([*title, *parts])}</svg>'
    )


def runs(known: Sequence[bool]) -> Iterator[list[int]]:
    """Places of each unbroken stretch of True."""
    for present, places in groupby(range(len(known)), key=lambda at: known[at]):
        if present:
            yield list(places)


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to units of the view box; what lies outside the axis is drawn at its end."""

    ticks: Numbers
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        value = min(max(value, low), high)
        share = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def _lines(figure: Lines, top: float) -> tuple[list[str], float]:
    x_ticks, y_ticks = figure.x_ticks, figure.y_ticks
    left = _EDGE + _LETTER * max(len(tick_text(tick)) for tick in y_ticks) + 6
    right = WIDTH - max(_EDGE, _LETTER * len(tick_text(x_ticks[-1])) / 2 + 2)
    bottom = top + 226
    x, y = _Scale(x_ticks, left, right, figure.log_x), _Scale(y_ticks, bottom, top + 24, figure.log_y)
    looks = list(zip(figure.looks, figure.series, strict=True))
    legend, below = _legend([(_sample(at), _name_of(each)) for at, each in looks], bottom + 46)
    notes = _texts(figure.note, _EDGE, below, "p-quiet", 44)
    parts = [
        _text(_EDGE, top + 9, figure.y_label, "p-quiet"),
        *_grid(x, y),
        *(piece for at, each in looks for piece in _series(figure, each, at, x, y)),
        _text((left + right) / 2, bottom + 34, figure.x_label, "p-middle p-quiet"),
        *legend,
        *notes,
    ]
    return parts, below + _ROW * len(notes) - 4


def _name_of(series: Series) -> str:
    return f"{series.name} (not run)" if all(map(math.isnan, series.y)) else series.name


def _grid(x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for tick in y.ticks:
        parts += [
            _line(x.start, y(tick), x.end, y(tick), "p-grid"),
            _text(x.start - 6, y(tick) + 4, tick_text(tick), "p-end"),
        ]
    for tick in x.ticks:
        parts += [
            _line(x(tick), y.start, x(tick), y.start + 4, "p-grid"),
            _text(x(tick), y.start + 17, tick_text(tick), "p-middle"),
        ]
    return parts


def _series(figure: Lines, series: Series, at: int, x: _Scale, y: _Scale) -> Iterator[str]:
    places = [(x(across), y(up)) for across, up in zip(series.x, series.y, strict=True)]
    present = [not math.isnan(up) for up in series.y]
    yield f'<g class="p-series p-{at}">'
    for run in runs([here and series.interval(point) is not None for point, here in enumerate(present)]):
        yield _spread(series, run, x, y)
    for run in runs(present):
        yield f'<path class="p-line" d="M{"L".join(f"{places[p][0]:.1f} {places[p][1]:.1f}" for p in run)}"/>'
    shown = [point for point, here in enumerate(present) if here]
    stride = max(1, math.ceil(len(shown) / MOST_MARKED))
    for order, point in enumerate(shown):
        words = (
            f"{series.name}: {figure.x_label} {said(series.x[point])}, "
            f"{figure.y_label} {said(series.y[point], series.interval(point))}"
        )
        marked = order % stride == 0
        yield _mark(places[point], _MARKS[at if marked else 0], "p-mark" if marked else "p-spot", words)
    yield "</g>"


def _spread(series: Series, run: list[int], x: _Scale, y: _Scale) -> str:
    """Intervals of neighboring points as a band, of a lone one as a whisker."""
    ends = [(x(series.x[at]), *(y(end) for end in series.interval(at) or ())) for at in run]
    if len(ends) == 1:
        across, low, high = ends[0]
        return _whisker(across, low, high, 3)
    there = [f"{across:.1f} {low:.1f}" for across, low, _ in ends]
    back = [f"{across:.1f} {high:.1f}" for across, _, high in reversed(ends)]
    return f'<path class="p-band" d="M{"L".join([*there, *back])}z"/>'


def _whisker(x: float, low: float, high: float, cap: float) -> str:
    ends = f"m{-cap:.1f} 0h{2 * cap:.1f}m{-2 * cap:.1f} {low - high:.1f}h{2 * cap:.1f}"
    return f'<path class="p-whisker" d="M{x:.1f} {low:.1f}V{high:.1f}{ends}"/>'


def _mark(place: tuple[float, float], shape: str, kind: str, words: str) -> str:
    where = f"M{place[0]:.1f} {place[1]:.1f}{shape}"
    return f'<path class="{kind}" d="{where}"><title>{escape(words)}</title></path>'


def _sample(at: int) -> str:
    return f'<g class="p-{at}"><path class="p-line" d="M0 0H28"/><path class="p-mark" d="M14 0{_MARKS[at]}"/></g>'


def _bars(figure: Bars, top: float) -> tuple[list[str], float]:
    tall = 40 if figure.published else 36
    bottom = top + tall * len(figure.names) + 4
    x = _Scale(figure.ticks, _EDGE + 2, WIDTH - _EDGE - 2)
    anchors = ["", *["p-middle"] * (len(x.ticks) - 2), "p-end"]
    legend, below = _legend(_bar_keys(figure), bottom + 46)
    notes = _texts(" ".join(figure.notes), _EDGE, below, "p-quiet", 44)
    parts = [
        *(_line(x(tick), top, x(tick), bottom + 4, "p-grid") for tick in x.ticks),
        *(piece for at in range(len(figure.names)) for piece in _bar(figure, at, x, top + tall * at, tall)),
        *(_text(x(t), bottom + 17, tick_text(t), kind) for t, kind in zip(x.ticks, anchors, strict=True)),
        _text(WIDTH / 2, bottom + 34, figure.y_label, "p-middle p-quiet"),
        *legend,
        *notes,
    ]
    return parts, below + _ROW * len(notes) - 4


def _bar_keys(figure: Bars) -> list[tuple[str, str]]:
    keys = []
    if any(figure.interval(at) for at in range(len(figure.names))):
        keys.append(('<path class="p-whisker" d="M2 0H26M2-4v8M26-4v8"/>', "95 % interval"))
    if any(figure.reported(at) is not None for at in range(len(figure.names))):
        keys.append(('<path class="p-published" d="M14 -4l5 8h-10z"/>', "published"))
    return keys


def _bar(figure: Bars, at: int, x: _Scale, top: float, tall: float) -> list[str]:
    value, interval, published = figure.values[at], figure.interval(at), figure.reported(at)
    run = not math.isnan(value)
    words = f"{figure.names[at]}: " + (f"{figure.y_label} {said(value, interval)}" if run else "not run")
    parts = [
        f"<g><title>{escape(words if published is None else f'{words}, published {said(published)}')}</title>",
        _rect(0, top, WIDTH, tall, "p-target"),
        _text(_EDGE + 2, top + 14, _cut(figure.names[at], 36), ""),
        _text(WIDTH - _EDGE - 2, top + 14, figure.label(at), "p-end" if run else "p-end p-quiet"),
    ]
    if run:
        ends = sorted((x(figure.base), x(value)))
        parts.append(_rect(ends[0], top + 19, ends[1] - ends[0], 12, "p-bar"))
    if run and interval:
        low, high = map(x, interval)
        parts.append(
            f'<path class="p-whisker" d="M{low:.1f} {top + 25:.1f}H{high:.1f}m0-4v8m{low - high:.1f} 0v-8"/>'
        )
    if published is not None:
        parts.append(f'<path class="p-published" d="M{x(published):.1f} {top + 30:.1f}l5 8h-10z"/>')
    return [*parts, "</g>"]


def _reliability(figure: Reliability, top: float) -> tuple[list[str], float]:
    left, right = 44.0, WIDTH - _EDGE - 4.0
    side, counts = right - left, 56.0
    fifths = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    x, y = _Scale(fifths, left, right), _Scale(fifths, top + 24 + side, top + 24)
    base = y.start + 14 + counts
    legend, below = _legend(_reliability_keys(figure), base + 46)
    parts = [
        _text(_EDGE, top + 9, "accuracy, and rows below (logarithmic)", "p-quiet"),
        *(_line(left, y(tick), right, y(tick), "p-grid") for tick in fifths),
        *(_text(left - 6, y(tick) + 4, tick_text(tick), "p-end") for tick in fifths),
        *_count_axis(figure, left, right, base, counts),
        *(piece for at in figure.shown for piece in _bin(figure, at, x, y, base, counts)),
        _line(x(0), y(0), x(1), y(1), "p-diagonal"),
        *(_text(x(tick), base + 17, tick_text(tick), "p-middle") for tick in fifths),
        _text((left + right) / 2, base + 34, "confidence", "p-middle p-quiet"),
        *legend,
    ]
    return parts, below - 4


def _reliability_keys(figure: Reliability) -> list[tuple[str, str]]:
    boxes = [("p-bar", "accuracy"), ("p-over", "too sure"), ("p-under", "not sure enough")]
    keys = [(_rect(6, -6, 16, 11, kind), words) for kind, words in boxes]
    if any(figure.interval(at) for at in range(len(figure.count))):
        keys.append(('<path class="p-whisker" d="M14-7V6m-4 0h8m-8-13h8"/>', "95 % interval"))
    return keys


def _height(count: float, figure: Reliability, tall: float) -> float:
    # Counts differ by orders of magnitude; the logarithm keeps the small ones visible.
    return tall * math.log1p(count) / math.log1p(max(*figure.count, 1))


def _count_axis(figure: Reliability, left: float, right: float, base: float, tall: float) -> Iterator[str]:
    yield _line(left, base, right, base, "p-grid")
    for tick in figure.count_ticks:
        y = base - _height(tick, figure, tall)
        yield _line(left, y, right, y, "p-grid")
        yield _text(left - 6, y + 4, tick_text(tick), "p-end p-small")


def _bin(figure: Reliability, at: int, x: _Scale, y: _Scale, base: float, tall: float) -> list[str]:
    count, right, sure = figure.count[at], figure.accuracy[at], figure.confidence[at]
    interval = figure.interval(at)
    left, wide = x(figure.edges[at]) + 1, x(figure.edges[at + 1]) - x(figure.edges[at]) - 2
    reach = _height(count, figure, tall)
    words = f"{said(count)} rows: confidence {said(sure)}, accuracy {said(right, interval)}"
    parts = [
        f"<g><title>{escape(words)}</title>",
        _rect(left, y(1), wide, base - y(1), "p-target"),
        _rect(left, y(min(right, sure)), wide, y(0) - y(min(right, sure)), "p-bar"),
        _rect(left, y(max(right, sure)), wide, abs(y(sure) - y(right)), "p-over" if sure > right else "p-under"),
        _rect(left, base - reach, wide, reach, "p-count"),
    ]
    if interval:
        parts.append(_whisker(left + wide / 2, y(interval[0]), y(interval[1]), min(3.0, wide / 2)))
    return [*parts, "</g>"]


def _matrix(figure: Matrix, top: float) -> tuple[list[str], float]:
    names = [_cut(name, 12 if len(figure.names) <= 10 else 8) for name in figure.names]
    named = len(names) <= MOST_NAMED
    room = _LETTER * max(map(len, names)) if named else 0.0
    left, classes = _EDGE + 16 + room + 4, len(names)
    cell = min(60.0, (WIDTH - _EDGE - left) / classes)
    end, flat = left + cell * classes, room <= cell
    below = top + cell * classes + (16 if flat else room + 8) * named
    parts = [
        _rect(left, top, cell * classes, cell * classes, "p-frame"),
        *(
            _cell(figure, t, a, left + a * cell, top + t * cell, cell)
            for t in range(classes)
            for a in range(classes)
        ),
        _turned(_EDGE + 9, top + cell * classes / 2, "truth", "p-middle p-quiet"),
        _text((left + end) / 2, below + 16, "answer", "p-middle p-quiet"),
    ]
    for at, name in enumerate(names if named else []):
        middle = (at + 0.5) * cell
        parts.append(_text(left - 5, top + middle + 4, name, "p-end"))
        put = _text(left + middle, top + cell * classes + 16, name, "p-middle")
        parts.append(put if flat else _turned(left + middle + 4, top + cell * classes + 6, name, "p-end"))
    hint = "" if classes <= MOST_NUMBERED else f"{classes} classes; point at a cell to read it."
    notes = _texts(hint, _EDGE, below + 38, "p-quiet", 44)
    return [*parts, *notes], below + 24 + _ROW * len(notes)


def _cell(figure: Matrix, truth: int, answer: int, left: float, top: float, side: float) -> str:
    count, share = figure.counts[truth][answer], figure.share(truth, answer)
    numbered = len(figure.names) <= MOST_NUMBERED
    if not count and not numbered:  # a hundred classes have ten thousand cells, nearly all of them empty
        return ""
    words = f"{figure.names[truth]}, answered {figure.names[answer]}: {said(count)} rows, {said(100 * share)} %"
    depth = 0.08 + 0.92 * share if count else 0.0
    box = _rect(left, top, side, side, "p-cell", f' fill-opacity="{depth:.3f}"')
    kind = "p-middle p-small" + (" p-light" if depth > 0.55 else "" if count else " p-quiet")
    number = _text(left + side / 2, top + side / 2 + 4, _fitting(count, side), kind) if numbered else ""
    return f"<g><title>{escape(words)}</title>{box}{number}</g>"


def _fitting(count: int, side: float) -> str:
    """The count in as many letters as a cell holds."""
    ways = (f"{count}", f"{count / 1000:.1f}k", f"{count / 1000:.0f}k") if count >= 1000 else (f"{count}",)
    return next((way for way in ways if 7.2 * (len(way) - 0.5 * way.count(".")) <= side), "")


def _legend(entries: list[tuple[str, str]], top: float) -> tuple[list[str], float]:
    """Entries in as many columns as fit, and where the next line of text goes."""
    if not entries:
        return [], top + 10
    wide = 42 + _LETTER * max(len(words) for _, words in entries)
    columns = max(1, int((WIDTH - 2 * _EDGE) // wide))
    parts = []
    for at, (sample, words) in enumerate(entries):
        x, y = _EDGE + wide * (at % columns), top + 10 + _ROW * (at // columns)
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{sample}{_text(34, 4, words, "")}</g>')
    return parts, top + 16 + _ROW * math.ceil(len(entries) / columns)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


def _texts(words: str, x: float, y: float, kind: str, most: int) -> list[str]:
    return [_text(x, y + _ROW * at, line, kind) for at, line in enumerate(wrap(words, most))]


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{_class(kind)}>{escape(words)}</text>'


def _turned(x: float, y: float, words: str, kind: str) -> str:
    return f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)"{_class(kind)}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_class(kind)}/>'


def _rect(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{_class(kind)}{more}/>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""

"""What a figure is: names and numbers, checked once, before anything draws them.

The ticks of its axes belong to it, so that the picture in a page and the one in a file agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count as counting
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

from attnknn.errors import InvalidInput
from attnknn.metrics import ReliabilityCurve

MOST_SERIES = 8  # as many colors as color-blind readers can tell apart

LOOKS = ("attention", "uniform", "distance", "reliability", "hgb", "cnn")
"""Series with a color of their own, the same in every figure; others take what is left."""

Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot.

    Args:
        name: What the legend calls it.
        x: Where the points lie, in the order in which the line joins them.
        y: Their values; NaN leaves a gap.
        low: Lower ends of the intervals; NaN where one is unknown.
        high: Upper ends, likewise.
    """

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None

    def __post_init__(self) -> None:
        what = f"series {self.name!r}"
        _check(what, x=self.x, y=self.y, low=self.low, high=self.high)
        _check_ends(what, self.low, self.high)
        if any(math.isnan(x) for x in self.x):
            raise InvalidInput(f"{what}: x must be finite, got NaN; gaps belong to y")

    def interval(self, at: int) -> tuple[float, float] | None:
        """Both ends of a point's interval, where they are known."""
        return _interval(self.low, self.high, at)


@dataclass(frozen=True, slots=True)
class Lines:
    """Values against a number: k, noise, epochs, coverage.

    Args:
        title: Above the plot.
        x_label: What lies along the horizontal axis.
        y_label: What the values are.
        series: One to eight lines.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical one is; ends of intervals that are not positive then lie on its edge.
        note: A sentence below the plot.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= MOST_SERIES:
            raise InvalidInput(f"{self.title!r} needs 1 to {MOST_SERIES} series, got {len(self.series)}")
        for name, log in (("x", self.log_x), ("y", self.log_y)):
            values = [value for each in self.series for value in getattr(each, name)]
            if log and any(value <= 0 for value in values):
                raise InvalidInput(
                    f"{self.title!r}: {name} must be positive on a logarithmic axis, got {min(_known(values)):g}"
                )

    @property
    def looks(self) -> tuple[int, ...]:
        """Which color, dash and marker each series has: methods keep theirs from figure to figure."""
        own = {at: LOOKS.index(name) for at, name in enumerate(map(_plain, self.series)) if name in LOOKS}
        fixed = {look: at for at, look in reversed(own.items())}  # of two alike, the first has it
        taken = {at: look for look, at in fixed.items()}
        free = (look for look in counting() if look not in fixed)
        return tuple(taken[at] if at in taken else next(free) for at in range(len(self.series)))

    @property
    def x_ticks(self) -> Numbers:
        """Marks of the horizontal axis; the first and last are its ends."""
        values = [x for each in self.series for x in each.x]
        return _axis(values, self.log_x, whole=all(x == int(x) for x in values))

    @property
    def y_ticks(self) -> Numbers:
        """Marks of the vertical axis; the first and last are its ends."""
        columns = [column for each in self.series for column in (each.y, each.low, each.high)]
        return _axis([value for column in columns for value in column or ()], self.log_y)


@dataclass(frozen=True, slots=True)
class Bars:
    """One value for each name, side by side.

    Args:
        title: Above the bars.
        y_label: What the values are.
        names: What each bar is.
        values: How long it is; NaN means that it was not run.
        low: Lower ends of the intervals; NaN where one is unknown.
        high: Upper ends, likewise.
        note: A sentence below the bars.
        published: What others reported, None where there is no such number.
        from_zero: Whether the axis starts at 0; else it starts where the differences can be seen.
    """

    title: str
    y_label: str
    names: tuple[str, ...]
    values: Numbers
    low: Numbers | None
    high: Numbers | None
    note: str = ""
    published: tuple[float | None, ...] | None = None
    from_zero: bool = False

    def __post_init__(self) -> None:
        what = repr(self.title)
        reported = None if self.published is None else [math.nan if p is None else p for p in self.published]
        _check(what, values=self.values, low=self.low, high=self.high, published=reported)
        _check_ends(what, self.low, self.high)
        if len(self.names) != len(self.values):
            raise InvalidInput(f"{what} has {len(self.names)} names for {len(self.values)} values")

    @property
    def ticks(self) -> Numbers:
        """Marks of the axis of values; the first and last are its ends."""
        known = _known([*self.values, *(self.low or ()), *(self.high or ()), *(self.published or ())])
        if self.from_zero or not known:
            return _axis([0.0, *known], most=5)
        least, most = min(known), max(known)
        # The shortest bar would vanish if the axis ended where it does.
        room = 0.2 * (most - least)
        low = max(0.0, least - room) if least >= 0 else least
        high = min(0.0, most + room) if most <= 0 else most
        return _axis([low, high], most=5)

    @property
    def base(self) -> float:
        """Where bars start: 0 if the axis holds it, else the end of the axis nearest to 0."""
        return min(max(0.0, self.ticks[0]), self.ticks[-1])

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say below: where bars start, unless at 0, and the note."""
        start = f"Bars start at {self.base:.10g}, not at 0." if self.base else ""
        return tuple(note for note in (start, self.note) if note)

    def interval(self, at: int) -> tuple[float, float] | None:
        """Both ends of a bar's interval, where they are known."""
        return _interval(self.low, self.high, at)

    def label(self, at: int) -> str:
        """The value of a bar, all to the same decimals, or that it was not run."""
        value = self.values[at]
        if math.isnan(value):
            return "not run"
        return f"{value:.4f}" if 5e-5 <= abs(value) < 10 else said(value)

    def reported(self, at: int) -> float | None:
        """What others reported for a bar, if anything."""
        value = None if self.published is None else self.published[at]
        return None if value is None or math.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Reliability:
    """How often answers are right, by how sure they were; one entry for each bin of confidence.

    Args:
        title: Above the diagram.
        confidence: Mean confidence of each bin, NaN where it is empty.
        accuracy: Share of right answers, NaN likewise.
        count: Rows in each bin.
        edges: Where the bins end, one more than there are bins, from 0 to 1.
        low: Lower ends of the intervals on accuracy.
        high: Upper ends.
    """

    title: str
    confidence: Numbers
    accuracy: Numbers
    count: tuple[int, ...]
    edges: Numbers
    low: Numbers | None = None
    high: Numbers | None = None

    def __post_init__(self) -> None:
        what = repr(self.title)
        shares = {"confidence": self.confidence, "accuracy": self.accuracy, "low": self.low, "high": self.high}
        _check(what, count=self.count, **shares)
        _check_ends(what, self.low, self.high)
        for name, column in {**shares, "edges": self.edges}.items():
            if any(value < 0 or value > 1 for value in column or ()):
                raise InvalidInput(f"{what}: {name} must lie between 0 and 1, got {column}")
        if len(self.edges) != len(self.count) + 1 or any(b <= a for a, b in pairwise(self.edges)):
            raise InvalidInput(
                f"{what}: {len(self.count)} bins need {len(self.count) + 1} rising edges, got {self.edges}"
            )
        if any(count < 0 for count in self.count):
            raise InvalidInput(f"{what}: count must not be negative, got {self.count}")

    @classmethod
    def of(cls, curve: ReliabilityCurve, title: str) -> Reliability:
        """The diagram of a curve, with a 95 % Wilson interval on the accuracy of each bin."""
        accuracy, count = tuple(curve.accuracy.tolist()), tuple(curve.count.tolist())
        ends = [_wilson(share, rows) for share, rows in zip(accuracy, count, strict=True)]
        low, high = zip(*ends, strict=True)
        return cls(
            title, tuple(curve.confidence.tolist()), accuracy, count, tuple(curve.edges.tolist()), low, high
        )

    @property
    def count_ticks(self) -> tuple[int, ...]:
        """Marks of the logarithmic axis of counts: at most three powers of ten."""
        powers = [10**power for power in range(len(str(max(self.count))))]
        return tuple(powers[:: -math.ceil(len(powers) / 3)])

    @property
    def shown(self) -> tuple[int, ...]:
        """The bins that hold something to draw."""
        means = zip(self.count, self.accuracy, self.confidence, strict=True)
        return tuple(at for at, (rows, a, c) in enumerate(means) if rows and not math.isnan(a + c))

    def interval(self, at: int) -> tuple[float, float] | None:
        """Both ends of the interval on a bin's accuracy, where they are known."""
        return _interval(self.low, self.high, at)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Confusion matrix: ``counts[truth][answer]``, in the order of ``names``."""

    title: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        classes = len(self.names)
        if not classes or [len(row) for row in self.counts] != [classes] * classes:
            got = [len(row) for row in self.counts]
            raise InvalidInput(f"{self.title!r}: {classes} names need as many rows of as many counts, got {got}")
        if any(not 0 <= count < math.inf for row in self.counts for count in row):
            raise InvalidInput(f"{self.title!r}: counts must be numbers from 0 up, got {self.counts}")

    def share(self, truth: int, answer: int) -> float:
        """Part of the rows of a true class that were answered so; 0 where it has none."""
        return self.counts[truth][answer] / (sum(self.counts[truth]) or 1)


Figure: TypeAlias = Lines | Bars | Reliability | Matrix


def ticks(low: float, high: float, most: int = 6, whole: bool = False) -> Numbers:
    """Round numbers at equal steps, from at or below ``low`` to at or above ``high``.

    Args:
        low: Least value to cover.
        high: Largest value to cover.
        most: As many at most; at least 4.
        whole: Whether the steps must be whole numbers.

    Example:
        >>> ticks(0.913, 0.987)
        (0.9, 0.92, 0.94, 0.96, 0.98, 1.0)
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value: room on both sides of it
        room = 1.0 if whole else 0.1 * abs(low) or 1.0
        low, high = low - room, high + room
    for power in counting(math.floor(math.log10((high - low) / most))):
        for digit in (1, 2, 2.5, 5):
            step = float(f"{digit}e{power}")
            first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
            if last - first < most and (not whole or step == int(step)):
                return tuple(round(at * step, max(0, 1 - power)) for at in range(first, last + 1))
    raise InvalidInput(f"no ticks from {low} to {high}")


def log_ticks(low: float, high: float, most: int = 8) -> Numbers:
    """Round numbers for a logarithmic axis, from at or below ``low`` to at or above ``high``.

    Example:
        >>> log_ticks(1, 30)
        (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        every = [float(f"{digit}e{power}") for power in powers for digit in digits]
        first = max(at for at, tick in enumerate(every) if tick <= low)
        last = min(at for at, tick in enumerate(every) if tick >= high)
        if first == last:  # one value, itself round
            first, last = first - 1, last + 1
        if last - first < most:
            return tuple(every[first : last + 1])
    stride = math.ceil((last - first) / (most - 1))
    return tuple(float(f"1e{powers[0] + at}") for at in range(first, last + stride, stride))


def tick_text(value: float) -> str:
    """A tick as short as it can be told exactly."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit * (10 if letter == "k" else 1):
            return f"{value / unit:.10g}{letter}"
    return f"{value:.10g}"


def said(value: float, interval: tuple[float, float] | None = None) -> str:
    """A value as hovering tells it, with its interval.

    Example:
        >>> said(0.97361, (0.97, 0.9777))
        '0.9736 [0.97, 0.9777]'
    """
    number = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.7g}"
    return number if interval is None else f"{number} [{said(interval[0])}, {said(interval[1])}]"


def _axis(values: Iterable[float | None], log: bool = False, whole: bool = False, most: int = 6) -> Numbers:
    known = [value for value in _known(values) if value > 0 or not log]
    if log:
        return log_ticks(min(known), max(known)) if known else (1.0, 10.0)
    return ticks(min(known), max(known), most, whole) if known else ticks(0.0, 1.0)


def _plain(series: Series) -> str:
    """The method of a series, however its prior is corrected."""
    return series.name.partition("+")[0] if series.name.endswith("+prior-correction") else series.name


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


def _interval(low: Numbers | None, high: Numbers | None, at: int) -> tuple[float, float] | None:
    ends = (low[at], high[at]) if low is not None and high is not None else (math.nan, math.nan)
    return None if any(map(math.isnan, ends)) else ends


def _check(what: str, **columns: Sequence[float] | None) -> None:
    """Refuse columns that are empty, of several lengths, or hold infinity."""
    given = {name: column for name, column in columns.items() if column is not None}
    lengths = {name: len(column) for name, column in given.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInput(f"{what} must have columns of one length, got {lengths}")
    if not all(lengths.values()):
        raise InvalidInput(f"{what} is empty; it must hold at least one number")
    for name, column in given.items():
        for value in column:
            if math.isinf(value):
                raise InvalidInput(f"{what}: {name} must be finite, or NaN where there is no value, got {value}")


def _check_ends(what: str, low: Numbers | None, high: Numbers | None) -> None:
    if (low is None) != (high is None):
        raise InvalidInput(f"{what} has one end of its intervals; give both low and high, or neither")
    for below, above in zip(low or (), high or (), strict=True):
        if below > above:
            raise InvalidInput(f"{what}: low must not be above high, got {below} and {above}")


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """95 % interval of a share, which unlike the usual one holds near 0 and 1 and for few rows."""
    if not rows:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * rows)
    reach = z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2)
    scale = 1 + z * z / rows
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)

"""Paired differences between methods, with intervals for other seeds and for other test rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnknn.metrics import seed_interval
from attnknn.metrics.reliability import chunks, ece_of
from attnknn.metrics.scores import accuracy_of, auc_of, aurc_of, brier_of, f1_macro_of, nll_of
from attnknn.study.job import Floats
from attnknn.study.recipe import ON_IMAGES, PLAIN
from attnknn.study.splits import Rows

BUILDERS = {
    "accuracy": accuracy_of,
    "f1_macro": f1_macro_of,
    "nll": nll_of,
    "ece": ece_of("equal-width"),
    "brier": brier_of,
    "aurc": aurc_of,
    "auc": auc_of,
}
COUNTED = ("accuracy", "f1_macro")
"""Metrics that count rows, so that they are no finer than one row."""

Counts: TypeAlias = NDArray[np.uint16]  # (draws, rows)

_KEPT: Final = 50_000_000  # draws x rows that are kept between cells, 100 MB
LEVEL = 0.95
DRAWN = "drawn_"
"""Begins the name of a cell's array that holds a metric under every draw of test rows."""


def pairs(methods: Sequence[str], ours: Sequence[str]) -> list[tuple[str, str]]:
    """Each of ours against every other method; of two of ours, the later one against the earlier."""
    mine = [name for name in ours if name in methods]
    others = [name for name in methods if name not in ours]
    return [(name, other) for at, name in reversed(list(enumerate(mine))) for other in (*others, *mine[:at])]


def image_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Each of ours against every baseline, its own plain manner, and earlier ways of weighing in the same manner.

    Attention with views is also compared with plain weights, as the claims of the documents have it.

    >>> image_pairs(["cnn", "uniform", "attention"])
    [('attention', 'uniform'), ('attention', 'cnn'), ('uniform', 'cnn')]
    >>> image_pairs(["uniform", "attention", "attention+tta"])
    [('attention+tta', 'attention'), ('attention+tta', 'uniform'), ('attention', 'uniform')]
    """
    known = [name for name in ON_IMAGES if name in methods]
    found = []
    for at, mine in reversed(list(enumerate(known))):
        way, _, manner = mine.partition("+")
        if way not in PLAIN:
            continue
        for other in reversed(known[:at]):
            its_way, _, its_manner = other.partition("+")
            claimed = mine == "attention+tta" and not its_manner
            if its_way not in PLAIN or (its_way == way and not its_manner) or its_manner == manner or claimed:
                found.append((mine, other))
    return found


class Draws(NamedTuple):
    """A metric of two methods under the same draws of test rows, by seed.

    ``step`` is what one row can change at most: a metric that counts rows is no finer than that. ``shared`` says
    that all seeds test the same rows.
    """

    mine: Mapping[int, Floats]
    other: Mapping[int, Floats]
    step: float = 0.0
    shared: bool = False

    @classmethod
    def of(
        cls, mine: Mapping[int, Floats], other: Mapping[int, Floats], metric: str, tested: Sequence[Rows]
    ) -> Draws:
        """Those of a metric; ``tested`` are the rows of each seed."""
        same = all(np.array_equal(np.sort(tested[0]), np.sort(each)) for each in tested[1:])
        return cls(mine, other, one_row(metric, tested), same)

    def interval(self, values: Sequence[float], drawn: Floats) -> dict[str, Any]:
        """That of values of seeds, whose mean under the draws is ``drawn``."""
        return interval_of(values, drawn, self.step, shared=self.shared)


def difference(
    mine: Mapping[int, float],
    other: Mapping[int, float],
    drawn: Draws | None = None,
    identical: Collection[int] = (),
) -> dict[str, Any] | None:
    """Mine minus the other, on the seeds that both have; None where there is no such seed.

    Args:
        mine: Value of a metric for each seed.
        other: The same for the other method.
        drawn: The metric of both for each seed under the same draws of test rows.
        identical: Seeds in which both predicted the very same, as one model under two names does.
    """
    seeds = sorted(set(mine) & set(other))
    if not seeds:
        return None
    values = [mine[seed] - other[seed] for seed in seeds]
    if drawn is None:
        found = interval_of(values)
    else:
        found = drawn.interval(values, np.mean([drawn.mine[seed] - drawn.other[seed] for seed in seeds], axis=0))
    found["seeds"] = seeds
    if set(seeds) & set(identical):
        found["identical_seeds"] = [seed for seed in seeds if seed in identical]
    return found


def interval_of(
    values: Sequence[float], drawn: Floats | None = None, step: float = 0.0, *, shared: bool = False
) -> dict[str, Any]:
    """The mean of paired values, with an interval for other seeds and other test rows.

    It is made of two: Student's t over seeds, and the bootstrap over test rows. Where seeds have test rows of
    their own, the first knows of rows as well, and the wider of both counts at each end: few seeds may agree by
    chance, and then the first alone would have no width. Where seeds share them, it knows nothing of rows, and
    both errors add up as squares do.

    Args:
        values: One for each seed.
        drawn: Their mean under draws of test rows; None where rows were not drawn.
        step: What one row can change at most; the second interval is that much wider at both ends.
        shared: Whether all seeds test the same rows.
    """
    mean = seed_interval(values, LEVEL)
    found = {"mean": mean.value, "low": mean.low, "high": mean.high, "values": list(values)}
    if drawn is None:
        return found
    low, high = _percentiles(drawn, step)
    down, up = (
        _joined(gaps, shared)
        for gaps in ((mean.value - mean.low, mean.value - low), (mean.high - mean.value, high - mean.value))
    )
    each = {
        "over_seeds": {"low": mean.low, "high": mean.high},
        "over_rows": {"low": low, "high": high, "draws": len(drawn)},
    }
    return {**found, "low": mean.value - down, "high": mean.value + up, **each}


def _joined(gaps: tuple[float, float], shared: bool) -> float:
    """How far an interval reaches that is made of two; what is unknown stays so."""
    return float(np.hypot(gaps[0], np.maximum(gaps[1], 0.0)) if shared else np.max(gaps))


def _percentiles(drawn: Floats, step: float) -> tuple[float, float]:
    """Ends that hold all but 5 % of the draws; a draw without a value, as AUC without a class, is left out."""
    known = drawn[~np.isnan(drawn)]
    if not len(known) or not np.isfinite(known).all():
        return np.nan, np.nan
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(known, [tail, 100 - tail])
    return float(low) - step, float(high) + step


def one_row(metric: str, tested: Iterable[Rows]) -> float:
    """What one test row changes in the mean accuracy of seeds at most; ``tested`` are the rows of each seed.

    This is McNemar's correction: where methods differ in few rows, these have to agree on who is better.

    >>> one_row("accuracy", [np.arange(4), np.arange(2, 6)]), one_row("nll", [np.arange(4)])
    (0.25, 0.0)
    """
    if metric not in COUNTED:
        return 0.0
    times = np.unique(np.concatenate([*tested]), return_counts=True)[1]
    return float(times.max() / times.sum())


def under_draws(
    probabilities: Floats, labels: Rows, draws: int, rows: Rows | None = None, of: int | None = None
) -> dict[str, Floats]:
    """Every metric under draws of rows with replacement.

    Args:
        probabilities: (n, classes).
        labels: (n,) true classes.
        draws: How many.
        rows: (n,) which rows of a larger table these are; None draws from these alone.
        of: How many rows the table has. Cells of one table share its draws, so that a row that several seeds test
            is drawn for all of them.
    """
    names = [name for name in BUILDERS if name != "auc" or probabilities.shape[1] == 2]
    built = {name: BUILDERS[name](probabilities, labels) for name in names}
    found: dict[str, list[Floats]] = {name: [] for name in names}
    for counts in _counts(draws, len(labels) if of is None else of, rows):
        weights = counts.astype(np.float64)
        for name, value in built.items():
            found[name].append(value(weights))
    return {name: np.concatenate(each) for name, each in found.items()}


def _counts(draws: int, count: int, rows: Rows | None) -> Iterable[Counts]:
    """How often each row is drawn, some draws at a time; cells with the same rows share what is not too large."""
    if draws * (count if rows is None else len(rows)) > _KEPT:
        return _drawn(draws, count, rows)
    return _kept(draws, count, None if rows is None else np.asarray(rows, np.int64).tobytes())


@lru_cache(maxsize=1)
def _kept(draws: int, count: int, rows: bytes | None) -> tuple[Counts, ...]:
    return tuple(_drawn(draws, count, None if rows is None else np.frombuffer(rows, np.int64)))


def _drawn(draws: int, count: int, rows: Rows | None) -> Iterator[Counts]:
    """A draw that misses all rows of a small test counts each of them once."""
    random = np.random.default_rng(0)
    tested = np.arange(count) if rows is None else rows
    for size in chunks(draws, len(tested)):
        counts = np.empty((size, len(tested)), np.uint16)
        for each in counts:
            each[:] = np.bincount(random.integers(count, size=count), minlength=count)[tested]
            each[:] = each if each.any() else 1
        yield counts

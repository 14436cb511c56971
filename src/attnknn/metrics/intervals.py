"""How sure a number is: bootstrap over rows, t interval over seeds, and the whole report at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import Floats, Ints, as_floats, checked, checked_count
from attnknn.metrics.reliability import chunks, ece_of, simulated_ece
from attnknn.metrics.scores import Weighed, accuracy_of, auc_of, aurc_of, brier_of, f1_macro_of, nll_of

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and the interval around it.

    Example:
        >>> print(Estimate(0.5, 0.25, 0.75))
        0.5000 [0.2500, 0.7500]
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def bootstrap_interval(
    metric: Callable[[Floats, Ints], float],
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = LEVEL,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap over rows.

    Args:
        metric: Any function of probabilities and labels; labels that the model does not know reach it as -1.
        probabilities: Predictions, ``(n, classes)``.
        labels: True classes, ``(n,)``.
        level: Share of the draws inside the interval.
        draws: How often the rows are drawn, with replacement.
        seed: Seed of the draws.

    Returns:
        Low and high end. Draws without a value (NaN) are left out; both ends are NaN when none is left.
    """
    checked_p, checked_y = checked(probabilities, labels)
    rows = _resampled(len(checked_y), checked_count(draws, "draws"), seed)
    return _percentiles(np.array([metric(checked_p[at], checked_y[at]) for at in rows]), level)


def seed_interval(values: Sequence[float] | Floats, level: float = LEVEL) -> Estimate:
    """Mean over seeds with Student's t interval.

    The ends are NaN when they cannot be known: one value only, or a value that is not finite.

    Example:
        >>> print(seed_interval([0.75, 0.75, 0.75]))
        0.7500 [0.7500, 0.7500]
    """
    from scipy.special import stdtrit

    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise InvalidInput(f"values must be a list of at least one number, got shape {array.shape}")
    tail = (1 - _checked_level(level)) / 2
    mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(array).all():
        return Estimate(mean, np.nan, np.nan)
    reach = float(stdtrit(len(array) - 1, 1 - tail) * array.std(ddof=1) / np.sqrt(len(array)))
    return Estimate(mean, mean - reach, mean + reach)


def evaluate(
    probabilities: ArrayLike, labels: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Every metric with its 95 % bootstrap interval, all from the same draws of rows.

    ``auc`` is there for two classes only. ``ece_floor`` is the mean equal-width ECE of a perfectly
    calibrated model with these predictions, and the interval holds 95 % of its simulated values.
    """
    checked_p, checked_y = checked(probabilities, labels)
    draws = checked_count(draws, "draws")
    scores = _scores(checked_p, checked_y)
    drawn = _under_draws(scores, len(checked_y), draws, seed)
    ones = np.ones((1, len(checked_y)))
    report = {
        name: Estimate(float(value(ones)[0]), *_percentiles(drawn[name], LEVEL)) for name, value in scores.items()
    }
    floor = simulated_ece(checked_p, draws=draws, seed=seed)
    return report | {"ece_floor": Estimate(float(floor.mean()), *_percentiles(floor, LEVEL))}


def _scores(probabilities: Floats, labels: Ints) -> dict[str, Weighed]:
    builders: dict[str, Callable[[Floats, Ints], Weighed]] = {
        "accuracy": accuracy_of,
        "f1_macro": f1_macro_of,
        "nll": nll_of,
        "brier": brier_of,
        "auc": auc_of,
        "aurc": aurc_of,
        "ece": ece_of("equal-width"),
        "ece_equal_mass": ece_of("equal-mass"),
        "ece_smooth": ece_of("smooth"),
        "ece_classwise": ece_of("classwise"),
    }
    if probabilities.shape[1] != 2:
        del builders["auc"]
    return {name: build(probabilities, labels) for name, build in builders.items()}


def _under_draws(scores: dict[str, Weighed], rows: int, draws: int, seed: int) -> dict[str, Floats]:
    """Each score under every draw; a draw is held as counts of rows, a few draws at a time."""
    parts: dict[str, list[Floats]] = {name: [] for name in scores}
    samples = _resampled(rows, draws, seed)
    for size in chunks(draws, rows):
        counts = np.stack([np.bincount(next(samples), minlength=rows) for _ in range(size)])
        for name, value in scores.items():
            parts[name].append(value(counts.astype(np.float64)))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _resampled(rows: int, draws: int, seed: int) -> Iterator[Ints]:
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        yield rng.integers(rows, size=rows)


def _percentiles(values: Floats, level: float) -> tuple[float, float]:
    tail = (1 - _checked_level(level)) / 2
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return np.nan, np.nan
    last = len(known) - 1
    # outward to a drawn value: interpolating between infinities would give NaN
    return float(known[int(np.floor(tail * last))]), float(known[int(np.ceil((1 - tail) * last))])


def _checked_level(level: float) -> float:
    if not 0 < float(as_floats(level, "level")) < 1:
        raise InvalidInput(f"level must lie between 0 and 1, got {level!r}")
    return float(level)

"""Expected calibration error in four kinds, the floor that chance puts under it, and its curve.

All kinds sum *gaps*, probability minus outcome, over rows of similar probability; they differ in what
"similar" means. A ``Pool`` is built from the probabilities once and then reads many draws of gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import Floats, Ints, checked, checked_count, checked_probabilities
from attnknn.metrics.scores import Weighed, confidence, grouped, hits, score, settled, sums
from attnknn.metrics.smooth import smooth_pool

Kind: TypeAlias = Literal["equal-width", "equal-mass", "smooth", "classwise"]
# weighted gaps (draws, n), weights (draws, n) -> error of each draw (draws,)
Pool: TypeAlias = Callable[[Floats, Floats], Floats]

CELLS = 250_000  # numbers held at once per array of draws, 2 MB in float64: what a processor has close by


@dataclass(frozen=True, slots=True)
class ReliabilityCurve:
    """One entry per equal-width bin of confidence; means are NaN where ``count`` is 0."""

    edges: Floats  # (bins + 1,)
    count: Ints  # (bins,)
    confidence: Floats  # (bins,), mean
    accuracy: Floats  # (bins,)


def ece(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    kind: Kind = "equal-width",
    bins: int = 15,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Expected calibration error: how far stated probability and observed frequency lie apart.

    Args:
        probabilities: Predictions, ``(n, classes)``.
        labels: True classes, ``(n,)``.
        kind: ``"equal-width"`` bins the largest probability, bins closed on the right, 0 in the first.
            ``"equal-mass"`` gives each bin the same number of rows; rows of equal confidence are shared
            between bins pro rata. ``"smooth"`` is the kernel-smoothed error of Blasiok and Nakkiran,
            which needs no bins. ``"classwise"`` is the mean over classes of the equal-width error of
            that class's probability.
        bins: Number of bins; unused by ``"smooth"``.
        sample_weight: How much each row counts.

    Example:
        >>> ece([[0.75, 0.25]] * 4, [0, 0, 0, 1])
        0.0
    """
    return score(ece_of(kind, bins), probabilities, labels, sample_weight)


def ece_floor(
    probabilities: ArrayLike,
    *,
    kind: Kind = "equal-width",
    bins: int = 15,
    draws: int = 1000,
    seed: int = 0,
) -> float:
    """Mean ECE of a perfectly calibrated model with these predictions: outcomes are drawn from them.

    Even such a model shows an ECE above 0 on finitely many rows; print this beside every ECE.
    """
    return float(simulated_ece(probabilities, kind=kind, bins=bins, draws=draws, seed=seed).mean())


def simulated_ece(
    probabilities: ArrayLike, *, kind: Kind = "equal-width", bins: int = 15, draws: int = 1000, seed: int = 0
) -> Floats:
    """ECE under ``draws`` sets of outcomes drawn from the predictions.

    ``"classwise"`` draws each class's outcomes apart from the others', which leaves the mean as it is.
    """
    checked_p = checked_probabilities(probabilities)
    draws = checked_count(draws, "draws")
    rng = np.random.default_rng(seed)
    each = []
    for stated, _ in _claims(checked_p, kind):
        pool = _pool(kind, stated, bins)
        each.append([_chance(pool, stated, size, rng) for size in chunks(draws, len(stated))])
    return np.asarray(np.mean([np.concatenate(parts) for parts in each], axis=0))


def reliability_curve(probabilities: ArrayLike, labels: ArrayLike, bins: int = 15) -> ReliabilityCurve:
    """Count, mean confidence and accuracy per equal-width bin, for drawing."""
    checked_p, checked_y = checked(probabilities, labels)
    bins = checked_count(bins, "bins")
    stated, hit = confidence(checked_p), hits(checked_p, checked_y)
    bin_of = equal_width(stated, bins)
    count = np.bincount(bin_of, minlength=bins)
    totals = sums(bin_of, np.stack([stated, hit.astype(np.float64)]), bins)
    means = np.divide(totals, count, out=np.full_like(totals, np.nan), where=count > 0)
    return ReliabilityCurve(np.linspace(0, 1, bins + 1), count.astype(np.int64), means[0], means[1])


def ece_of(kind: Kind, bins: int = 15) -> Callable[[Floats, Ints], Weighed]:
    """ECE of one kind as a score, ready for any row weights."""

    def build(probabilities: Floats, labels: Ints) -> Weighed:
        each = [
            (_pool(kind, stated, bins), stated - (labels == claimed))
            for stated, claimed in _claims(probabilities, kind)
        ]
        return lambda weights: np.mean([pool(weights * gap, weights) for pool, gap in each], axis=0)

    return build


def chunks(draws: int, rows: int) -> Iterator[int]:
    """Sizes that add up to ``draws``, each small enough for ``size * rows`` numbers in memory."""
    step = max(1, CELLS // rows)
    for start in range(0, draws, step):
        yield min(step, draws - start)


def equal_width(stated: Floats, bins: int) -> Ints:
    """Bin of each probability among ``(0, 1/bins], (1/bins, 2/bins], ...``; 0 joins the first."""
    edges = settled(np.arange(1, bins) / bins)
    return np.searchsorted(edges, stated, side="left").astype(np.int64)


def _claims(probabilities: Floats, kind: Kind) -> Iterator[tuple[Floats, Ints]]:
    """Each claim as (stated probability, the class it is about), both of shape (n,)."""
    if kind != "classwise":
        yield confidence(probabilities), probabilities.argmax(axis=1)
        return
    for c, column in enumerate(probabilities.T):
        yield settled(column), np.full(len(column), c)


def _pool(kind: Kind, stated: Floats, bins: int) -> Pool:
    if kind not in POOLS:
        raise InvalidInput(f"kind must be one of {', '.join(POOLS)}, got {kind!r}")
    return POOLS[kind](stated, checked_count(bins, "bins"))


def _equal_width_pool(stated: Floats, bins: int) -> Pool:
    binned = grouped(equal_width(stated, bins), bins)
    return lambda gaps, weights: np.asarray(np.abs(binned(gaps)).sum(axis=1) / weights.sum(axis=1))


def _equal_mass_pool(stated: Floats, bins: int) -> Pool:
    levels, group = np.unique(stated, return_inverse=True)
    cuts = np.linspace(0, 1, bins + 1)

    def pool(gaps: Floats, weights: Floats) -> Floats:
        mass, gap = (_running(sums(group, values, len(levels))) for values in (weights, gaps))
        # reading the running gap between rows is what shares a tied group between bins
        at_cuts = np.stack([np.interp(cuts * m[-1], m, g) for m, g in zip(mass, gap, strict=True)])
        return np.asarray(np.abs(np.diff(at_cuts, axis=1)).sum(axis=1) / mass[:, -1])

    return pool


def _running(values: Floats) -> Floats:
    return np.pad(np.cumsum(values, axis=1), ((0, 0), (1, 0)))


def _chance(pool: Pool, stated: Floats, draws: int, rng: np.random.Generator) -> Floats:
    outcomes = rng.random((draws, len(stated))) < stated
    return pool(stated - outcomes, np.ones((draws, len(stated))))


POOLS: dict[str, Callable[[Floats, int], Pool]] = {
    "equal-width": _equal_width_pool,
    "equal-mass": _equal_mass_pool,
    "smooth": lambda stated, bins: smooth_pool(stated),
    "classwise": _equal_width_pool,
}

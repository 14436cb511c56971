"""The prior's mass ``a`` in the vote ``(votes + a * prior) / (1 + a)``."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import (
    SUM_TOLERANCE,
    Floats,
    as_floats,
    checked_labels,
    checked_mass,
    checked_probabilities,
    checked_weight,
)
from attnknn.metrics.scores import true_probability

LEAST, MOST = 1e-6, 1e3
UNDECIDED = 1.0  # votes and prior count alike when no row can tell


def fit_prior_mass(
    votes: ArrayLike, labels: ArrayLike, prior: ArrayLike, sample_weight: ArrayLike | None = None
) -> float:
    """The mass ``a`` in [1e-6, 1e3] of least mean NLL.

    Rows that no ``a`` can change are left out: no neighbor was found (the answer is the prior), or the
    true class has neither vote nor prior. When no row is left the result is 1.

    Args:
        votes: Share of each class among the neighbors' weights, ``(n, classes)``; a row sums to 1, or
            to 0 where no neighbor was found.
        labels: True classes, ``(n,)``.
        prior: Class frequencies ``(classes,)``, or one prior per row ``(n, classes)``.
        sample_weight: How much each row counts, ``(n,)``.

    Example:
        >>> round(fit_prior_mass([[1.0, 0.0]] * 4, [0, 0, 0, 1], [0.5, 0.5]), 9)
        1.0
    """
    votes = _checked_votes(votes)
    known = checked_labels(labels, *votes.shape)
    vote = true_probability(votes, known)
    base = true_probability(_checked_prior(prior, votes.shape), known)
    weight = checked_weight(sample_weight, len(votes))
    telling = votes.any(axis=1) & (vote + base > 0) & (known >= 0) & (weight > 0)
    if not telling.any():
        return UNDECIDED
    return _root(vote[telling], base[telling], weight[telling])


def _root(vote: Floats, base: Floats, weight: Floats) -> float:
    from scipy.optimize import brentq

    share = weight / weight.sum()

    def slope(log_a: float) -> float:
        # NLL is convex in t = a / (1 + a), so its slope in t crosses 0 once
        a = np.exp(log_a)
        return float(share @ ((vote - base) * (1 + a) / (vote + a * base)))

    low, high = float(np.log(LEAST)), float(np.log(MOST))
    if slope(low) >= 0:
        return LEAST
    if slope(high) <= 0:
        return MOST
    return float(np.clip(np.exp(brentq(slope, low, high, xtol=1e-12)), LEAST, MOST))


def _checked_votes(votes: ArrayLike) -> Floats:
    mass = checked_mass(votes, "votes")
    total = mass.sum(axis=1)
    off = (np.abs(total - 1) > SUM_TOLERANCE) & (total != 0)
    if off.any():
        row = int(off.argmax())
        raise InvalidInput(f"each row of votes must sum to 1, or to 0, row {row} sums to {total[row]:.9g}")
    return mass


def _checked_prior(prior: ArrayLike, shape: tuple[int, ...]) -> Floats:
    checked = checked_probabilities(np.atleast_2d(as_floats(prior, "prior")), "prior")
    if checked.shape not in ((1, shape[1]), shape):
        raise InvalidInput(f"prior must have shape ({shape[1]},) or {tuple(shape)}, got {np.shape(prior)}")
    return np.broadcast_to(checked, shape)

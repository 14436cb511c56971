"""What k neighbors miss of attention over all rows: how much, a bound on it, and sampling that makes up for it.

Lazy Gumbel sampling: the row with the largest logit + Gumbel noise is a draw from the softmax of the logits. A row
beyond the k nearest wins only if its noise exceeds a known bar. How many rows do so is binomial and which ones is
chance, so no other row has to be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnknn.metrics import seed_interval

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

Sampler: TypeAlias = Callable[[Floats, int, np.random.Generator], tuple[int, int]]
"""Descending logits, k and a generator -> the place of the winner, and how many rows beyond k were looked at."""

FEWEST: Final = 5.0
"""Draws that each bin of a chi-square test must expect."""

MOST_ROWS: Final = 2000
"""More would leave too many of them without a win to test."""


def truncation_gaps(weights: Floats, rows: Ints, kept: Floats) -> Floats:
    """(queries,) total variation of ``kept`` weights of ``rows`` to those of all, less the weight left out."""
    spread = np.zeros_like(weights)
    np.put_along_axis(spread, rows, kept, axis=1)
    variation = np.abs(spread - weights).sum(axis=1) / 2
    gaps: Floats = variation - (1 - np.take_along_axis(weights, rows, axis=1).sum(axis=1))
    return gaps


def certificate(top: Floats, n: int, bias: float = 0.0) -> Floats:
    """(queries,) the most that the rows outside the k nearest can have of the weight of all n.

    Args:
        top: (queries, k) logits of the nearest, descending.
        n: Rows of the bank.
        bias: What learned biases add to the logit of a row outside at most.

    >>> certificate(np.zeros((1, 3)), 4).round(6).tolist()
    [0.25]
    """
    from scipy.special import expit, logsumexp

    outside = n - top.shape[1]
    if outside < 1:
        return np.zeros(len(top))
    bounds: Floats = expit(math.log(outside) + top[:, -1] + bias - logsumexp(top, axis=1))
    return bounds


def missing_mass(weights: Floats, rows: Ints, bias: float = 0.0) -> Floats:
    """(queries,) weight outside ``rows``, if all that lies there had ``bias`` added to its logit."""
    from scipy.special import expit

    outside = weights.copy()
    np.put_along_axis(outside, rows, 0.0, axis=1)
    inside = np.take_along_axis(weights, rows, axis=1).sum(axis=1)
    with np.errstate(divide="ignore"):  # a side without weight
        missing: Floats = expit(np.log(outside.sum(axis=1)) + bias - np.log(inside))
    return missing


@dataclass(frozen=True, slots=True)
class Sampled:
    """What many draws gave."""

    counts: Ints  # (n,) how often each place won
    looked: Ints  # (draws,) rows beyond the nearest that each draw looked at


def lazy_winner(logits: Floats, k: int, random: np.random.Generator) -> tuple[int, int]:
    """One draw from the softmax of descending logits; see :data:`Sampler`."""
    noisy = logits[:k] + random.gumbel(size=k)
    winner = int(noisy.argmax())
    best = float(noisy[winner])
    bar = best - float(logits[k - 1])
    beyond = len(logits) - k
    looked = int(random.binomial(beyond, -math.expm1(-math.exp(-bar))))
    if not looked:
        return winner, 0
    places = k + random.choice(beyond, looked, replace=False, shuffle=False)
    tried = logits[places] + gumbel_above(bar, looked, random)
    at = int(tried.argmax())
    return (int(places[at]) if tried[at] > best else winner), looked


def gumbel_above(bar: float, size: int, random: np.random.Generator) -> Floats:
    """Gumbel noise, given that it exceeds ``bar``.

    Gumbel noise is minus the logarithm of exponential noise, which is here below exp(-bar); drawn that way a high
    bar costs no digits.
    """
    share = 1 - random.random(size)  # above 0, whose logarithm is finite
    noise: Floats = -np.log(-np.log1p(share * math.expm1(-math.exp(-bar))))
    return noise


def sample(
    logits: Floats, k: int, draws: int, random: np.random.Generator, sampler: Sampler = lazy_winner
) -> Sampled:
    """Many draws from the softmax of descending logits (n,)."""
    drawn = np.array([sampler(logits, k, random) for _ in range(draws)], np.int64)
    return Sampled(np.bincount(drawn[:, 0], minlength=len(logits)).astype(np.int64), drawn[:, 1])


def chi_square(counts: Ints, chances: Floats) -> tuple[float, int]:
    """The p-value of counts if these were the chances, and the number of bins, those that expect little pooled.

    NaN where a single bin is left: any counts fit it.
    """
    from scipy.stats import chisquare

    expected = chances * counts.sum()
    starts = pooled(expected)
    if len(starts) < 2:
        return math.nan, len(starts)
    tested = chisquare(np.add.reduceat(counts, starts), np.add.reduceat(expected, starts))
    return float(tested.pvalue), len(starts)


def pooled(expected: Floats, fewest: float = FEWEST) -> Ints:
    """Where bins begin when neighbors are joined until each expects at least ``fewest``.

    >>> pooled(np.array([9.0, 3.0, 2.5, 1.0])).tolist()
    [0, 1]
    """
    starts, held = [0], 0.0
    for at, each in enumerate(expected):
        if held >= fewest:
            starts.append(at)
            held = 0.0
        held += float(each)
    if held < fewest and len(starts) > 1:
        starts.pop()
    return np.array(starts, np.int64)


def sampling_numbers(
    logits: Floats, k: int, draws: int, random: np.random.Generator, sampler: Sampler = lazy_winner
) -> dict[str, Any]:
    """How well draws fit the softmax, and how many rows they look at, for the query whose tail weighs most.

    Args:
        logits: (queries, n), n above k; of many rows, some are drawn.
        k: Nearest rows that are always looked at; at most half where rows are drawn.
        draws: How many.
        random: Of everything drawn.
        sampler: What to test.
    """
    from scipy.special import softmax

    rows = logits.shape[1]
    if rows > MOST_ROWS:
        logits = logits[:, random.choice(rows, MOST_ROWS, replace=False)]
        rows, k = MOST_ROWS, min(k, MOST_ROWS // 2)
    ranked = -np.sort(-logits, axis=1)
    weights = softmax(ranked, axis=1)
    at = int(weights[:, k:].sum(axis=1).argmax())
    drawn = sample(ranked[at], k, draws, random, sampler)
    p, bins = chi_square(drawn.counts, weights[at])
    return {
        "n": rows,
        "k": k,
        "draws": draws,
        "p": p,
        "bins": bins,
        "tail": float(weights[at, k:].sum()),
        "mean_looked": float(drawn.looked.mean()),
        "standard_error": float(drawn.looked.std()) / math.sqrt(draws),
        "bound": (rows - k) / (k + 1),
    }


def tail_numbers(
    logits: Floats, rows: Ints, labels: Ints, classes: int, random: np.random.Generator, draws: int = 20
) -> dict[str, Any]:
    """Mean total variation of class probabilities to those of all rows: of the nearest alone, and with a tail.

    Args:
        logits: (queries, n).
        rows: (queries, k) nearest rows, k below n.
        labels: (n,) from 0 to ``classes - 1``.
        classes: How many there are.
        random: Of the tails.
        draws: Tails of each query; a tail has sqrt(n) rows.
    """
    (queries, n), k = logits.shape, rows.shape[1]
    size = min(round(math.sqrt(n)), n - k)
    errors = np.array(
        [tail_errors(logits[q], rows[q], labels, classes, size, draws, random) for q in range(queries)]
    )
    cut, sampled = errors.mean(axis=0).tolist()
    gap = asdict(seed_interval(errors[:, 1] - errors[:, 0]))
    asked = {"n": n, "k": k, "tail_size": size, "queries": queries, "draws": draws}
    return {**asked, "truncation": cut, "with_tail": sampled, "difference": gap}


def tail_errors(
    logits: Floats, near: Ints, labels: Ints, classes: int, size: int, draws: int, random: np.random.Generator
) -> tuple[float, float]:
    """Total variation of one query's class probabilities to those of all rows: truncated, and with a tail.

    The tail is ``size`` rows outside ``near``, each standing for as many as there are for each drawn; its total
    variation is the mean over draws.
    """
    raw = np.exp(logits - logits.max())
    beyond = np.delete(np.arange(len(raw)), near)
    picked = np.stack([random.choice(beyond, size, replace=False, shuffle=False) for _ in range(draws)])
    inside = np.bincount(labels[near], raw[near], classes)
    cells = labels[picked] + classes * np.arange(draws)[:, None]
    outside = np.bincount(cells.ravel(), raw[picked].ravel(), classes * draws).reshape(draws, classes)
    full = np.bincount(labels, raw, classes) / raw.sum()
    mixed = np.vstack([inside, inside + len(beyond) / size * outside])
    errors = np.abs(mixed / mixed.sum(axis=1, keepdims=True) - full).sum(axis=1) / 2
    return float(errors[0]), float(errors[1:].mean())

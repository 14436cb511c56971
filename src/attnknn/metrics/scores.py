"""Scores of single predictions: accuracy, F1, NLL, Brier, AUC and the risk-coverage area.

Each score is built once from the data (``*_of``) and then read under many row weights: none at all,
the caller's, or the counts of a bootstrap draw. So one formula serves all three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import UNKNOWN, Floats, Ints, checked, checked_weight

_FEW = 40  # groups up to which a matrix product is faster than counting

# row weights (draws, n) -> the score under each of them (draws,)
Weighed: TypeAlias = Callable[[Floats], Floats]


def accuracy(probabilities: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Share of rows whose most probable class is the label; the first class wins a tie.

    Example:
        >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
        0.5
    """
    return score(accuracy_of, probabilities, labels, sample_weight)


def f1_macro(probabilities: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean F1 over the known classes that occur among the labels or the predictions."""
    return score(f1_macro_of, probabilities, labels, sample_weight)


def nll(probabilities: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Mean of ``-log p(label)``. Nothing is clipped: one true class with probability 0 makes it infinite.

    Example:
        >>> nll([[0.5, 0.5], [1.0, 0.0]], [0, 1])
        inf
    """
    return score(nll_of, probabilities, labels, sample_weight)


def brier(probabilities: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Squared error summed over classes and averaged over rows, from 0 to 2.

    A class that the model does not know is one more column, predicted 0.
    """
    return score(brier_of, probabilities, labels, sample_weight)


def auc(probabilities: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Area under the ROC curve: how often a row of the class outranks one of the rest; a tie is half.

    With two classes this ranks by the second column, with more it is the plain mean over the classes,
    each against the rest. Rows of a class that the model does not know are left out. NaN when a class
    has no row.
    """
    return score(auc_of, probabilities, labels, sample_weight)


def aurc(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Area under the risk-coverage curve; lower is better.

    Rows are answered from the most confident (largest probability) down. The area is
    ``(1/n) * sum_i risk_i`` with ``risk_i`` the share of errors among the first ``i`` rows. Rows of equal
    confidence have no order, so each stands for their mean: the expected area over all their orders.
    """
    return score(aurc_of, probabilities, labels, None)


def score(
    build: Callable[[Floats, Ints], Weighed],
    probabilities: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None,
) -> float:
    """Check the inputs, then read the score under one set of row weights."""
    checked_p, checked_y = checked(probabilities, labels)
    weight = checked_weight(sample_weight, len(checked_p))
    if not weight.any():
        raise InvalidInput(f"sample_weight must not be all zero, got {len(weight)} zeros")
    return float(build(checked_p, checked_y)(weight[None, :])[0])


def accuracy_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Accuracy, ready for any row weights."""
    return _mean_of(hits(probabilities, labels).astype(np.float64))


def f1_macro_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Macro F1, ready for any row weights."""
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    # rows that count for no class are of one more
    right, true = np.where(predicted == labels, predicted, classes), np.where(labels == UNKNOWN, classes, labels)
    each = [grouped(group, classes + 1) for group in (right, predicted, true)]

    def value(weights: Floats) -> Floats:
        both, said, is_so = (sums_of(weights)[:, :classes] for sums_of in each)
        either = said + is_so
        present = either > 0
        f1 = np.divide(2 * both, either, out=np.zeros_like(both), where=present)
        return np.asarray(f1.sum(axis=1) / present.sum(axis=1))

    return value


def nll_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Negative log likelihood, ready for any row weights."""
    true = true_probability(probabilities, labels)
    impossible = true == 0
    # 0 - log(1) is 0.0, where -log(1) would be -0.0
    mean = _mean_of(0.0 - np.log(np.where(impossible, 1.0, true)))

    def value(weights: Floats) -> Floats:
        # inf * 0 is NaN, so infinity joins only where such a row was drawn
        drawn = (weights[:, impossible] > 0).any(axis=1)
        return np.where(drawn, np.inf, mean(weights))

    return value


def brier_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Brier score, ready for any row weights."""
    gaps = probabilities.copy()
    known = labels != UNKNOWN
    gaps[np.flatnonzero(known), labels[known]] -= 1
    return _mean_of((gaps**2).sum(axis=1) + ~known)


def auc_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Area under the ROC curve, ready for any row weights."""
    classes = probabilities.shape[1]
    known = labels != UNKNOWN
    ranked = [1] if classes == 2 else range(classes)
    each = [_one_against_rest(probabilities[:, c], labels == c, known) for c in ranked]
    return lambda weights: np.mean([value(weights) for value in each], axis=0)


def aurc_of(probabilities: Floats, labels: Ints) -> Weighed:
    """Risk-coverage area, ready for whole-number row weights (how often each row occurs)."""
    surest = -confidence(probabilities)
    order = np.argsort(surest, kind="stable")
    wrong = order[~hits(probabilities, labels)[order]]
    surer, as_sure = (np.searchsorted(surest[order], surest[wrong], side) for side in ("left", "right"))

    def value(weights: Floats) -> Floats:
        answered = _running(weights.T[order])  # (places + 1, draws), each draw down a column
        before, after, every = (answered[at].astype(np.int64) for at in (surer, as_sure, -1))
        place = np.arange(every.max() + 1)
        # an error at place i of n is in the risks at i and after it: 1/i + ... + 1/n
        harmonic = np.concatenate([[0.0], np.cumsum(1 / place[1:])])
        area = place * (1 + harmonic[-1] - harmonic)  # of errors at all places up to one, in the longest draw
        count = after - before
        gained = area[after] - area[before] - count * (harmonic[-1] - harmonic[every])
        shares = np.divide(weights.T[wrong], count, out=np.zeros_like(gained), where=count > 0)
        return np.asarray((shares * gained).sum(axis=0) / every)

    return value


def sums(groups: NDArray[np.intp] | Ints, weights: Floats, size: int) -> Floats:
    """Weight of each group under each draw: ``(draws, n) -> (draws, size)``."""
    # no rows at all count as whole numbers in NumPy, hence the cast
    return np.stack([np.bincount(groups, row, size) for row in weights]).astype(np.float64, copy=False)


def grouped(groups: NDArray[np.intp] | Ints, size: int) -> Callable[[Floats], Floats]:
    """The same, ready for any row weights."""
    if size > _FEW:
        return lambda weights: sums(groups, weights, size)
    within = members(groups, size)
    return lambda weights: weights @ within


def members(groups: NDArray[np.intp] | Ints, size: int) -> Floats:
    """(n, size): 1 where a row is of a group."""
    return np.asarray(groups[:, None] == np.arange(size), np.float64)


def hits(probabilities: Floats, labels: Ints) -> NDArray[np.bool_]:
    """Where the most probable class is the label."""
    return np.asarray(probabilities.argmax(axis=1) == labels)


def confidence(probabilities: Floats) -> Floats:
    """Largest probability of each row."""
    return settled(probabilities.max(axis=1))


def settled(probability: Floats) -> Floats:
    """Probability without rounding noise: 9 votes of 1/15 and 0.6 are one value, and none exceeds 1."""
    return np.minimum(np.round(probability, 12), 1.0)


def true_probability(probabilities: Floats, labels: Ints) -> Floats:
    """Probability given to the label, at most 1; 0 for a class that the model does not know."""
    taken = probabilities[np.arange(len(labels)), labels]  # UNKNOWN reads the last column, replaced below
    return np.where(labels == UNKNOWN, 0.0, np.minimum(taken, 1.0))


def _mean_of(values: Floats) -> Weighed:
    return lambda weights: np.asarray(weights @ values / weights.sum(axis=1))


def _one_against_rest(ranking: Floats, positive: NDArray[np.bool_], known: NDArray[np.bool_]) -> Weighed:
    inside, outside = np.flatnonzero(positive), np.flatnonzero(known & ~positive)
    outside = outside[np.argsort(ranking[outside], kind="stable")]
    low, high = (np.searchsorted(ranking[outside], ranking[inside], side) for side in ("left", "right"))

    def value(weights: Floats) -> Floats:
        beaten, chosen = _running(weights.T[outside]), weights.T[inside]
        pairs = chosen.sum(axis=0) * beaten[-1]
        won = (chosen * (beaten[low] + beaten[high])).sum(axis=0) / 2
        return np.asarray(np.divide(won, pairs, out=np.full_like(won, np.nan), where=pairs > 0))

    return value


def _running(values: Floats) -> Floats:
    """Sums down each column, from none to all."""
    found = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=found[1:])
    return found

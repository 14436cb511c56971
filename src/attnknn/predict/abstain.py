"""Saying nothing where the confidence is too low."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput

Floats = NDArray[np.float64]


def abstained(
    predicted: NDArray[Any], confidence: Floats, abstain_below: float, abstain_label: Any
) -> NDArray[Any]:
    """The labels, with ``abstain_label`` where the confidence is below the threshold."""
    if np.isnan(abstain_below):
        raise InvalidInput("abstain_below is NaN")
    label = np.asarray(abstain_label)
    if abstain_label is None or label.dtype.kind != predicted.dtype.kind:
        predicted = predicted.astype(object)
    else:
        predicted = predicted.astype(np.promote_types(label.dtype, predicted.dtype))
    predicted[confidence < abstain_below] = abstain_label
    return predicted


def threshold(confidence: Floats, wrong: NDArray[np.bool_], max_error: float) -> float:
    """The lowest confidence to demand so that at most ``max_error`` of the answers are wrong; else infinity.

    >>> threshold(np.array([0.9, 0.8, 0.7]), np.array([False, False, True]), 0.1)
    0.8
    """
    order = np.argsort(-confidence, kind="stable")
    errors = np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)
    last_of_tie = np.append(np.diff(confidence[order]) != 0, True)
    fine = np.flatnonzero((errors <= max_error) & last_of_tie)
    return float(confidence[order][fine[-1]]) if len(fine) else float("inf")

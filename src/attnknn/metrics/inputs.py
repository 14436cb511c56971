"""What comes in is checked once, here; messages quote what came."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.errors import InvalidInput

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

SUM_TOLERANCE = 1e-6  # what a softmax in float32 may miss
UNKNOWN = -1  # stands for every label outside 0 .. classes - 1


def checked(probabilities: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """Both inputs, validated; labels the model does not know become ``UNKNOWN``."""
    checked_p = checked_probabilities(probabilities)
    return checked_p, checked_labels(labels, *checked_p.shape)


def checked_probabilities(values: ArrayLike, name: str = "probabilities") -> Floats:
    """Values as float64 of shape ``(n, classes)``: finite, not negative, each row summing to 1."""
    array = checked_mass(values, name)
    sums = array.sum(axis=1)
    off = np.abs(sums - 1) > SUM_TOLERANCE
    if off.any():
        row = int(off.argmax())
        raise InvalidInput(f"each row of {name} must sum to 1, row {row} sums to {sums[row]:.9g}")
    return array


def checked_mass(values: ArrayLike, name: str) -> Floats:
    """Values as float64 of shape ``(n, classes)``, finite and not negative."""
    array = as_floats(values, name)
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidInput(f"{name} must have shape (n, classes) with at least one of each, got {array.shape}")
    if (array < 0).any():
        row, column = np.argwhere(array < 0)[0]
        raise InvalidInput(
            f"{name} must not be negative, got {array[row, column]:.9g} at row {row}, column {column}"
        )
    return array


def checked_labels(labels: ArrayLike, rows: int, classes: int) -> Ints:
    """Labels as int64 of shape ``(rows,)``; those outside ``0 .. classes - 1`` become ``UNKNOWN``."""
    array = np.asarray(labels)
    if array.shape != (rows,):
        raise InvalidInput(f"labels must have shape ({rows},) like the rows, got {array.shape}")
    if array.dtype.kind not in "iub":
        raise InvalidInput(f"labels must be integers from 0 to {classes - 1}, got dtype {array.dtype}")
    whole = array.astype(np.int64)
    return np.where((whole >= 0) & (whole < classes), whole, UNKNOWN)


def checked_weight(weight: ArrayLike | None, rows: int) -> Floats:
    """Row weights of shape ``(rows,)``, finite and not negative; all ones when ``weight`` is None."""
    if weight is None:
        return np.ones(rows)
    array = as_floats(weight, "sample_weight")
    if array.shape != (rows,):
        raise InvalidInput(f"sample_weight must have shape ({rows},) like the rows, got {array.shape}")
    if (array < 0).any():
        raise InvalidInput(f"sample_weight must not be negative, got {array.min():.9g}")
    return array


def checked_count(value: int, name: str) -> int:
    """A whole number of at least 1, as ``int``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def as_floats(values: ArrayLike, name: str) -> Floats:
    """Values as float64; refuses what is not a number and what is not finite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must be numbers: {error}") from error
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InvalidInput(f"{name} must be finite, got {array[where]} at index {where}")
    return array

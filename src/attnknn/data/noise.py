"""Label noise, for studies of what wrong labels do."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.errors import InvalidInput

NoiseKind = Literal["symmetric", "asymmetric"]


def flip_labels(
    codes: ArrayLike,
    rate: float,
    *,
    kind: NoiseKind = "symmetric",
    classes: int,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Give a share of the rows the label of another class.

    Exactly ``rate`` of the rows, to the nearest one, are flipped, and each to a class that it did not have:
    ``result != codes`` says which.

    Args:
        codes: Class of each row, 0 to ``classes - 1``.
        rate: Share of the rows, from 0 to 1.
        kind: ``"symmetric"``: every other class is as likely; ``"asymmetric"``: class c becomes c + 1, and the
            last one 0.
        classes: How many classes there are.
        random: Draws the rows and their new labels.

    >>> flip_labels([0, 1, 2, 0], 1.0, kind="asymmetric", classes=3, random=np.random.default_rng(0)).tolist()
    [1, 2, 0, 1]
    """
    labels = checked_codes(codes, classes)
    if not 0 <= rate <= 1:
        raise InvalidInput(f"rate must be from 0 to 1, got {rate=}")
    if kind not in ("symmetric", "asymmetric"):
        raise InvalidInput(f"kind must be 'symmetric' or 'asymmetric', got {kind=}")
    rows = random.choice(len(labels), size=int(np.floor(rate * len(labels) + 0.5)), replace=False)
    steps = random.integers(1, classes, size=len(rows)) if kind == "symmetric" else 1
    labels[rows] = (labels[rows] + steps) % classes
    return labels


def checked_codes(codes: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Classes as a new array of whole numbers, at least two of them to choose from."""
    if classes < 2:
        raise InvalidInput(f"two classes are needed at least, got {classes=}")
    given = np.asarray(codes)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InvalidInput(f"codes must be whole numbers, one for each row, got {given.dtype} of {given.shape}")
    labels: NDArray[np.int64] = given.astype(np.int64)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise InvalidInput(f"codes must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    return labels

"""Long tails, for studies of what rare classes suffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.data.noise import checked_codes
from attnknn.errors import InvalidInput


def long_tail(codes: ArrayLike, ratio: float, *, classes: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows that stay, ascending, when class c keeps ``n_max * ratio^(c / (classes - 1))`` of its rows.

    ``n_max`` is the size of the largest class. A class keeps at least one row, and all where it has fewer.

    Args:
        codes: Class of each row, 0 to ``classes - 1``.
        ratio: Size of the last class over that of the first, above 0 and at most 1.
        classes: How many classes there are.
        random: Draws the rows that stay.

    >>> codes = [0, 0, 0, 0, 1, 1, 1, 1]
    >>> len(long_tail(codes, 0.5, classes=2, random=np.random.default_rng(0)))
    6
    """
    labels = checked_codes(codes, classes)
    if not 0 < ratio <= 1:
        raise InvalidInput(f"ratio must be above 0 and at most 1, got {ratio=}")
    sizes = np.bincount(labels, minlength=classes)
    wanted = sizes.max(initial=0) * ratio ** (np.arange(classes) / (classes - 1))
    counts = np.minimum(sizes, np.maximum(1, np.floor(wanted + 0.5).astype(np.int64)))
    kept = [random.choice(np.flatnonzero(labels == each), counts[each], replace=False) for each in range(classes)]
    return np.sort(np.concatenate(kept)).astype(np.int64)

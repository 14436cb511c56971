"""An array that grows by appending, without a copy of everything each time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Rows of one dtype and shape; ``values`` is a view of what is there now.

    >>> numbers = GrowingArray(np.int64)
    >>> numbers.extend([1, 2, 3])
    >>> numbers.values.tolist()
    [1, 2, 3]
    """

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self._room: NDArray[Any] = np.empty((0, *shape), dtype)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def values(self) -> NDArray[Any]:
        """The rows, as a writable view."""
        return self._room[: self._rows]

    def extend(self, rows: Any) -> None:
        """Append rows; a wider dtype widens the array."""
        rows = np.asarray(rows)
        if len(rows):
            self.widen(rows.dtype)
        needed = self._rows + len(rows)
        if needed > len(self._room):
            room = np.empty((max(needed, self._rows * 3 // 2), *self._room.shape[1:]), self._room.dtype)
            room[: self._rows] = self.values
            self._room = room
        self._room[self._rows : needed] = rows
        self._rows = needed

    def widen(self, dtype: DTypeLike) -> None:
        """Make room for values of ``dtype`` without loss."""
        self._room = self._room.astype(np.promote_types(dtype, self._room.dtype), copy=False)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the rows where ``mask`` is False."""
        self._room = self.values[mask]
        self._rows = len(self._room)

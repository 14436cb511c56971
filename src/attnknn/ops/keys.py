"""Keys laid out for exact search, and what a search gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.ops import fused_search, kernels
from attnknn.ops.similarity import Metric, of_usual_size

NO_ROW: Final = torch.iinfo(torch.int64).max
"""Stands where there is no neighbor. It is out of every range: indexing with it raises."""

SLICE: Final = 8192
"""Keys that are converted to float64 at a time."""

MAX_NORM: Final = 1e18
"""Longest vector of a bank or a search: the square of anything longer may leave the range of float32."""

_NORMAL: Final = 1e-30  # the square of a length that float32 holds with all of its digits
_LENGTHS_APART: Final = 1e-5  # at most: those of a table in float32, and those that it was made of


class TopK(NamedTuple):
    """The nearest keys of each query, nearest first; ``NO_ROW`` and infinity where there are too few."""

    rows: Tensor  # (queries, k), int64
    distances: Tensor  # (queries, k), float64 (float32 on MPS)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys laid out for search: centered, transposed, with the offset of each score as a last row.

    The score of query q and key x is ``q.x + offset``; for ``l2`` the offset is ``-|x|^2 / 2``, so that the
    largest score is the nearest key. An offset of minus infinity hides a key.
    """

    vectors: Tensor  # (n, d), as given, or for cosine of a usual size
    table: Tensor  # (d + 1, n), float32
    center: Tensor  # (d,)
    longest: float  # no centered key is longer
    metric: Metric
    _narrow: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies lay out anew what they need: their table has another history."""
        return Keys, (self.vectors, self.table, self.center, self.longest, self.metric)

    @property
    def rows(self) -> int:
        """How many keys there are, hidden ones included."""
        return self.table.shape[1]

    def centered(self, vectors: Tensor) -> Tensor:
        """Vectors as the scores see them, in the widest float the device has."""
        return kernels.centered(vectors, self.center, self.metric)

    def narrow(self) -> tuple[Tensor, bool]:
        """The keys in float16, the longest of length 1, and whether all offsets are 0.

        They are made once for as long as the table is not written to.
        """
        version = -1 if self.table.is_inference() else self.table._version
        if version < 0 or not self._narrow or self._narrow[0] != version:
            dim = len(self.table) - 1
            made = torch.zeros(
                fused_search.room_for(self.rows, dim), dtype=torch.float16, device=self.table.device
            )
            for at in range(0, self.rows, 32 * SLICE):
                stop = min(at + 32 * SLICE, self.rows)
                hidden = self.table[-1:, at:stop] == -torch.inf  # which may be longer than any 16-bit number
                made[at:stop, :dim] = (self.table[:-1, at:stop] / self.scale).masked_fill(hidden, 0.0).T
            self._narrow[:] = [version, (made, not bool(self.table[-1].any()))]
        table, even = self._narrow[1]
        return table, even

    @property
    def scale(self) -> float:
        """What makes lengths at most 1; not 0."""
        return max(self.longest, torch.finfo(torch.float32).tiny)

    def longest_shown(self) -> float:
        """A length that no key exceeds which is not hidden, from the table."""
        if not self.rows:
            return 0.0
        hidden = self.table[-1] == -torch.inf
        lowest = -float(self.table[-1].masked_fill(hidden, 0.0).min())
        if self.metric == "l2" and lowest >= _NORMAL:
            return (1 + _LENGTHS_APART) * math.sqrt(2 * lowest)
        # Squares of small numbers are 0 in float32.
        lengths = torch.linalg.vector_norm(self.table[:-1], dim=0, dtype=kernels.wide_float(self.table.device))
        return (1 + _LENGTHS_APART) * float(lengths.masked_fill(hidden, 0.0).max())

    def between(self, start: int, stop: int) -> Keys:
        """The keys of some rows, sharing memory."""
        return replace(self, vectors=self.vectors[start:stop], table=self.table[:, start:stop])


@torch.no_grad()
def prepare(vectors: Tensor, metric: Metric = "l2", out: Tensor | None = None) -> Keys:
    """Lay keys (n, d) out for :func:`exact_topk`, in the first columns of ``out`` where it is given."""
    vectors = of_usual_size(vectors) if metric == "cosine" else vectors
    rows, dim = vectors.shape
    center = torch.zeros(dim, dtype=kernels.wide_float(vectors.device), device=vectors.device)
    if metric == "l2" and rows:
        center = vectors.mean(dim=0, dtype=center.dtype)
    table = kernels.empty(dim + 1, rows, device=vectors.device) if out is None else out[:, :rows]
    keys = Keys(vectors, table, center, 0.0, metric)
    return replace(keys, longest=fill(keys, 0, vectors))


def fill(keys: Keys, start: int, vectors: Tensor) -> float:
    """Write the layout of ``vectors`` into the table from column ``start`` on; returns their longest norm."""
    longest = 0.0
    for at in range(0, len(vectors), SLICE):
        block = keys.centered(vectors[at : at + SLICE])
        norms = kernels.lengths(block)
        columns = slice(start + at, start + at + len(block))
        keys.table[:-1, columns] = block.T
        keys.table[-1, columns] = -norms.square() / 2 if keys.metric == "l2" else 0.0
        most = float(norms.max())
        if not most <= 4 * MAX_NORM:  # the distance of two such is twice as long, and a mean is rounded
            raise InvalidInput(f"keys must be finite and no longer than {MAX_NORM:g}")
        longest = max(longest, most)
    return longest

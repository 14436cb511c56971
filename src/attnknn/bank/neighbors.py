"""What a search returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Id = str | int


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows of each query, nearest first; every array is (queries, k).

    Where ``found`` is False there is no neighbor: the distance is infinite, the id None, and row and label
    are a number so large that indexing with it raises. Rows hold until the bank is next edited or saved;
    ids hold for good.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    distances: NDArray[np.float64]
    found: NDArray[np.bool_]
    weights: NDArray[np.float64] | None  # of the rows themselves; None where each counts the same
    names: Sequence[Id] = field(repr=False)  # the id of each row of the bank, as it stood at the search

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def k(self) -> int:
        """How many neighbors each query has: what was asked for, or all rows where the bank holds fewer."""
        return int(self.rows.shape[1])

    def take(self, at: NDArray[np.int64] | slice) -> Neighbors:
        """Those of some of the queries."""
        weights = None if self.weights is None else self.weights[at]
        return Neighbors(self.rows[at], self.labels[at], self.distances[at], self.found[at], weights, self.names)

    @cached_property
    def ids(self) -> NDArray[np.object_]:
        """The ids; made when first asked for, since a prediction needs none."""
        ids: NDArray[Any] = np.empty(self.rows.shape, object)
        flat = [
            self.names[row] if found else None
            for row, found in zip(self.rows.ravel().tolist(), self.found.ravel().tolist(), strict=True)
        ]
        ids.ravel()[:] = flat
        return ids


def joined(parts: Sequence[Neighbors]) -> Neighbors:
    """Answers to several batches as one; they come from one bank at one moment."""
    weights = None if parts[0].weights is None else np.concatenate([np.asarray(part.weights) for part in parts])
    return Neighbors(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.distances for part in parts]),
        np.concatenate([part.found for part in parts]),
        weights,
        parts[0].names,
    )

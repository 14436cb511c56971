"""How a bank is searched: what every backend promises, and the backends by name."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnknn.bank.exact import ExactIndex
from attnknn.errors import InvalidInput
from attnknn.ops.keys import TopK
from attnknn.ops.similarity import Metric


class Index(Protocol):
    """What every backend promises; ``tests/contracts/test_bank.py`` holds each to it."""

    def rebuild(self, vectors: NDArray[Any]) -> None:
        """Index all rows anew."""

    def append(self, vectors: NDArray[Any], start: int) -> None:
        """Rows from ``start`` on are new. ``vectors`` holds all rows, here and below."""

    def replace(self, vectors: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """The vectors of some rows have changed."""

    def hide(self, rows: NDArray[np.int64]) -> None:
        """Never find these rows again."""

    def search(self, queries: NDArray[Any], k: int, leave_out: Tensor | None) -> TopK:
        """The k nearest rows that are not hidden."""

    def to_bytes(self) -> bytes | None:
        """What is worth saving of the index, if anything."""

    def restore(self, content: bytes | None, vectors: NDArray[Any]) -> None:
        """Index all rows, from what was saved if that helps."""


INDEXES = ("exact", "flat", "hnsw", "ivf")


def make_index(index: str, dim: int, metric: Metric, device: str) -> Index:
    """An empty index."""
    if index not in INDEXES:
        raise InvalidInput(f"index must be one of {', '.join(INDEXES)}, got {index!r}")
    if index == "exact":
        return ExactIndex(dim, metric, device)
    from attnknn.bank import faiss  # slow to import, and optional

    kinds = {"flat": faiss.FlatIndex, "hnsw": faiss.HnswIndex, "ivf": faiss.IvfIndex}
    return kinds[index](dim, metric)

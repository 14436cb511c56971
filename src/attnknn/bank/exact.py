"""Exhaustive search in torch: no FAISS needed, the reference for every other backend, on CPU, CUDA or MPS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.ops import kernels
from attnknn.ops.keys import Keys, TopK, fill, prepare
from attnknn.ops.select import exact_topk
from attnknn.ops.similarity import Metric


class ExactIndex:
    """Finds the true nearest rows. Holds each vector twice: by rows to read it, by columns to search it."""

    def __init__(self, dim: int, metric: Metric, device: str = "cpu") -> None:
        self.metric = metric
        self.device = torch.device(device)
        self._table = torch.empty(dim + 1, 0, device=self.device)  # with room for more columns
        self._keys: Keys = prepare(torch.empty(0, dim, device=self.device), metric)

    def rebuild(self, vectors: NDArray[Any]) -> None:
        """Lay all rows out anew, with room for half as many again."""
        held = self._held(vectors)
        if self._table.shape[1] < len(held) or self._table.shape[1] > 4 * len(held):
            self._table = kernels.empty(held.shape[1] + 1, len(held) + len(held) // 2, device=self.device)
        self._keys = prepare(held, self.metric, out=self._table)

    def append(self, vectors: NDArray[Any], start: int) -> None:
        """Rows from ``start`` on are new. ``vectors`` holds all rows, here and below."""
        if len(vectors) > self._table.shape[1]:
            hidden = self._hidden()
            self.rebuild(vectors)
            self.hide(hidden)
            return
        held = self._held(vectors)
        self._keys = replace(self._keys, vectors=held, table=self._table[:, : len(held)])
        self._write(start, held[start:])

    def replace(self, vectors: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """The vectors of some rows have changed."""
        held = self._held(vectors)
        self._keys = replace(self._keys, vectors=held)
        for row in rows.tolist():
            self._write(row, held[row : row + 1])

    def hide(self, rows: NDArray[np.int64]) -> None:
        """Never find these rows again."""
        self._keys.table[-1, torch.from_numpy(rows).to(self.device)] = -torch.inf
        if self.metric == "l2":  # a lone remote row must not loosen the bound for ever
            self._keys = replace(self._keys, longest=min(self._keys.longest, self._keys.longest_shown()))

    def search(self, queries: NDArray[Any], k: int, leave_out: Tensor | None) -> TopK:
        """The k nearest rows that are not hidden."""
        asked = torch.from_numpy(queries).to(self.device)
        pairs = None if leave_out is None else leave_out.to(self.device)
        found = exact_topk(asked, self._keys, k, leave_out=pairs)
        return TopK(found.rows.cpu(), found.distances.cpu().double())

    def to_bytes(self) -> None:
        """Nothing worth keeping: the layout is made again from the vectors."""
        return

    def restore(self, content: bytes | None, vectors: NDArray[Any]) -> None:
        """Lay all rows out; nothing else was saved."""
        self.rebuild(vectors)

    def _held(self, vectors: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(vectors)  # on the CPU it shares the bank's memory
        return tensor.float().to(self.device) if self.device.type == "mps" else tensor.to(self.device)

    def _hidden(self) -> NDArray[np.int64]:
        return (self._keys.table[-1] == -torch.inf).nonzero().flatten().cpu().numpy()

    def _write(self, start: int, vectors: Tensor) -> None:
        longest = fill(self._keys, start, vectors)
        self._keys = replace(self._keys, longest=max(self._keys.longest, longest))

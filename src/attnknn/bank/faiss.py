"""FAISS behind the bank's contract; the only module that imports it.

FAISS answers with row -1 for what it cannot compare, crashes when add and search overlap, and reads out of
bounds under ``python -O``. The bank checks its input and holds a lock; this module turns -1 into "no row",
and has every candidate's distance computed anew in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.bank.growing import GrowingArray
from attnknn.errors import CorruptModel, MissingExtra
from attnknn.ops.keys import NO_ROW, TopK
from attnknn.ops.plain_search import nearest_of
from attnknn.ops.similarity import Metric

try:
    import faiss
except ImportError as missing:
    raise MissingExtra("this index needs FAISS: pip install 'attnknn[faiss]', or use index='exact'") from missing

_WASTE = 1024  # places left by moved rows that are not worth building the index again for
_SPARE = 8  # candidates beyond k: float32 may rank the last ones wrongly


class FlatIndex:
    """Exhaustive search by FAISS. Removed rows are masked until the bank compacts."""

    def __init__(self, dim: int, metric: Metric) -> None:
        self.dim = dim
        self.metric = metric
        self._center = np.zeros(dim)
        self._vectors: NDArray[Any] = np.empty((0, dim), np.float32)
        self._start_over(0)

    def rebuild(self, vectors: NDArray[Any]) -> None:
        """Index all rows anew."""
        if self.metric == "l2" and len(vectors):
            self._center = vectors.mean(axis=0, dtype=np.float64)
        self._start_over(len(vectors))
        self._train(vectors)
        self._vectors = vectors
        self._put(np.arange(len(vectors)))

    def append(self, vectors: NDArray[Any], start: int) -> None:
        """Rows from ``start`` on are new. ``vectors`` holds all rows, here and below."""
        if self._index.ntotal == 0 or self._outgrown(len(vectors)):
            self._renew(vectors)
            return
        self._vectors = vectors
        self._put(np.arange(start, len(vectors)))

    def replace(self, vectors: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """The vectors of some rows have changed: their old places are masked, new ones appended."""
        if self._index.ntotal > 2 * len(vectors) + _WASTE:
            self._renew(vectors)
            return
        self._vectors = vectors
        self._row_of.values[self._position_of.values[rows]] = NO_ROW
        self._put(rows)
        self._mask()

    def hide(self, rows: NDArray[np.int64]) -> None:
        """Never find these rows again."""
        self._row_of.values[self._position_of.values[rows]] = NO_ROW
        self._position_of.values[rows] = NO_ROW
        self._mask()

    def search(self, queries: NDArray[Any], k: int, leave_out: Tensor | None) -> TopK:
        """The k nearest rows that are not hidden, as far as the index finds them."""
        most = 0
        if leave_out is not None and len(leave_out):
            most = int(torch.bincount(leave_out[:, 0]).max())
        fetch = min(k + most + _SPARE, self._index.ntotal)
        if fetch == 0:
            nothing = torch.full((len(queries), 0), NO_ROW)
            return TopK(nothing, nothing.double())
        seen = self._seen(queries)
        rows = self._rows(self._positions(seen, self._reach(fetch)))
        there = self._index.ntotal if self._live is None else int((self._row_of.values != NO_ROW).sum())
        short = np.flatnonzero((rows != NO_ROW).sum(axis=1) < min(fetch, there))
        if len(short):  # what is masked stood in the way, or the cells visited hold too few
            rows[short] = NO_ROW
            rows[short, :fetch] = self._rows(self._positions(seen[short], fetch, exhaustive=True))
        candidates = _without(torch.from_numpy(rows), leave_out)
        vectors = torch.from_numpy(self._vectors)
        return nearest_of(torch.from_numpy(queries), vectors, candidates, k, metric=self.metric)

    def to_bytes(self) -> bytes | None:
        """The index as FAISS writes it, where that is worth more than the time to build it again."""
        return None

    def restore(self, content: bytes | None, vectors: NDArray[Any]) -> None:
        """Index all rows, none of which is hidden."""
        self.rebuild(vectors)

    def _renew(self, vectors: NDArray[Any]) -> None:
        gone = np.flatnonzero(self._position_of.values == NO_ROW)
        self.rebuild(vectors)
        if len(gone):
            self.hide(gone)

    def _start_over(self, rows: int) -> None:
        self._index = self._made(rows)
        self._row_of = GrowingArray(np.int64)  # position in FAISS -> row of the bank, NO_ROW once gone
        self._position_of = GrowingArray(np.int64)  # and back
        self._live: NDArray[np.uint8] | None = None  # bitmap of the live positions; None while all are

    def _made(self, rows: int) -> Any:
        return faiss.IndexFlat(self.dim, self._measure())

    def _measure(self) -> int:
        return int(faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT)

    def _train(self, vectors: NDArray[Any]) -> None:
        """Nothing to learn."""

    def _outgrown(self, rows: int) -> bool:
        return False

    def _rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(positions < 0, NO_ROW, self._row_of.values[positions])

    def _reach(self, fetch: int) -> int:
        """How many positions to ask for, so that ``fetch`` of them are live."""
        return fetch

    def _positions(self, seen: NDArray[np.float32], fetch: int, exhaustive: bool = False) -> NDArray[np.int64]:
        live = self._live  # FAISS keeps a bare pointer: hold the bitmap while it searches
        selector = None if live is None else faiss.IDSelectorBitmap(live)
        index, options = (self._thorough if exhaustive else self._usual)(fetch, selector)
        found: NDArray[np.int64] = index.search(seen, fetch, params=options)[1]
        return found

    def _usual(self, fetch: int, selector: Any) -> tuple[Any, Any]:
        return self._index, self._options(fetch, selector)

    def _thorough(self, fetch: int, selector: Any) -> tuple[Any, Any]:
        """What to search, and how, to find all there is."""
        return self._usual(fetch, selector)

    def _options(self, fetch: int, selector: Any) -> Any:
        return faiss.SearchParameters(sel=selector)

    def _put(self, rows: NDArray[np.int64]) -> None:
        start = self._index.ntotal
        self._index.add(self._seen(self._vectors[rows]))
        self._row_of.extend(rows)
        self._position_of.extend(np.full(len(self._vectors) - len(self._position_of), NO_ROW))
        self._position_of.values[rows] = np.arange(start, start + len(rows))
        if self._live is not None:
            self._mask()

    def _mask(self) -> None:
        self._live = np.packbits(self._row_of.values != NO_ROW, bitorder="little")

    def _seen(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        """Vectors as FAISS sees them: centered for l2, of length 1 for cosine."""
        wide = vectors.astype(np.float64)
        if self.metric == "cosine":
            norms = np.linalg.norm(wide, axis=1, keepdims=True)
            wide /= np.where(norms > 0, norms, 1.0)
        elif self.metric == "l2":
            wide -= self._center
        return np.ascontiguousarray(wide, np.float32)


class HnswIndex(FlatIndex):
    """A navigable graph. FAISS cannot take a node out of it: removed rows are masked until the bank compacts."""

    LINKS = 32
    BUILD_EFFORT = 80
    SEARCH_EFFORT = 128

    def _made(self, rows: int) -> Any:
        index = faiss.IndexHNSWFlat(self.dim, self.LINKS, self._measure())
        index.hnsw.efConstruction = self.BUILD_EFFORT
        return index

    def _reach(self, fetch: int) -> int:
        return fetch if self._live is None else min(2 * fetch + 32, self._index.ntotal)

    def _options(self, fetch: int, selector: Any) -> Any:
        # Without the filter: FAISS stops early where all around is masked, and misses what lies beyond.
        return faiss.SearchParametersHNSW(efSearch=max(self.SEARCH_EFFORT, 2 * fetch))

    def _thorough(self, fetch: int, selector: Any) -> tuple[Any, Any]:
        return faiss.downcast_index(self._index.storage), faiss.SearchParameters(sel=selector)

    def to_bytes(self) -> bytes:
        """The graph: it takes longer to build than to read. The places that moved rows left are not in it."""
        if self._index.ntotal > len(self._vectors):
            self.rebuild(self._vectors)
        return bytes(faiss.serialize_index(self._index).tobytes())

    def restore(self, content: bytes | None, vectors: NDArray[Any]) -> None:
        """Take up a saved graph over ``vectors``, of which none is hidden."""
        if content is None:
            raise CorruptModel("the graph of an HNSW bank is missing")
        try:
            index = faiss.deserialize_index(np.frombuffer(content, np.uint8))
        except Exception as broken:  # FAISS raises bare RuntimeError and worse
            raise CorruptModel(f"FAISS cannot read its index: {broken}") from broken
        if not isinstance(index, faiss.IndexHNSWFlat) or (index.d, index.ntotal) != (self.dim, len(vectors)):
            raise CorruptModel("the FAISS index does not fit the vectors beside it")
        self._start_over(0)
        self._index = index
        self._vectors = vectors
        if self.metric == "l2" and len(vectors):  # the center of when the graph was built
            stored = faiss.downcast_index(index.storage).reconstruct_n(0, len(vectors))
            self._center = (vectors - stored.astype(np.float64)).mean(axis=0)
        self._row_of.extend(np.arange(len(vectors)))
        self._position_of.extend(np.arange(len(vectors)))


class IvfIndex(FlatIndex):
    """Cells around learned centers; exhaustive below ``SMALLEST`` rows, where cells would be too thin.

    Cells are learned anew whenever the bank has doubled.
    """

    SMALLEST = 2000

    def _made(self, rows: int) -> Any:
        self._learned = rows
        if rows < self.SMALLEST:
            return super()._made(rows)
        cells = int(math.sqrt(rows))
        index = faiss.IndexIVFFlat(faiss.IndexFlat(self.dim, self._measure()), self.dim, cells, self._measure())
        index.cp.min_points_per_centroid = 1  # no warning on stderr
        return index

    def _train(self, vectors: NDArray[Any]) -> None:
        if not self._index.is_trained:
            self._index.train(self._seen(vectors))

    def _outgrown(self, rows: int) -> bool:
        return rows >= max(self.SMALLEST, 2 * self._learned)

    def _options(self, fetch: int, selector: Any) -> Any:
        if self._learned < self.SMALLEST:
            return super()._options(fetch, selector)
        return faiss.SearchParametersIVF(sel=selector, nprobe=max(8, self._index.nlist // 4))

    def _thorough(self, fetch: int, selector: Any) -> tuple[Any, Any]:
        if self._learned < self.SMALLEST:
            return super()._thorough(fetch, selector)
        return self._index, faiss.SearchParametersIVF(sel=selector, nprobe=self._index.nlist)


def _without(rows: Tensor, leave_out: Tensor | None) -> Tensor:
    """Candidates (q, m) less the (query, row) pairs that must not be found."""
    if leave_out is None or not len(leave_out):
        return rows
    top = int(max(leave_out[:, 1].max(), rows[rows != NO_ROW].max() if (rows != NO_ROW).any() else 0)) + 1
    query = torch.arange(len(rows))[:, None]
    keys = torch.where(rows == NO_ROW, -1, query * top + rows)
    return rows.masked_fill(torch.isin(keys, leave_out[:, 0] * top + leave_out[:, 1]), NO_ROW)

"""MemoryBank: labelled vectors that can be searched, edited and saved."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attnknn.bank.folder import parse_json, read_folder, write_folder
from attnknn.bank.index import make_index
from attnknn.bank.lock import ReadersWriterLock
from attnknn.bank.neighbors import Id, Neighbors, joined
from attnknn.bank.reliability import NEIGHBORS, Reliability, judged
from attnknn.bank.store import (
    Metadata,
    Store,
    checked_features,
    checked_groups,
    checked_labels,
    checked_metadata,
    checked_vectors,
    checked_weights,
)
from attnknn.errors import CorruptModel, InvalidInput
from attnknn.ops.keys import NO_ROW
from attnknn.ops.pairs import same_group
from attnknn.ops.similarity import Metric, checked_metric

MAX_K = 2**31 - 1
_WASTE = 1024  # removed rows that are not worth compacting for
_MOST_PAIRS = 4_000_000  # (query, row) pairs to leave out, held at once


class MemoryBank:
    """Labelled vectors: add, remove, update, search with leave-out, save, load. Safe to share between threads.

    Args:
        dim: Width of the vectors.
        index: ``exact`` (torch, no FAISS needed), or FAISS's ``flat``, ``hnsw``, ``ivf``. HNSW and IVF are
            approximate. No FAISS index takes a row out physically: removed rows are masked at once and
            dropped when the bank compacts (when they are more than half and over 1,024, or at the next save).
        metric: ``l2`` (Euclidean), ``cosine`` (1 - cosine) or ``ip`` (minus inner product).
        device: Where ``exact`` searches: ``cpu``, ``cuda``, ``mps``.
        features: Width of what vectors are made from, kept beside them; 0 keeps none.

    >>> bank = MemoryBank(2)
    >>> bank.add([[0.0, 0.0], [3.0, 4.0]], [0, 1], ids=["origin", "far"])
    ['origin', 'far']
    >>> bank.search([[0.0, 1.0]], k=1).ids.tolist()
    [['origin']]
    """

    def __init__(
        self, dim: int, *, index: str = "exact", metric: str = "l2", device: str = "cpu", features: int = 0
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise InvalidInput(f"dim must be an integer of at least 1, got {dim!r}")
        self.dim = int(dim)
        self.index = index
        self.metric: Metric = checked_metric(metric)
        self.device = device
        self._store = Store(self.dim, features)
        self._index = make_index(index, self.dim, self.metric, device)
        self._reliability = Reliability()
        self._lock = ReadersWriterLock()
        self._label_weights: NDArray[np.float64] | None = None  # kept until the next edit
        self.edits = 0  # counts changes: what was computed from the bank holds while it stays the same

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, name: object) -> bool:
        return name in self._store

    def __repr__(self) -> str:
        return f"MemoryBank(dim={self.dim}, index={self.index!r}, metric={self.metric!r}, rows={len(self)})"

    @property
    def ids(self) -> list[Id]:
        """The ids of all rows, in their order."""
        with self._lock.read():
            return [self._store.names[row] for row in np.flatnonzero(self._store.alive).tolist()]

    @property
    def live(self) -> NDArray[np.int64]:
        """The rows in use, in their order."""
        with self._lock.read():
            return np.flatnonzero(self._store.alive)

    def labels(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The labels of some rows."""
        with self._lock.read():
            return np.take(self._store.labels, self._checked_rows(rows), axis=0)

    def weights(self, rows: ArrayLike) -> NDArray[np.float64]:
        """The weights of some rows."""
        with self._lock.read():
            return np.take(self._store.weights, self._checked_rows(rows), axis=0)

    def label_weights(self, classes: int) -> NDArray[np.float64]:
        """(classes,) the summed weights of the rows of each label."""
        with self._lock.read():
            if self._label_weights is None or len(self._label_weights) < classes:
                alive = self._store.alive
                counts = np.bincount(self._store.labels[alive], self._store.weights[alive], minlength=classes)
                self._label_weights = np.asarray(counts, np.float64)
            return self._label_weights[:classes].copy()

    def vectors(self, rows: ArrayLike) -> NDArray[Any]:
        """The vectors of some rows, as they were given."""
        with self._lock.read():
            return np.take(self._store.vectors, self._checked_rows(rows), axis=0)

    def features(self, rows: ArrayLike) -> NDArray[Any]:
        """What the vectors of some rows were made from, where the bank keeps it."""
        with self._lock.read():
            return np.take(self._store.features, self._checked_rows(rows), axis=0)

    def groups(self, rows: ArrayLike) -> NDArray[np.int64]:
        """The groups of some rows; -1 is none."""
        with self._lock.read():
            return np.take(self._store.groups, self._checked_rows(rows), axis=0)

    def metadata(self, rows: ArrayLike) -> list[Metadata]:
        """The metadata of some rows (1-D)."""
        with self._lock.read():
            return [self._store.metadata[row] for row in self._checked_rows(rows).tolist()]

    def names(self, rows: ArrayLike) -> list[Id]:
        """The ids of some rows (1-D)."""
        with self._lock.read():
            return [self._store.names[row] for row in self._checked_rows(rows).tolist()]

    def rows(self, ids: Iterable[Id]) -> NDArray[np.int64]:
        """The rows of some ids, good until the next edit."""
        with self._lock.read():
            return self._store.rows(ids)

    def add(
        self,
        vectors: ArrayLike,
        labels: ArrayLike,
        ids: Sequence[Id] | None = None,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        metadata: Sequence[Metadata] | None = None,
        features: ArrayLike | None = None,
    ) -> list[Id]:
        """Add rows; all of them or, on an error, none.

        Args:
            vectors: (n, dim), finite.
            labels: (n,) integers of at least 0.
            ids: (n,) strings or integers that the bank does not hold yet; numbered when left out.
            groups: (n,) integers; rows of one group leave each other out of a search. -1 is no group.
            weights: (n,) how much each row counts.
            metadata: (n,) JSON objects kept with the rows.
            features: (n, features) what the vectors were made from; asked for where the bank keeps it.

        Returns:
            The ids.
        """
        checked = checked_vectors(vectors, self.dim)
        count = len(checked)
        named = checked_labels(labels, count)
        kept = checked_features(features, count, self._store.width)
        rest = (
            checked_groups(groups, count),
            checked_weights(weights, count),
            checked_metadata(metadata, count),
            kept,
        )
        with self._lock.write():
            self._changed()
            start = self._store.capacity
            names = self._store.append(checked, named, ids, *rest)
            if count:
                self._index.append(self._store.vectors, start)
                self._moved(to=np.arange(start, start + count))
        return names

    def remove(self, ids: Iterable[Id]) -> None:
        """Forget rows; all of them or, if an id is unknown, none."""
        with self._lock.write():
            rows = np.unique(self._store.rows(ids))
            self._changed()
            self._store.forget(rows)
            self._index.hide(rows)
            self._moved(off=rows)
            if self._store.capacity - len(self._store) > max(_WASTE, len(self._store)):
                self._compact()

    def update(self, ids: Sequence[Id], vectors: ArrayLike | None = None, labels: ArrayLike | None = None) -> None:
        """Give rows new vectors, new labels, or both."""
        names = list(ids)
        moved = None if vectors is None else checked_vectors(vectors, self.dim)
        named = None if labels is None else checked_labels(labels, len(names))
        if moved is not None and len(moved) != len(names):
            raise InvalidInput(f"{len(names)} ids, but {len(moved)} vectors")
        with self._lock.write():
            rows = self._store.rows(names)
            if len(np.unique(rows)) < len(rows):
                raise InvalidInput("an id may be updated only once in a call")
            self._changed()
            if named is not None:
                self._store.labels[rows] = named
            if moved is not None and len(rows):
                self._store.set_vectors(rows, moved)
                self._index.replace(self._store.vectors, rows)
                self._moved(off=rows, to=rows)

    def search(
        self, queries: ArrayLike, k: int, exclude: Sequence[Id | None] | None = None, *, by_group: bool = True
    ) -> Neighbors:
        """The ``min(k, len)`` nearest rows of each query, nearest first.

        Ties go to the row added first (in the exact index; FAISS may order equal distances otherwise).

        Args:
            queries: (q, dim), finite.
            k: From 1 to 2^31 - 1.
            exclude: (q,) for each query an id to leave out, or None; the rows of its group are left out too.
            by_group: Whether they are.
        """
        asked = np.require(checked_vectors(queries, self.dim), requirements="W")  # torch takes no other
        k = checked_k(k)
        with self._lock.read():
            return self._search(asked, k) if exclude is None else self._search_without(asked, k, exclude, by_group)

    def reliability(self, rows: ArrayLike, leaving_out: ArrayLike | None = None) -> NDArray[np.float64]:
        """For each row, (agreements + 1) / (judges + 2): how many of its own 10 nearest carry its label.

        Args:
            rows: Any shape.
            leaving_out: Rows that broadcast against ``rows``: their votes, and those of their group, are not
                counted. A training query must leave itself out, or its label leaks to its neighbors.
        """
        with self._lock.write():  # what is stale is looked up and stored
            at = self._checked_rows(rows)
            if leaving_out is not None:
                return self._judged(at, np.broadcast_to(self._checked_rows(leaving_out), at.shape)[..., None])
            if at.size <= self._store.capacity:
                return self._judged(at)
            asked = np.flatnonzero(np.bincount(at.ravel()))  # many times each: once is enough
            table = np.zeros(self._store.capacity)
            table[asked] = self._judged(asked)
            return table[at]

    def _judged(self, at: NDArray[np.int64], out: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """The reliability of rows, under the lock; ``out`` (..., 1) are rows whose votes do not count."""
        near = self._reliability.near(at.ravel(), self._store.capacity, self._nearest_others)
        return judged(at, near.reshape(*at.shape, NEIGHBORS), self._store.labels, self._store.groups, out)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder: whole, or not at all. Removed rows are not in it."""
        write_folder(path, "bank", self.to_files())

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "cpu") -> Self:
        """Read a folder that :meth:`save` wrote; checks every file before it parses any."""
        return cls.from_files(read_folder(path, "bank"), device)

    def to_files(self) -> dict[str, bytes]:
        """The bank as the content of a few files."""
        with self._lock.write():
            return self._files()

    def _files(self) -> dict[str, bytes]:
        if len(self._store) < self._store.capacity:
            self._compact()
        about = {"index": self.index, "metric": self.metric, "dim": self.dim, "features": self._store.width}
        files = {"bank.json": json.dumps(about).encode(), **self._store.to_files()}
        content = self._index.to_bytes()
        return files if content is None else {**files, "index.faiss": content}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], device: str = "cpu") -> Self:
        """What :meth:`to_files` made."""
        try:
            about = parse_json(files["bank.json"], "bank.json")
            width = about.get("features", 0)
            bank = cls(about["dim"], index=about["index"], metric=about["metric"], device=device, features=width)
        except (KeyError, TypeError, InvalidInput) as broken:
            raise CorruptModel(f"bank.json does not describe a bank: {broken}") from broken
        bank._store = Store.from_files(files, bank._store.width)
        if bank._store.dim != bank.dim:
            raise CorruptModel(f"bank.json says {bank.dim} dimensions, rows.json {bank._store.dim}")
        bank._index.restore(files.get("index.faiss"), bank._store.vectors)
        return bank

    def copy(self) -> Self:
        """A bank of its own with the same rows."""
        with self._lock.write():
            other = type(self).from_files(self._files(), self.device)
            other._reliability = self._reliability.shared()
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.to_files(), "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(MemoryBank.from_files(state["files"], state["device"]).__dict__)

    def _search_without(
        self, asked: NDArray[Any], k: int, exclude: Sequence[Id | None], by_group: bool
    ) -> Neighbors:
        """Search so many queries at a time that the pairs to leave out stay few, however large a group is."""
        if isinstance(exclude, str) or len(exclude) != len(asked):
            raise InvalidInput(f"exclude must hold an id or None for each of {len(asked)} queries")
        grouped = self._store.groups[self._store.groups >= 0]
        largest = int(np.unique(grouped, return_counts=True)[1].max(initial=1)) if by_group else 1
        step = max(1, _MOST_PAIRS // largest)
        parts = [
            self._search(asked[at : at + step], k, self._pairs(exclude[at : at + step], by_group))
            for at in range(0, max(1, len(asked)), step)
        ]
        return parts[0] if len(parts) == 1 else joined(parts)

    def _search(self, asked: NDArray[Any], k: int, leave_out: Tensor | None = None) -> Neighbors:
        store = self._store
        k = min(k, len(store))
        if k == 0 or len(asked) == 0:
            empty = np.empty((len(asked), k))
            return Neighbors(empty.astype(np.int64), empty.astype(np.int64), empty, empty > 0, None, store.names)
        found = self._index.search(asked, k, leave_out)
        rows, gaps = found.rows.numpy(), found.distances.numpy()
        if rows.shape[1] < k:  # an approximate index may come back with less
            short = ((0, 0), (0, k - rows.shape[1]))
            rows = np.pad(rows, short, constant_values=NO_ROW)
            gaps = np.pad(gaps, short, constant_values=np.inf)
        is_found = rows != NO_ROW
        at = np.where(is_found, rows, 0)
        labels = np.where(is_found, store.labels[at], NO_ROW)
        weights = np.where(is_found, store.weights[at], 0.0) if store.weighted else None
        return Neighbors(rows, labels, gaps, is_found, weights, store.names)

    def _pairs(self, exclude: Sequence[Id | None], by_group: bool) -> Tensor:
        """(pairs, 2) of (query, row) to leave out."""
        asking = [at for at, name in enumerate(exclude) if name is not None]
        rows = self._store.rows([name for name in exclude if name is not None])
        groups = np.full(len(exclude), -1)
        groups[asking] = self._store.groups[rows]
        pairs = torch.from_numpy(np.stack([np.asarray(asking, np.int64), rows], axis=1))
        if not by_group or (groups < 0).all():
            return pairs
        return torch.cat([pairs, same_group(torch.from_numpy(groups), torch.from_numpy(self._store.groups))])

    def _nearest_others(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        names = [self._store.names[row] for row in rows.tolist()]
        near = self._search_without(self._store.vectors[rows], NEIGHBORS, names, by_group=True)
        return np.where(near.found, near.rows, -1), near.distances

    def _changed(self) -> None:
        self._label_weights = None
        self.edits += 1

    def _moved(self, off: NDArray[np.int64] | None = None, to: NDArray[np.int64] | None = None) -> None:
        """Vectors have left their places, or come to some; copies of the bank do not follow."""
        self._reliability = self._reliability.apart()
        if off is not None:
            self._reliability.vanished(off)
        if to is not None:
            self._reliability.appeared(to, self._store.vectors, self.metric)

    def _compact(self) -> None:
        self.edits += 1  # rows have new numbers
        self._store.compact()
        self._index.rebuild(self._store.vectors)
        self._reliability = Reliability()

    def _checked_rows(self, rows: ArrayLike) -> NDArray[np.int64]:
        at = np.asarray(rows)
        if at.size == 0:
            return at.astype(np.int64)
        if at.dtype.kind not in "iu":
            raise InvalidInput(f"rows are integers, got dtype {at.dtype}")
        low, high = int(at.min()), int(at.max())
        if low < 0 or high >= self._store.capacity or not self._store.alive[at].all():
            raise InvalidInput(f"no such row in the bank: rows {low} to {high} asked for, {len(self)} held")
        return at.astype(np.int64)


def checked_k(k: int) -> int:
    """``k`` as an int from 1 to 2^31 - 1."""
    try:
        value = operator.index(k)
    except TypeError:
        value = 0
    if isinstance(k, bool) or not 1 <= value <= MAX_K:
        raise InvalidInput(f"k must be an integer from 1 to {MAX_K}, got {k!r}")
    return value

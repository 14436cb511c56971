"""The rows of a bank: checked on the way in, found again by id."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from attnknn.bank.folder import parse_json
from attnknn.bank.growing import GrowingArray
from attnknn.bank.neighbors import Id
from attnknn.errors import CorruptModel, InvalidInput, UnknownId
from attnknn.ops.keys import MAX_NORM

Metadata = Mapping[str, Any] | None


class Store:
    """Columns of equal length: vector, label, id, group, weight, metadata. Removed rows stay until compacted.

    A vector keeps the precision it came in: float64 stays float64, all else becomes float32.

    Args:
        dim: Width of the vectors.
        width: Width of what they are made from, where that is kept too.
    """

    def __init__(self, dim: int, width: int = 0) -> None:
        self.dim = dim
        self.width = width
        self._features = GrowingArray(np.uint8, (width,))  # bytes of images; the first numbers widen it
        self._vectors = GrowingArray(np.float32, (dim,))
        self._labels = GrowingArray(np.int64)
        self._groups = GrowingArray(np.int64)
        self._weights = GrowingArray(np.float64)
        self._alive = GrowingArray(np.bool_)
        self.names: list[Id] = []  # only ever appended to or replaced: answers of earlier searches hold it
        self.metadata: list[Metadata] = []
        self._row_of: dict[Id, int] = {}
        self._next_id = 0
        self.weighted = False  # whether any row ever had a weight other than 1

    vectors = property(lambda self: self._vectors.values)
    features = property(lambda self: self._features.values)
    labels = property(lambda self: self._labels.values)
    groups = property(lambda self: self._groups.values)
    weights = property(lambda self: self._weights.values)
    alive = property(lambda self: self._alive.values)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, bool) or not isinstance(name, str | int | np.integer):
            return False
        return _key(_checked_id(name)) in self._row_of

    @property
    def capacity(self) -> int:
        """Rows in memory, removed ones included."""
        return len(self.names)

    def append(
        self,
        vectors: NDArray[Any],
        labels: NDArray[np.int64],
        ids: Sequence[Id] | None,
        groups: NDArray[np.int64],
        weights: NDArray[np.float64],
        metadata: Sequence[Metadata],
        features: NDArray[Any],
    ) -> list[Id]:
        """Add checked rows; returns their ids."""
        names = self._fresh_ids(len(vectors)) if ids is None else [_checked_id(name) for name in ids]
        if len(names) != len(vectors):
            raise InvalidInput(f"{len(vectors)} vectors, but {len(names)} ids")
        keys = [_key(name) for name in names]
        taken = [name for name, key in zip(names, keys, strict=True) if key in self._row_of]
        if taken:
            raise InvalidInput(f"the bank already holds {_some(taken)}; remove or update instead")
        if len(set(keys)) < len(keys):
            raise InvalidInput("ids must differ from each other; the same id was given twice")
        self._row_of.update(zip(keys, range(self.capacity, self.capacity + len(keys)), strict=True))
        self.names.extend(names)
        self.metadata.extend(metadata)
        self._vectors.extend(vectors)
        self._features.extend(features)
        self._labels.extend(labels)
        self._groups.extend(groups)
        self._weights.extend(weights)
        self.weighted |= bool((weights != 1).any())
        self._alive.extend(np.ones(len(vectors), np.bool_))
        return names

    def rows(self, ids: Iterable[Id]) -> NDArray[np.int64]:
        """The rows of some ids."""
        if isinstance(ids, str):
            raise InvalidInput(f"ids must be a list of ids, got the string {ids!r}; did you mean [{ids!r}]?")
        names = [_checked_id(name) for name in ids]
        found = [self._row_of.get(_key(name), -1) for name in names]
        missing = [name for name, row in zip(names, found, strict=True) if row < 0]
        if missing:
            raise UnknownId(f"the bank holds no {_some(missing)}")
        return np.asarray(found, np.int64)

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Mark rows as removed and blank what they held."""
        for row in rows.tolist():
            del self._row_of[_key(self.names[row])]
            self.metadata[row] = None
        self.alive[rows] = False
        self.vectors[rows] = 0
        self.features[rows] = 0
        self.groups[rows] = -1

    def set_vectors(self, rows: NDArray[np.int64], vectors: NDArray[Any]) -> None:
        """Overwrite the vectors of some rows."""
        self._vectors.widen(vectors.dtype)
        self.vectors[rows] = vectors

    def compact(self) -> None:
        """Drop removed rows; the others keep their order."""
        alive = self.alive.copy()
        for column in (self._vectors, self._features, self._labels, self._groups, self._weights, self._alive):
            column.keep(alive)
        self.names = [name for name, live in zip(self.names, alive.tolist(), strict=True) if live]
        self.metadata = [held for held, live in zip(self.metadata, alive.tolist(), strict=True) if live]
        self._row_of = {_key(name): row for row, name in enumerate(self.names)}

    def to_files(self) -> dict[str, bytes]:
        """The live rows as safetensors and JSON."""
        alive = self.alive
        columns = ("vectors", "labels", "groups", "weights", *(("features",) if self.width else ()))
        tensors = {name: np.ascontiguousarray(getattr(self, name)[alive]) for name in columns}
        kept = np.flatnonzero(alive).tolist()
        metadata = [self.metadata[row] for row in kept]
        rows = {
            "dim": self.dim,
            "next_id": self._next_id,
            "ids": [self.names[row] for row in kept],
            "metadata": metadata if any(entry is not None for entry in metadata) else None,
        }
        return {"rows.safetensors": save_tensors(tensors), "rows.json": json.dumps(rows).encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], width: int = 0) -> Store:
        """What :meth:`to_files` wrote."""
        try:
            rows = parse_json(files["rows.json"], "rows.json")
            tensors = load_tensors(files["rows.safetensors"])
            store = cls(rows["dim"], width)
            vectors = checked_vectors(tensors["vectors"], store.dim)
            count = len(vectors)
            store.append(
                vectors,
                checked_labels(tensors["labels"], count),
                rows["ids"],
                checked_groups(tensors["groups"], count),
                checked_weights(tensors["weights"], count),
                checked_metadata(rows["metadata"], count),
                checked_features(tensors.get("features"), count, width),
            )
            store._next_id = rows["next_id"]
        except CorruptModel:
            raise
        except Exception as broken:  # whatever a foreign file trips over
            raise CorruptModel(f"rows.json and rows.safetensors do not make a bank: {broken}") from broken
        return store

    def _fresh_ids(self, count: int) -> list[Id]:
        names: list[Id] = []
        while len(names) < count:
            if self._next_id not in self._row_of:
                names.append(self._next_id)
            self._next_id += 1
        return names


def checked_vectors(vectors: ArrayLike, dim: int) -> NDArray[Any]:
    """Vectors (n, dim) as float32 or float64, finite and not too long."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"vectors must be numbers, got dtype {array.dtype}")
    array = np.ascontiguousarray(array, np.float32 if array.dtype in (np.float32, np.float16) else np.float64)
    if array.ndim != 2 or array.shape[1] != dim:
        raise InvalidInput(f"expected vectors of shape (n, {dim}), got {array.shape}")
    if not np.isfinite(array).all():
        at = np.argwhere(~np.isfinite(array))
        where = ", ".join(f"row {row} column {column}" for row, column in at[:3].tolist())
        raise InvalidInput(f"vectors hold NaN or infinity at {where}{' ...' if len(at) > 3 else ''}")
    largest = np.abs(array).max(initial=0.0)
    if largest > MAX_NORM / max(1.0, np.sqrt(dim)):
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(array.astype(np.float64), axis=1)
        if norms.max() > MAX_NORM:
            row = int(norms.argmax())
            raise InvalidInput(f"the vector in row {row} has length {norms[row]:.3g}; the limit is {MAX_NORM:g}")
    return array


def checked_labels(labels: ArrayLike, rows: int) -> NDArray[np.int64]:
    """Labels (n,) as integers of at least 0."""
    array = np.asarray(labels)
    if array.dtype.kind not in "biu" and array.size:
        raise InvalidInput(f"labels of a bank are integers, got dtype {array.dtype}")
    array = array.astype(np.int64)
    if array.shape != (rows,):
        raise InvalidInput(f"expected {rows} labels, got shape {array.shape}")
    if array.size and array.min() < 0:
        raise InvalidInput(f"labels of a bank are 0 or more, got {array.min()}")
    return array


def checked_features(features: ArrayLike | None, rows: int, width: int) -> NDArray[Any]:
    """Features (n, width), finite; bytes stay bytes; None where the width is 0."""
    array = np.empty((rows, 0), np.uint8) if features is None else np.asarray(features)
    if array.shape != (rows, width):
        raise InvalidInput(f"expected features of shape ({rows}, {width}), got {array.shape}")
    return array if array.dtype == np.uint8 else checked_vectors(array, width)


def checked_groups(groups: ArrayLike | None, rows: int) -> NDArray[np.int64]:
    """Groups (n,) as integers; -1, or None for all, is no group."""
    if groups is None:
        return np.full(rows, -1, np.int64)
    array = np.asarray(groups)
    if array.shape != (rows,) or (array.dtype.kind not in "biu" and array.size):
        raise InvalidInput(f"expected {rows} integer groups, got shape {array.shape}, dtype {array.dtype}")
    return array.astype(np.int64)


def checked_weights(weights: ArrayLike | None, rows: int) -> NDArray[np.float64]:
    """Weights (n,): finite, not negative; None is 1 for each."""
    array = np.ones(rows) if weights is None else np.asarray(weights, np.float64)
    if array.shape != (rows,):
        raise InvalidInput(f"expected {rows} weights, got shape {array.shape}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInput("weights must be finite and not negative")
    return array


def checked_metadata(metadata: Sequence[Metadata] | None, rows: int) -> list[Metadata]:
    """Metadata (n,): a JSON object or None for each row."""
    held: list[Metadata] = [None] * rows if metadata is None else list(metadata)
    if len(held) != rows:
        raise InvalidInput(f"{rows} vectors, but {len(held)} metadata")
    for row, entry in enumerate(held):
        if entry is None:
            continue
        try:
            if not isinstance(entry, Mapping):
                raise TypeError(f"it is a {type(entry).__name__}, not a mapping")
            json.dumps(entry)
        except (TypeError, ValueError) as problem:
            raise InvalidInput(f"metadata of row {row} cannot be saved: {problem}") from problem
    return held


def _checked_id(name: Any) -> Id:
    if isinstance(name, np.integer):
        return int(name)
    if isinstance(name, np.str_):
        return str(name)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise InvalidInput(f"an id is a string or an integer, got {name!r}")
    return name


def _key(name: Id) -> Id:
    """What makes two ids the same: the composed form, so that an accent typed two ways is one id."""
    return unicodedata.normalize("NFC", name) if isinstance(name, str) else name


def _some(names: Sequence[Id]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return f"id {shown}" if len(names) == 1 else f"ids {shown}{' ...' if len(names) > 5 else ''}"

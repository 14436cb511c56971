"""What every embedder promises, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from attnknn.data.table import Column, Table
from attnknn.errors import InvalidInput

Vectors = NDArray[np.floating[Any]]  # (rows, dim)


class Embedder(Protocol):
    """Rows in, vectors out.

    ``X`` is a ``Table`` or a two-dimensional float array that holds no NaN and no infinity.
    """

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        ...

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which places of a vector hold numbers, not zeros and ones."""
        ...

    @property
    def columns(self) -> tuple[int, ...]:
        """The column of the table that each place of a vector belongs to."""
        ...

    def fit(self, X: Table | Vectors) -> Self:
        """Learn the encoding from training rows."""
        ...

    def transform(self, X: Table | Vectors) -> Vectors:
        """Encode rows as vectors of shape (rows, dim)."""
        ...

    def describe(self, vectors: Vectors) -> list[dict[str, object]]:
        """The rows that the vectors stand for: column name to a value that JSON can hold."""
        ...

    def state(self) -> dict[str, Any]:
        """All that was learned, in values that JSON holds exactly."""
        ...

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The embedder that ``state`` was taken from."""
        ...


def width_of(X: Table | Vectors) -> int:
    """How many columns the rows have."""
    return len(X.columns) if isinstance(X, Table) else int(X.shape[1])


def columns_of(X: Table | Vectors) -> Iterator[Column]:
    """The columns one by one, so that a wide array is never held in float64 as a whole."""
    if isinstance(X, Table):
        yield from X.columns
        return
    for at in range(X.shape[1]):
        yield Column(f"x{at}", "numeric", X[:, at].astype(np.float64))


def check_columns(X: Table | Vectors, names: Sequence[str], *, named: bool) -> None:
    """Refuse rows whose columns are not those of fit.

    Args:
        X: The rows to encode.
        names: Columns at fit.
        named: Whether they were named by a frame; where they were not, only the width counts.
    """
    if isinstance(X, Table) and named:
        _check_names(X.names, names)
    elif width_of(X) != len(names):
        raise InvalidInput(f"expected {len(names)} columns as at fit, got {width_of(X)}")


def _check_names(given: Sequence[str], names: Sequence[str]) -> None:
    if tuple(given) == tuple(names):
        return
    missing = [name for name in names if name not in set(given)]
    extra = [name for name in given if name not in set(names)]
    if not missing and not extra:
        raise InvalidInput(f"columns are in another order than at fit: expected {_listed(names)}")
    parts = [f"missing {_listed(missing)}"] * bool(missing) + [f"unknown {_listed(extra)}"] * bool(extra)
    raise InvalidInput(
        f"expected the {len(names)} columns of fit, got {len(given)}: {'; '.join(parts)}",
    )


def check_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Refuse vectors of another width than the embedder makes."""
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise InvalidInput(f"expected vectors of shape (n, {dim}), got {vectors.shape}")
    return vectors


def as_rows(names: Sequence[str], columns: Sequence[Sequence[object]], count: int) -> list[dict[str, object]]:
    """Columns of Python values, turned into one dictionary for each row."""
    return [{name: column[row] for name, column in zip(names, columns, strict=True)} for row in range(count)]


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more

"""Mixed tables as vectors in which every column weighs about the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from attnknn.data.table import Table
from attnknn.embed.embedder import Vectors, as_rows, check_columns, check_vectors, columns_of, width_of
from attnknn.embed.encoding import CategoryCode, Code, NumberCode, code_from_state, code_state, learn_code
from attnknn.errors import InvalidInput


class Standardize:
    """Numbers to mean 0 and deviation 1, categories to one-hot, in float32.

    A missing number is the mean, with a flag beside it where training rows had missing values too.
    Two different categories lie at distance 1; a column of more than 256 categories keeps the 255
    most frequent, and the rest share one place.

    >>> rows = np.array([[1.0], [3.0]])
    >>> embedder = Standardize().fit(rows)
    >>> embedder.transform(rows).tolist()
    [[-1.0], [1.0]]
    """

    kind: ClassVar[str] = "standardize"

    def __init__(self) -> None:
        self._codes: tuple[Code, ...] = ()
        self._named = False

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        if not self._codes:
            raise InvalidInput("fit the embedder first")
        return sum(code.width for code in self._codes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which places of a vector hold the score of a number; the others are zeros and ones."""
        return tuple(at.start for code, at in self._blocks() if isinstance(code, NumberCode))

    @property
    def columns(self) -> tuple[int, ...]:
        """The column of the table that each place of a vector belongs to."""
        return tuple(number for number, code in enumerate(self._codes) for _ in range(code.width))

    def fit(self, X: Table | Vectors) -> Self:
        """Learn means, deviations and categories from training rows."""
        if not len(X) or not width_of(X):
            raise InvalidInput(f"expected at least one row and one column, got {len(X)} x {width_of(X)}")
        self._codes = tuple(learn_code(column) for column in columns_of(X))
        self._named = isinstance(X, Table)
        return self

    def transform(self, X: Table | Vectors) -> NDArray[np.float32]:
        """Encode rows as float32 vectors of shape (rows, dim)."""
        vectors = np.empty((len(X), self.dim), dtype=np.float32)
        self._check(X)
        for (code, at), column in zip(self._blocks(), columns_of(X), strict=True):
            code.write(column, vectors[:, at])
        return vectors

    def describe(self, vectors: Vectors) -> list[dict[str, object]]:
        """The rows again, as close as float32 allows.

        Columns of whole numbers give ints, other numbers six significant digits, categories their
        names: None for missing or not seen at fit, ``"(other)"`` for the shared place.
        """
        vectors = check_vectors(vectors, self.dim)
        columns = [code.read(vectors[:, at]) for code, at in self._blocks()]
        return as_rows([code.name for code in self._codes], columns, len(vectors))

    def state(self) -> dict[str, Any]:
        """Means, deviations and categories."""
        return {
            "kind": self.kind,
            "named": self._named,
            "columns": [code_state(code) for code in self._codes],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The embedder that ``state`` was taken from."""
        new = cls()
        try:
            new._codes = tuple(code_from_state(column) for column in state["columns"])
            new._named = bool(state["named"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"not the state of a standardize embedder: {error!r}") from None
        return new

    def _check(self, X: Table | Vectors) -> None:
        check_columns(X, [code.name for code in self._codes], named=self._named)
        if not isinstance(X, Table) and any(isinstance(code, CategoryCode) for code in self._codes):
            # A column number says nothing about which category a number is meant to be.
            raise InvalidInput("fitted on a frame with columns of categories; pass a frame, not an array")

    def _blocks(self) -> Iterator[tuple[Code, slice]]:
        start = 0
        for code in self._codes:
            yield code, slice(start, start + code.width)
            start += code.width

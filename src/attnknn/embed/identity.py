"""Numbers as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from attnknn.data.table import Column, Table
from attnknn.embed.embedder import Vectors, as_rows, check_columns, check_vectors, columns_of, width_of
from attnknn.errors import InvalidInput

_Form = Literal["int", "float", "bool"]  # how describe writes a column


class Identity:
    """Leave numbers untouched: float32 stays float32, everything else becomes float64.

    >>> rows = np.array([[1.0, 2.5]])
    >>> identity = Identity().fit(rows)
    >>> identity.describe(identity.transform(rows))
    [{'x0': 1, 'x1': 2.5}]
    """

    kind: ClassVar[str] = "identity"

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._forms: tuple[_Form, ...] = ()
        self._named = False

    @property
    def dim(self) -> int:
        """Width of the vectors: the number of columns."""
        if not self._names:
            raise InvalidInput("fit the embedder first")
        return len(self._names)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which places of a vector hold numbers: all."""
        return tuple(range(self.dim))

    @property
    def columns(self) -> tuple[int, ...]:
        """The column of the table that each place of a vector belongs to: its own."""
        return tuple(range(self.dim))

    def fit(self, X: Table | Vectors) -> Self:
        """Note the columns; nothing else is learned."""
        if not width_of(X):
            raise InvalidInput("expected at least one column, got 0")
        columns = [(column.name, _form(_checked(column))) for column in columns_of(X)]
        self._names, self._forms = tuple(zip(*columns, strict=True))
        self._named = isinstance(X, Table)
        return self

    def transform(self, X: Table | Vectors) -> Vectors:
        """The rows as an array; an array of floats comes back as the very same object."""
        check_columns(X, self._names[: self.dim], named=self._named)
        if isinstance(X, Table):
            return np.column_stack([_checked(column).values for column in X.columns])
        return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)

    def describe(self, vectors: Vectors) -> list[dict[str, object]]:
        """The rows again: integers, booleans and floats as they were at fit."""
        vectors = check_vectors(vectors, self.dim)
        columns = [_values(form, vectors[:, at]) for at, form in enumerate(self._forms)]
        return as_rows(self._names, columns, len(vectors))

    def state(self) -> dict[str, Any]:
        """Names and forms of the columns."""
        return {
            "kind": self.kind,
            "named": self._named,
            "columns": [{"name": n, "form": f} for n, f in zip(self._names, self._forms, strict=True)],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The embedder that ``state`` was taken from."""
        new = cls()
        try:
            new._names = tuple(str(column["name"]) for column in state["columns"])
            new._forms = tuple(cast(_Form, column["form"]) for column in state["columns"])
            new._named = bool(state["named"])
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"not the state of an identity embedder: {error!r}") from None
        return new


def _checked(column: Column) -> Column:
    advice = 'embedder="standardize" handles it'
    if column.kind == "categorical":
        raise InvalidInput(f"column {column.name!r} holds text, not numbers; {advice}")
    if column.missing.any():
        raise InvalidInput(f"column {column.name!r} has missing values; {advice}")
    return column


def _form(column: Column) -> _Form:
    if column.kind == "boolean":
        return "bool"
    return "int" if bool((column.values == np.rint(column.values)).all()) else "float"


def _values(form: _Form, values: Vectors) -> Sequence[object]:
    # The shortest decimals that name the float: 7.4 in float32 reads 7.4, not 7.400000095.
    numbers = [float(str(value)) + 0.0 for value in values]
    if form == "bool":
        return [bool(number) if number in (0.0, 1.0) else number for number in numbers]
    if form == "int":
        return [int(number) if number.is_integer() else number for number in numbers]
    return numbers

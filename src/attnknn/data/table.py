"""Data frames of pandas or polars, read into checked columns without depending on either.

A frame becomes a :class:`Table`: numbers with NaN for what is missing, booleans as 0 and 1,
and everything else as text. Dates and times become seconds (since 1970 in UTC, or of duration).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "boolean", "categorical"]
Values = NDArray[Any]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NESTED = (list, tuple, dict, set, frozenset, np.ndarray, complex, np.complexfloating, bytes, bytearray)
_SHOWN = 5  # rows and columns that an error message lists


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One named column.

    Args:
        name: The column's name, always text.
        kind: How ``values`` are meant.
        values: float64 with NaN for missing (numeric), float64 of 0, 1 and NaN (boolean),
            or an object array of ``str`` with ``None`` for missing (categorical).
    """

    name: str
    kind: Kind
    values: Values

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where the value is absent."""
        if self.kind == "categorical":
            return np.fromiter((value is None for value in self.values), np.bool_, len(self.values))
        return np.isnan(self.values)

    def as_kind(self, kind: Kind) -> Column:
        """The same column read as another kind, so that a few rows read like the whole they came from.

        A column of nothing but missing values fits every kind, and numbers fit a categorical column.

        Raises:
            InvalidInput: The values do not fit, such as text where numbers are wanted.
        """
        if kind == self.kind:
            return self
        if self.missing.all():
            return Column(self.name, kind, _all_missing(len(self.values), kind))
        if kind == "categorical":
            return Column(self.name, kind, _numbers_as_text(self.values, boolean=self.kind == "boolean"))
        if self.kind == "categorical" or (kind == "boolean" and not _zero_one(self.values)):
            raise InvalidInput(f"column {self.name!r} was {kind} at fit, got {self.kind} values")
        return Column(self.name, kind, self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length.

    >>> heights = Column("height", "numeric", np.array([1.5, np.nan]))
    >>> table = Table((heights,))
    >>> len(table), table.names, table.take([0]).columns[0].values.tolist()
    (2, ('height',), [1.5])
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidInput("a table needs at least one column, got none")
        lengths = {column.name: len(column.values) for column in self.columns}
        if len(set(lengths.values())) > 1:
            raise InvalidInput(f"columns differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.columns[0].values)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Table:
        """The given rows as a table of their own; a Boolean mask works as well."""
        at = np.asarray(rows)
        at = at if at.size else at.astype(np.intp)
        return Table(tuple(Column(c.name, c.kind, c.values[at]) for c in self.columns))


def as_frame(X: Any) -> pd.DataFrame:
    """Rows as a frame of pandas; numbers (n, columns) get the names x0, x1 and so on.

    Raises:
        InvalidInput: Neither.
    """
    import pandas as pd

    if _library(X) is not None:
        frame: pd.DataFrame = X.to_pandas() if _library(X) == "polars" else X
        return frame
    if np.ndim(X) != 2:
        raise InvalidInput(f"rows must be a frame, or numbers (rows, columns), got shape {np.shape(X)}")
    return pd.DataFrame(np.asarray(X), columns=[f"x{at}" for at in range(np.shape(X)[1])])


def is_frame(X: object) -> bool:
    """Whether ``X`` is a DataFrame of pandas or polars.

    >>> is_frame(np.zeros((2, 2)))
    False
    """
    return _library(X) is not None


def as_table(frame: Any) -> Table:
    """Read a pandas or polars DataFrame; the frame itself stays as it is.

    Raises:
        InvalidInput: No columns, clashing names, a type that has no reading, or infinity.
    """
    library = _library(frame)
    if library is None:
        raise InvalidInput(f"expected a pandas or polars DataFrame, got {type(frame).__name__}")
    names = _checked_names(frame.columns)
    if library == "pandas":
        columns = [_from_pandas(name, frame.iloc[:, at]) for at, name in enumerate(names)]
    else:
        columns = [_from_polars(name, frame.to_series(at)) for at, name in enumerate(names)]
    _refuse_infinity(columns)
    return Table(tuple(columns))


def _library(X: object) -> Literal["pandas", "polars"] | None:
    # By name along the MRO: subclasses such as GeoDataFrame count, and nothing gets imported.
    for base in type(X).__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "DataFrame" and root in ("pandas", "polars"):
            return "pandas" if root == "pandas" else "polars"
    return None


def _checked_names(names: Iterable[object]) -> list[str]:
    found = [str(name) for name in names]
    if not found:
        raise InvalidInput("the frame has no columns")
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise InvalidInput(f"column names must be unique, got {', '.join(map(repr, twice))} more than once")
    return found


def _from_pandas(name: str, series: Any) -> Column:
    dtype = series.dtype
    kind = getattr(dtype, "kind", "O")
    if type(dtype).__name__ == "CategoricalDtype":
        return Column(name, "categorical", _category_text(name, series))
    if kind in "iuf":
        return Column(name, "numeric", _floats(series.to_numpy(dtype=np.float64, na_value=np.nan)))
    if kind == "b":
        return Column(name, "boolean", _floats(series.to_numpy(dtype=np.float64, na_value=np.nan)))
    if kind in "mM":
        return Column(name, "numeric", _pandas_seconds(series, kind))
    if kind == "c":
        raise _unsupported(name, str(dtype))
    column = _from_objects(name, series.to_numpy(dtype=object), series.isna().to_numpy(dtype=bool))
    # Text stays text where every value is missing; a column of plain objects could be anything.
    return column.as_kind("categorical") if "str" in str(dtype) and column.missing.all() else column


def _from_polars(name: str, series: Any) -> Column:
    import polars as pl

    dtype = series.dtype
    base = dtype.base_type().__name__
    if dtype.is_numeric() or base == "Null":
        return Column(name, "numeric", _floats(series.cast(pl.Float64).to_numpy()))
    if base == "Boolean":
        return Column(name, "boolean", _floats(series.cast(pl.Float64).to_numpy()))
    if dtype.is_temporal():
        return Column(name, "numeric", _polars_seconds(series, base))
    if base in ("String", "Categorical", "Enum"):
        return Column(name, "categorical", _objects(series.cast(pl.String).to_list()))
    if base == "Object":
        values = _objects(series.to_list())
        absent = np.fromiter((v is None or v != v for v in values), np.bool_, len(values))
        return _from_objects(name, values, absent)
    raise _unsupported(name, str(dtype))


def _from_objects(name: str, values: Values, absent: NDArray[np.bool_]) -> Column:
    """A column of Python objects: numbers, booleans, or else the text of each value."""
    present = values[~absent]
    types = set(map(type, present))
    if any(issubclass(kind, _NESTED) for kind in types):
        raise _unsupported(name, ", ".join(sorted(kind.__name__ for kind in types)))
    if types and all(issubclass(kind, bool | np.bool_) for kind in types):
        return Column(name, "boolean", _spread(present.astype(np.float64), absent))
    if all(_is_number(kind) for kind in types):
        return Column(name, "numeric", _spread(_as_floats(name, present), absent))
    if types != {str}:
        present = _objects([_text(name, value) for value in present])
    text = np.full(len(values), None, dtype=object)
    text[~absent] = present
    return Column(name, "categorical", text)


def _is_number(kind: type) -> bool:
    return issubclass(kind, numbers.Real | Decimal) and not issubclass(kind, bool | np.bool_)


def _as_floats(name: str, present: Values) -> Values:
    try:
        return present.astype(np.float64)
    except OverflowError:
        raise InvalidInput(f"column {name!r} holds an integer too large for a float") from None


def _spread(present: Values, absent: NDArray[np.bool_]) -> Values:
    values = np.full(len(absent), np.nan)
    values[~absent] = present
    return values


def _text(name: str, value: object) -> str:
    if _is_number(type(value)):
        number = float(value)  # type: ignore[arg-type]
        if math.isinf(number):
            raise InvalidInput(f"column {name!r} holds infinity")
        return _number_text(number)
    return str(value)


def _number_text(number: float) -> str:
    """1 and 1.0 are one category, whatever else the column holds."""
    return str(int(number)) if number.is_integer() else repr(number)


def _numbers_as_text(values: Values, *, boolean: bool) -> Values:
    def text(value: float) -> str | None:
        if math.isnan(value):
            return None
        return str(bool(value)) if boolean else _number_text(value)

    return _objects([text(value) for value in values.tolist()])


def _category_text(name: str, series: Any) -> Values:
    # Only categories in use count: an unused one may hold anything.
    codes: NDArray[np.intp] = series.cat.codes.to_numpy(dtype=np.intp)
    categories = list(series.cat.categories)
    text: list[str | None] = [None] * (len(categories) + 1)  # code -1, missing, is the last
    for code in np.unique(codes):
        if code >= 0:
            text[code] = _text(name, categories[code])
    return _objects(text)[codes]


def _pandas_seconds(series: Any, kind: str) -> Values:
    # Asked of the type: the accessor of a pyarrow date or duration refuses the question.
    type_ = getattr(series.dtype, "pyarrow_dtype", series.dtype)
    if getattr(type_, "tz", None) is not None:
        series = series.dt.tz_convert(None)
    values = series.to_numpy()
    if values.dtype.kind != kind:  # pyarrow-backed columns arrive as objects
        values = series.to_numpy(dtype=object, na_value=None)
        values = values.astype("datetime64[us]" if kind == "M" else "timedelta64[us]")
    return _seconds(values.astype(np.int64), np.isnat(values), np.datetime_data(values.dtype)[0])


def _polars_seconds(series: Any, base: str) -> Values:
    absent = series.is_null().to_numpy()
    ticks = series.to_physical().fill_null(0).to_numpy().astype(np.int64)
    if base == "Date":
        return _seconds(ticks * 86_400, absent, "s")
    return _seconds(ticks, absent, "ns" if base == "Time" else series.dtype.time_unit)


def _seconds(ticks: Values, absent: NDArray[np.bool_], unit: str) -> Values:
    # Whole and part apart: the same instant gives the same float in every unit.
    whole, part = np.divmod(ticks, _PER_SECOND[unit])
    return np.where(absent, np.nan, whole + part / _PER_SECOND[unit])


def _floats(values: Values) -> Values:
    return np.asarray(values, dtype=np.float64)


def _objects(values: Sequence[object]) -> Values:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _all_missing(length: int, kind: Kind) -> Values:
    return np.full(length, None, dtype=object) if kind == "categorical" else np.full(length, np.nan)


def _zero_one(values: Values) -> bool:
    return bool(np.isin(values[~np.isnan(values)], (0.0, 1.0)).all())


def _unsupported(name: str, what: str) -> InvalidInput:
    return InvalidInput(f"column {name!r} has a type that cannot be read: {what}")


def _refuse_infinity(columns: Sequence[Column]) -> None:
    places = []
    for column in columns:
        if column.kind == "numeric" and np.isinf(column.values).any():
            rows = np.flatnonzero(np.isinf(column.values))
            more = ", ..." if len(rows) > _SHOWN else ""
            places.append(f"column {column.name!r} (rows {', '.join(map(str, rows[:_SHOWN]))}{more})")
    if places:
        more = f" and {len(places) - _SHOWN} more columns" if len(places) > _SHOWN else ""
        raise InvalidInput(f"infinity in {', '.join(places[:_SHOWN])}{more}")

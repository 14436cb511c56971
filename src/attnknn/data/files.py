"""Tables in files: CSV and Parquet, with errors that name the file and the row."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput, MissingData, MissingExtra

if TYPE_CHECKING:
    import pandas as pd

TEXT = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")

_SEPARATORS = (",", ";", "\t")
_SAMPLE = 20  # records that tell the separator
_SHOWN = 5


def read_table_file(
    path: str | PathLike[str], target: str | None = None
) -> tuple[pd.DataFrame, NDArray[Any] | None]:
    """Read a CSV or Parquet file, and set the column to be predicted apart.

    CSV is UTF-8 text with a header, separated by commas, semicolons or tabs. Empty cells and ``NA``
    are missing values.

    Args:
        path: A file that ends in .csv, .tsv, .txt, .parquet or .pq.
        target: The column of labels; it must be there and complete. None reads features only.

    Returns:
        The features, and the labels or None.

    Raises:
        MissingData: There is no such file.
        InvalidInput: The file cannot be read as a table, or the target column cannot be used.
        MissingExtra: Parquet without pyarrow.
    """
    file = Path(path)
    reader = _reader(file)
    frame = reader(file)
    if not len(frame) or not len(frame.columns):
        raise InvalidInput(f"{file} holds no rows: {len(frame)} rows, {len(frame.columns)} columns")
    return (frame, None) if target is None else _apart(frame, target, file)


def _reader(file: Path) -> Any:
    suffix = file.suffix.lower()
    if suffix not in TEXT + PARQUET:
        known = ", ".join(TEXT + PARQUET)
        raise InvalidInput(f"{file}: unknown extension {suffix!r}; expected one of: {known}")
    if not file.exists():
        raise MissingData(f"no such file: {file}")
    if not file.is_file():
        raise InvalidInput(f"{file} is not a file")
    return _read_text if suffix in TEXT else _read_parquet


def _read_text(file: Path) -> pd.DataFrame:
    import pandas as pd

    text = _decoded(file)
    separator = _separator(text)
    _check_records(text, separator, file)
    try:
        # low_memory reads in pieces, and guesses a column's type for each of them.
        return pd.read_csv(io.StringIO(text), sep=separator, low_memory=False, index_col=False)
    except (ValueError, OverflowError, IndexError) as error:
        raise InvalidInput(f"{file} cannot be read as CSV: {error}") from None


def _decoded(file: Path) -> str:
    content = _content(file)
    if not content.removeprefix(codecs.BOM_UTF8).strip():
        raise InvalidInput(f"{file} is empty")
    if b"\0" in content:
        raise InvalidInput(f"{file} is not UTF-8 text: it holds binary zeros")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None


def _separator(text: str) -> str:
    """The separator that cuts the first records into most fields, the same number in each."""

    def fit(separator: str) -> tuple[bool, int]:
        records = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            widths = [len(record) for _, record in zip(range(_SAMPLE), records, strict=False) if record]
        except csv.Error:
            return False, 0
        return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0

    return max(_SEPARATORS, key=fit)


def _check_records(text: str, separator: str, file: Path) -> None:
    """Refuse what pandas would mend in silence: short or long records, and names used twice."""
    records = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        header = next(record for record in records if record)
        twice = sorted({name for name in header if name and header.count(name) > 1})
        if twice:
            raise InvalidInput(f"{file}: column {twice[0]!r} appears more than once in the header")
        for record in records:
            if record and len(record) != len(header):
                raise InvalidInput(
                    f"{file}, line {records.line_num}: {len(record)} fields, but the header has {len(header)}"
                )
    except csv.Error as error:
        raise InvalidInput(f"{file}, line {records.line_num}: {error}") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("Parquet needs pyarrow: pip install 'attnknn[parquet]'") from None
    try:
        return pd.read_parquet(io.BytesIO(_content(file)), engine="pyarrow")
    except (pa.ArrowException, ValueError, OSError, KeyError, TypeError) as error:
        raise InvalidInput(f"{file} cannot be read as Parquet: {error}") from None


def _apart(frame: pd.DataFrame, target: str, file: Path) -> tuple[pd.DataFrame, NDArray[Any]]:
    names = [str(name) for name in frame.columns]
    if target not in names:
        raise InvalidInput(f"{file} has no column {target!r}; its columns are: {', '.join(names)}")
    if len(names) == 1:
        raise InvalidInput(f"{file} has no column besides the target {target!r}")
    at = names.index(target)
    labels = frame.iloc[:, at]
    absent = np.flatnonzero(labels.isna().to_numpy())
    if len(absent):
        raise InvalidInput(
            f"{file}: target {target!r} is missing in {len(absent)} row{'s' * (len(absent) > 1)} "
            f"({_some(absent.tolist())}, counted from 0)"
        )
    return frame.drop(columns=frame.columns[at]), _labels(labels.tolist(), target, file)


def _labels(values: Sequence[Any], target: str, file: Path) -> NDArray[Any]:
    try:
        labels = np.array(values)
    except ValueError:
        labels = np.array(None)
    if labels.ndim != 1 or labels.dtype.kind not in "biufU":
        raise InvalidInput(f"{file}: target {target!r} holds neither numbers nor text")
    return labels


def _some(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:_SHOWN])) + (", ..." if len(rows) > _SHOWN else "")

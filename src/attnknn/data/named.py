"""Data sets by name: those of scikit-learn, and original files that are checked before they are read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnknn.data.sources import NAMED, PLACES, Source
from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import pandas as pd

ENVIRONMENT = "ATTNKNN_DATA"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Rows, labels, and the official split where there is one.

    Args:
        name: The name it was loaded by.
        X: Features: an array, or a pandas DataFrame where columns have names. Photographs and scans are
            uint8 of shape (n, height, width, channels).
        y: Labels, integers or text.
        target: What the labels are called.
        train_rows: Rows of the official training set, or None.
        test_rows: Rows of the official test set, or None.
        image_shape: Height and width of an image that each row is, or None.
        description: One line on what is to be predicted.
    """

    name: str
    X: NDArray[np.float64] | NDArray[np.uint8] | pd.DataFrame
    y: NDArray[Any]
    target: str
    train_rows: NDArray[np.int64] | None
    test_rows: NDArray[np.int64] | None
    image_shape: tuple[int, int] | None
    description: str


def load_named(name: str, data_dir: str | PathLike[str] | None = None) -> DataSet:
    """Load a data set by name; files are checked against their SHA-256 before they are read.

    Args:
        name: A key of ``NAMED``.
        data_dir: Folder of the data files; the environment variable ATTNKNN_DATA stands in for it.

    Raises:
        InvalidInput: No such name, or a file that is not the original.
        MissingData: A file or the folder is absent.

    >>> load_named("iris").X.shape
    (150, 4)
    """
    source = _source(name)
    folder = Path()
    if source.files:
        folder = _folder(name, source, data_dir)
        for file, expected in source.files:
            _check_file(name, source, folder, file, expected)
    X, y = source.read(folder)
    train, test = _official(source.train_count, len(y))
    return DataSet(name, X, y, source.target, train, test, source.image_shape, source.description)


def verify(name: str, data_dir: str | PathLike[str] | None = None) -> list[tuple[str, bool, str]]:
    """Check a data set's files and say for each (file, whether it is the original, message).

    >>> verify("iris")
    [('iris', True, 'comes with scikit-learn')]
    """
    source = _source(name)
    if not source.files:
        return [(name, True, "comes with scikit-learn")]
    return [_verdict(name, source, data_dir, file, expected) for file, expected in source.files]


def _source(name: str) -> Source:
    if name not in NAMED:
        raise InvalidInput(f"no data set is called {name!r}; try one of: {', '.join(NAMED)}")
    return NAMED[name]


def _verdict(
    name: str, source: Source, data_dir: str | PathLike[str] | None, file: str, expected: str
) -> tuple[str, bool, str]:
    try:
        _check_file(name, source, _folder(name, source, data_dir), file, expected)
    except (InvalidInput, MissingData) as error:
        return file, False, str(error)
    return file, True, "SHA-256 matches"


def _folder(name: str, source: Source, data_dir: str | PathLike[str] | None) -> Path:
    # An empty variable means none, as everywhere in a shell.
    given = data_dir if data_dir is not None else os.environ.get(ENVIRONMENT) or None
    if given is None:
        raise _absent(name, source, "no data folder is set")
    folder = Path(given)
    if not folder.is_dir():
        raise _absent(name, source, f"the data folder {folder} does not exist")
    return folder


def _check_file(name: str, source: Source, folder: Path, file: str, expected: str) -> None:
    path = folder / file
    if not path.is_file():
        raise _absent(name, source, f"{path} is absent")
    found = _sha256(path)
    if found != expected:
        raise InvalidInput(f"{path} is not the original file: expected SHA-256 {expected}, found {found}")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _absent(name: str, source: Source, problem: str) -> MissingData:
    files = ", ".join(file for file, _ in source.files)
    return MissingData(
        f"{name}: {problem}. Expected below the data folder, unpacked: {files}. The files come from "
        f"{PLACES[source.place]}, data set {source.title!r}; nothing is downloaded by itself. "
        f"Name the folder with --data-dir or the environment variable {ENVIRONMENT}."
    )


def _official(train: int | None, rows: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if train is None:
        return None, None
    return np.arange(train, dtype=np.int64), np.arange(train, rows, dtype=np.int64)

"""Data sets by name: those of scikit-learn, and files of the UCI repository that are checked first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnknn.data import uci
from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import pandas as pd

ENVIRONMENT = "ATTNKNN_DATA"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Rows, labels, and the official split where there is one.

    Args:
        name: The name it was loaded by.
        X: Features: an array, or a pandas DataFrame where columns have names.
        y: Labels, integers or text.
        target: What the labels are called.
        train_rows: Rows of the official training set, or None.
        test_rows: Rows of the official test set, or None.
        image_shape: Height and width of an image that each row is, or None.
        description: One line on what is to be predicted.
    """

    name: str
    X: NDArray[np.float64] | pd.DataFrame
    y: NDArray[Any]
    target: str
    train_rows: NDArray[np.int64] | None
    test_rows: NDArray[np.int64] | None
    image_shape: tuple[int, int] | None
    description: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set comes from.

    Args:
        target: What the labels are called.
        description: One line on what is to be predicted.
        read: Takes the data folder, gives features and labels.
        files: SHA-256 of each file below the data folder; none for scikit-learn's own sets.
        title: The set's name in the UCI Machine Learning Repository.
        train_count: Leading rows that form the official training set, or None.
        image_shape: Height and width where rows are images.
    """

    target: str
    description: str
    read: Callable[[Path], tuple[Any, NDArray[Any]]]
    files: tuple[tuple[str, str], ...] = ()
    title: str = ""
    train_count: int | None = None
    image_shape: tuple[int, int] | None = None


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
        f"{name}: {problem}. Expected below the data folder: {files}. The files are in the UCI Machine "
        f"Learning Repository, data set {source.title!r}; nothing is downloaded by itself. "
        f"Name the folder with --data-dir or the environment variable {ENVIRONMENT}."
    )


def _official(train: int | None, rows: int) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    if train is None:
        return None, None
    return np.arange(train, dtype=np.int64), np.arange(train, rows, dtype=np.int64)


def _from_sklearn(loader: str) -> Callable[[Path], tuple[Any, NDArray[Any]]]:
    """A reader of one of scikit-learn's sets: named columns, and labels by name."""

    def read(_: Path) -> tuple[Any, NDArray[Any]]:
        from sklearn import datasets

        bunch = getattr(datasets, loader)(as_frame=True)
        return bunch.data, np.asarray(bunch.target_names).astype(str)[bunch.target.to_numpy()]

    return read


def _digits(_: Path) -> tuple[Any, NDArray[Any]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target.astype(np.int64)


_WINE_FILES = {
    "red": "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    "white": "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
}


def _wine_quality(color: str) -> Source:
    return Source(
        target="quality",
        description=f"Taste of {color} Portuguese wines, graded by experts, from eleven measures.",
        read=uci.read_wine_quality(color),
        files=((f"wine-quality/winequality-{color}.csv", _WINE_FILES[color]),),
        title="Wine Quality",
    )


NAMED: dict[str, Source] = {
    "iris": Source("species", "Species of iris flowers from four measures.", _from_sklearn("load_iris")),
    "wine": Source(
        "cultivar",
        "Cultivar of Italian wines from thirteen measures; not Wine Quality.",
        _from_sklearn("load_wine"),
    ),
    "breast-cancer": Source(
        "diagnosis",
        "Malignant or benign, from thirty measures of cell nuclei.",
        _from_sklearn("load_breast_cancer"),
    ),
    "digits": Source("digit", "Handwritten digits of 8 x 8 pixels.", _digits, image_shape=(8, 8)),
    "adult": Source(
        target="income",
        description="Whether a person earns more than 50,000 dollars a year, from census answers.",
        read=uci.read_adult,
        files=(
            ("adult/adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            ("adult/adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ),
        title="Adult",
        train_count=uci.ADULT_TRAIN_ROWS,
    ),
    "wine-quality-red": _wine_quality("red"),
    "wine-quality-white": _wine_quality("white"),
    "bank-marketing": Source(
        target="y",
        description="Whether a client subscribes to a term deposit; the duration of the call is left out.",
        read=uci.read_bank_marketing,
        files=(
            (
                "bank-marketing/bank-additional-full.csv",
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
            ),
        ),
        title="Bank Marketing",
    ),
    "letter": Source(
        target="letter",
        description="Printed capital letters from sixteen measures.",
        read=uci.read_letter,
        files=(
            (
                "letter/LetterRecognition.csv",
                "143b56adb63c0d6b7beb6c5b4ecf6e5991707f521a88efa4fdc4b5f7b3ec99a1",
            ),
        ),
        title="Letter Recognition",
    ),
    "german-credit": Source(
        target="credit",
        description="Whether a loan turned out good or bad.",
        read=uci.read_german_credit,
        files=(
            (
                "german-credit/german.csv",
                "ec12a88b9fc14d74ba646ea0410cf7ff4533bec2eb61652f8ad76796bbfec017",
            ),
        ),
        title="Statlog (German Credit Data)",
    ),
}

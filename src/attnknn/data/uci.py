"""How the files of the UCI Machine Learning Repository are read, one function for each set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Labelled = tuple["pd.DataFrame", NDArray[Any]]

ADULT_TRAIN_ROWS = 32_561
ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
# The file has no header; german.names describes the columns in this order.
GERMAN = (
    "status", "duration", "credit_history", "purpose", "amount", "savings", "employment_since",
    "installment_rate", "personal_status_sex", "other_debtors", "residence_since", "property", "age",
    "other_installment_plans", "housing", "existing_credits", "job", "liable_people", "telephone",
    "foreign_worker",
)  # fmt: skip


def read_adult(folder: Path) -> Labelled:
    """Census rows of adult.data, then of adult.test; '?' is a missing value."""
    import pandas as pd

    parts = [_adult_part(folder / "adult" / name) for name in ("adult.data", "adult.test")]
    frame = pd.concat(parts, ignore_index=True)
    # Labels of adult.test end in a full stop.
    return _labelled(frame, "income", lambda text: str(text).rstrip("."))


GOOD_WINE = 6
"""The grade from which on a wine is called good."""


def read_wine_quality(color: str, *, good: bool = False) -> Callable[[Path], Labelled]:
    """A reader of the red or the white wines; labels are the grades, or whether they are good ones."""

    def read(folder: Path) -> Labelled:
        frame = _csv(folder / "wine-quality" / f"winequality-{color}.csv", sep=";")
        X, grades = _labelled(frame, "quality", int)
        return X, np.where(grades >= GOOD_WINE, "good", "plain") if good else grades

    return read


def read_bank_marketing(folder: Path) -> Labelled:
    """Phone calls of a bank, without ``duration``: it is known only once the answer is."""
    frame = _csv(folder / "bank-marketing" / "bank-additional-full.csv", sep=";")
    return _labelled(frame.drop(columns="duration"), "y", str)


def read_letter(folder: Path) -> Labelled:
    """Printed capital letters as sixteen measures."""
    return _labelled(_csv(folder / "letter" / "LetterRecognition.csv"), "lettr", str)


def read_german_credit(folder: Path) -> Labelled:
    """Loans, good or bad."""
    frame = _csv(folder / "german-credit" / "german.csv", header=None, names=[*GERMAN, "credit"])
    return _labelled(frame, "credit", lambda code: {1: "good", 2: "bad"}[int(code)])


def _adult_part(file: Path) -> pd.DataFrame:
    # adult.test opens with a line of comment that starts with a bar.
    return _csv(file, header=None, names=[*ADULT, "income"], na_values="?", skipinitialspace=True, comment="|")


def _csv(file: Path, **options: Any) -> pd.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = pd.read_csv(file, keep_default_na=False, **options)
    return frame


def _labelled(frame: pd.DataFrame, target: str, label: Callable[[Any], object]) -> Labelled:
    labels = np.array([label(value) for value in frame[target].tolist()])
    return frame.drop(columns=target), labels

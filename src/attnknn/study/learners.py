"""Learners of rows, which become numbers here: columns of a table, or pixels of images.

Most grow by rounds, so that one rule of early stopping serves MLP and boosted trees.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnknn.data import Column, Table
from attnknn.embed import Standardize
from attnknn.study.job import Floats, Job
from attnknn.study.splits import Rows, Task

T = TypeVar("T")
Numbers = NDArray[np.floating[Any]]
Encoder = Callable[[Table], Floats]

MOST_CATEGORIES = 254
"""Categories that boosted trees tell apart in a column; scikit-learn bins no more than 255."""

MOST_ITERATIONS = 300
"""Steps of the logistic regression; where classes can be told apart it would go on for ever with a large C."""


class Learner(Protocol):
    """Fitted step by step on the rows it was made with."""

    def grow(self, rounds: int) -> None:
        """Learn for some rounds more."""
        ...

    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        ...


class Encoded(Generic[T]):
    """Rows as numbers; the encoding is learned from ``fit`` rows, and the last answer is kept.

    ``take`` gives some rows as ``learn``, and what that returns, read them.
    """

    def __init__(self, take: Callable[[Rows], T], fit: Rows, learn: Callable[[T], Callable[[T], Numbers]]) -> None:
        self._take = take
        self._encode = learn(take(fit))
        self._last: tuple[Rows, Numbers] | None = None

    def __call__(self, rows: Rows) -> Numbers:
        """(rows, width) numbers."""
        if self._last is None or self._last[0] is not rows:
            self._last = rows, self._encode(self._take(rows))
        return self._last[1]


def vectors_of(task: Task, fit: Rows) -> Encoded[Any]:
    """Rows for what goes by distance or gradient: the scaled columns of a table, or the pixels of images."""
    if task.columns is None:
        return Encoded(task.take, fit, as_pixels)
    return Encoded(task.columns.take, fit, as_vectors)


def as_pixels(images: NDArray[np.uint8]) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Each pixel less its mean, over 255: all in one unit, since a pixel that hardly varies should hardly count.

    The means change no distance and, beside an intercept, no linear model; it is found in a third of the steps.
    """
    means = images.reshape(len(images), -1).mean(axis=0).astype(np.float32)

    def encode(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = rows.reshape(len(rows), len(means)) - means
        found /= 255  # in place: CIFAR-10 takes 600 MB as it is
        return found

    return encode


def as_vectors(table: Table) -> Encoder:
    """Standardized numbers and one-hot categories, for what goes by distance or gradient."""
    embedder = Standardize().fit(table)
    return lambda rows: embedder.transform(rows).astype(np.float64)


def as_codes(table: Table) -> Encoder:
    """Numbers as they are and categories as codes, NaN where missing or unknown, for trees."""
    codes = [_category_codes(column) for column in table.columns]

    def coded(rows: Table) -> Floats:
        return np.column_stack([_coded(c, known) for c, known in zip(rows.columns, codes, strict=True)])

    empty = np.isnan(coded(table)).all(axis=0)  # trees cannot bin a column without a value

    def encode(rows: Table) -> Floats:
        return np.where(empty, 0.0, coded(rows))

    return encode


def aligned(classes: NDArray[Any], probabilities: Floats, count: int) -> Floats:
    """Columns for all classes, though some had no row to be learned from."""
    if len(classes) == count:
        return np.asarray(probabilities, np.float64)
    found = np.zeros((len(probabilities), count))
    found[:, classes] = probabilities
    return found


class MLP:
    """scikit-learn's MLPClassifier, an epoch for each round."""

    def __init__(self, job: Job, fit: Rows, settings: Mapping[str, Any]) -> None:
        from sklearn.neural_network import MLPClassifier

        self._vectors = vectors_of(job.task, fit)
        self._X, self._y = self._vectors(fit), job.parts.labels[fit]
        self._classes = np.arange(len(job.task.classes))
        self._model = MLPClassifier(
            tuple(settings["hidden"]),
            alpha=settings["alpha"],
            learning_rate_init=settings["learning_rate"],
            random_state=job.seed,
        )

    def grow(self, rounds: int) -> None:
        """Learn for some epochs more."""
        for _ in range(rounds):
            self._model.partial_fit(self._X, self._y, classes=self._classes)

    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        return np.asarray(self._model.predict_proba(self._vectors(rows)))


class Logistic:
    """scikit-learn's LogisticRegression, fitted at once."""

    def __init__(self, job: Job, fit: Rows) -> None:
        from sklearn.linear_model import LogisticRegression

        self._vectors = vectors_of(job.task, fit)
        self._X, self._y = self._vectors(fit), job.parts.labels[fit]
        self._classes = len(job.task.classes)
        self._model = LogisticRegression(max_iter=MOST_ITERATIONS)

    def at(self, C: float) -> Self:
        """Fit anew with this inverse strength of the penalty; one that stays on its way is judged as it is."""
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.set_params(C=C).fit(self._X, self._y)
        self._model.coef_ = self._model.coef_.astype(np.float64)  # in 32 bits the chance of a class could be 0
        return self

    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        return aligned(self._model.classes_, self._model.predict_proba(self._vectors(rows)), self._classes)


class HGB:
    """scikit-learn's HistGradientBoostingClassifier, which knows categories by itself."""

    def __init__(self, job: Job, fit: Rows, settings: Mapping[str, Any]) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        self._numbers = Encoded(job.task.table.take, fit, as_codes)
        self._X, self._y = self._numbers(fit), job.parts.labels[fit]
        self._classes = len(job.task.classes)
        self._rounds = 0
        self._model = HistGradientBoostingClassifier(
            learning_rate=settings["learning_rate"],
            max_leaf_nodes=settings["leaves"],
            categorical_features=[column.kind == "categorical" for column in job.task.table.columns],
            early_stopping=False,
            warm_start=True,
            random_state=job.seed,
        )

    def grow(self, rounds: int) -> None:
        """Add some trees for each class."""
        self._rounds += rounds
        self._model.set_params(max_iter=self._rounds).fit(self._X, self._y)

    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        return aligned(self._model.classes_, self._model.predict_proba(self._numbers(rows)), self._classes)


class LightGBM:
    """LightGBM's booster."""

    def __init__(self, job: Job, fit: Rows, settings: Mapping[str, Any]) -> None:
        library = import_module("lightgbm")
        self._numbers = Encoded(job.task.table.take, fit, as_codes)
        self._classes = len(job.task.classes)
        kinds = [column.kind for column in job.task.table.columns]
        rows = library.Dataset(
            self._numbers(fit),
            job.parts.labels[fit],
            categorical_feature=[at for at, kind in enumerate(kinds) if kind == "categorical"],
            params={"verbosity": -1},
        )
        binary = self._classes == 2
        task = {"objective": "binary"} if binary else {"objective": "multiclass", "num_class": self._classes}
        shape = {"learning_rate": settings["learning_rate"], "num_leaves": settings["leaves"]}
        steady = {"seed": job.seed, "deterministic": True, "force_row_wise": True, "verbosity": -1}
        self._booster = library.Booster({**task, **shape, **steady}, rows)

    def grow(self, rounds: int) -> None:
        """Add some trees for each class."""
        for _ in range(rounds):
            self._booster.update()

    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        found = np.asarray(self._booster.predict(self._numbers(rows)))
        return np.column_stack([1 - found, found]) if self._classes == 2 else found


def _category_codes(column: Column) -> dict[str, int] | None:
    """Categories by frequency; None for numbers. Beyond the first 254 they count as missing."""
    if column.kind != "categorical":
        return None
    present = [value for value in column.values if value is not None]
    names, counts = np.unique(np.array(present, dtype=str), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    return {str(name): code for code, name in enumerate(names[order])}


def _coded(column: Column, known: dict[str, int] | None) -> Floats:
    if known is None:
        return np.asarray(column.values, np.float64)
    return np.array([known.get(value, np.nan) for value in column.values], np.float64)

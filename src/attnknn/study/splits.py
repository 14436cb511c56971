"""Rows of a study: which are learned from, which choose a baseline's settings, which are tested on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnknn.data import Table, as_table, duplicate_groups, folds, split
from attnknn.data.noise import flip_labels
from attnknn.data.uci import ADULT_TRAIN_ROWS
from attnknn.errors import InvalidInput
from attnknn.study.recipe import ROBUST, Noise, OurSettings, Recipe, Validation

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]
Check = tuple[Rows, Rows]  # rows to fit on, rows held out

LETTER_TRAIN_ROWS = 16_000  # its description trains on the first 16,000 and tests on the rest


@dataclass(frozen=True, slots=True)
class Rule:
    """How a named set is split where its reports agree on it."""

    test_share: float = 0.2
    train_rows: int | None = None
    drop_duplicates: bool = False


RULES: dict[str, Rule] = {
    "adult": Rule(train_rows=ADULT_TRAIN_ROWS),
    "letter": Rule(train_rows=LETTER_TRAIN_ROWS),
    "digits": Rule(test_share=0.3),
    "wine-quality-red": Rule(drop_duplicates=True),
    "wine-quality-white": Rule(drop_duplicates=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A data set before any split: ``codes[i]`` is the place of row i's label in ``classes``."""

    frame: pd.DataFrame
    table: Table
    codes: Rows
    classes: NDArray[Any]
    groups: Rows

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The rows of one seed. ``labels`` are those to learn from; test rows have their own, clean."""

    train: Rows
    test: Rows
    checks: tuple[Check, ...]
    labels: Rows  # (all rows,)


def recipe_for(
    frame: pd.DataFrame,
    labels: NDArray[Any],
    *,
    data: str,
    target: str,
    named: bool,
    study: str = "main",
    test_share: float | None = None,
    members: int = 5,
    noise: Noise | None = None,
    k: int | None = None,
) -> Recipe:
    """The recipe of a data set; ``named`` says that ``data`` is one of ``NAMED``, so that its rule counts.

    Raises:
        InvalidInput: ``test_share`` was given, but the set has an official split.
    """
    rule = RULES.get(data, Rule()) if named else Rule()
    if rule.train_rows is not None and test_share is not None:
        raise InvalidInput(f"{data} has official training and test rows: a share for testing has no meaning")
    return Recipe(
        study=study,
        data=data,
        target=target,
        data_hash=content_hash(as_table(frame), labels),
        train_rows=rule.train_rows,
        test_share=None if rule.train_rows is not None else test_share or rule.test_share,
        drop_duplicates=rule.drop_duplicates,
        members=members,
        noise=noise or Noise(),
        ours=OurSettings(
            n_neighbors="auto" if k is None else k,
            options={ROBUST: 0.7} if noise is not None and noise.rate else {},
        ),
    )


def task_of(frame: pd.DataFrame, labels: NDArray[Any], recipe: Recipe) -> Task:
    """The rows that a recipe speaks of.

    Raises:
        InvalidInput: Fewer than two classes.
    """
    kept = np.arange(len(labels))
    if recipe.drop_duplicates:
        whole = frame.assign(**{f"label of {recipe.data}": labels})
        kept = np.unique(duplicate_groups(whole), return_index=True)[1]
    frame, labels = frame.iloc[kept], labels[kept]
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InvalidInput(f"a study needs at least two classes; {recipe.target!r} is always {classes[0]!r}")
    table = as_table(frame)
    return Task(frame, table, codes.astype(np.int64), classes, duplicate_groups(table))


def parts(task: Task, recipe: Recipe, seed: int) -> Parts:
    """The rows of one seed: stratified, duplicates together; noise in what is learned from.

    An official split stays as it is: the seed then decides only what is held out for validation.
    """
    if recipe.train_rows is not None:
        train, test = np.arange(recipe.train_rows), np.arange(recipe.train_rows, len(task))
    else:
        train, test = split(task.codes, test=recipe.test_share or 0.2, seed=seed, groups=task.groups)
    if not len(test):
        raise InvalidInput(f"no class of {recipe.data} can spare a row to test on: {len(task)} rows")
    labels = task.codes.copy()
    if recipe.noise.rate:
        labels[train] = flip_labels(
            labels[train],
            recipe.noise.rate,
            kind=recipe.noise.kind,
            classes=len(task.classes),
            random=np.random.default_rng([seed, 1]),
        )
    return Parts(train, test, _checks(labels, task.groups, train, recipe.validation, seed), labels)


def content_hash(table: Table, labels: NDArray[Any]) -> str:
    """SHA-256 of names, values and labels, whatever file they came from."""
    digest = hashlib.sha256()
    for column in table.columns:
        digest.update(f"{column.name}\0{column.kind}\0".encode())
        if column.kind == "categorical":
            digest.update("\0".join("\1" if v is None else v for v in column.values).encode())
        else:
            digest.update((np.where(np.isnan(column.values), np.nan, column.values) + 0.0).tobytes())
    digest.update("\0".join(map(str, labels.tolist())).encode())
    return digest.hexdigest()


def _checks(labels: Rows, groups: Rows, train: Rows, how: Validation, seed: int) -> tuple[Check, ...]:
    if len(train) < how.folds_below:
        pairs = folds(labels[train], how.folds, seed=seed, groups=groups[train])
    else:
        pairs = [split(labels[train], test=how.fraction, seed=seed, groups=groups[train])]
    return tuple((train[fit], train[held]) for fit, held in pairs)

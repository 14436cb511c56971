"""Rows of a study: which are learned from, which choose a baseline's settings, which are tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnknn.data import NAMED, Table, as_table, duplicate_groups, folds, is_images, split
from attnknn.data.noise import flip_labels
from attnknn.data.tails import long_tail
from attnknn.errors import InvalidInput
from attnknn.estimator.options import TRAIN_FROM
from attnknn.study.points import Point
from attnknn.study.recipe import (
    NOISY_IMAGES,
    NOISY_TABLES,
    BoostingGrid,
    MLPGrid,
    Noise,
    OurSettings,
    Recipe,
    Rounds,
    TrunkGrid,
    Validation,
)
from attnknn.study.source import SOURCES, Source
from attnknn.train import ImageOptions, TrainingOptions
from attnknn.train.policies import policy_for

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]
Check = tuple[Rows, Rows]  # rows to fit on, rows held out

QUICK_ROWS, QUICK_EPOCHS = 20_000, 5
LETTER_TRAIN_ROWS = 16_000  # its description trains on the first 16,000 and tests on the rest


@dataclass(frozen=True, slots=True)
class Rule:
    """How a named set is split."""

    test_share: float = 0.2
    train_rows: int | None = None
    drop_duplicates: bool = False


RULES: dict[str, Rule] = {
    "letter": Rule(train_rows=LETTER_TRAIN_ROWS),
    "digits": Rule(test_share=0.3),
    "wine-quality-red": Rule(drop_duplicates=True),
    "wine-quality-red-good": Rule(drop_duplicates=True),
    "wine-quality-white": Rule(drop_duplicates=True),
    "wine-quality-white-good": Rule(drop_duplicates=True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A data set before any split: ``codes[i]`` is the place of row i's label in ``classes``."""

    X: pd.DataFrame | NDArray[np.uint8]
    codes: Rows
    classes: NDArray[Any]
    groups: Rows
    columns: Table | None = None  # None for images

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def table(self) -> Table:
        """The columns, for methods that know no images."""
        if self.columns is None:
            raise InvalidInput("this method learns from tables; these are images")
        return self.columns

    def take(self, rows: Rows) -> Any:
        """Some rows, as a classifier takes them."""
        return self.X[rows] if isinstance(self.X, np.ndarray) else self.X.iloc[rows]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The rows of one seed. ``labels`` are those to learn from; test rows have their own, clean."""

    train: Rows
    test: Rows
    checks: tuple[Check, ...]
    labels: Rows  # (all rows,)


def recipe_for(
    X: pd.DataFrame | NDArray[np.uint8],
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
    images: Mapping[str, Any] | None = None,
    quick: bool = False,
    source: str | None = None,
) -> Recipe:
    """The recipe of a data set; ``named`` says that ``data`` is one of ``NAMED``, so that its rule counts.

    ``images`` are options of ``ImageOptions`` that differ from the usual ones, and ``quick`` is for a first look;
    ``source`` is one of ``SOURCES``, whose settings are the usual ones then.

    Raises:
        InvalidInput: ``test_share`` was given, but the set has an official split.
    """
    rule = _rule(data) if named else Rule()
    if rule.train_rows is not None and test_share is not None:
        raise InvalidInput(f"{data} has official training and test rows: a share for testing has no meaning")
    pictures = is_images(X)
    if images and not pictures:
        raise InvalidInput(f"{data} is a table, which does not read {', '.join(images)}")
    if source is not None and not pictures:
        raise InvalidInput(f"{source} is a recipe of images; {data} is a table")
    usual = OurSettings() if source is None else _as_source(SOURCES[source])
    short = {"epochs": QUICK_EPOCHS} if quick else {}
    trained = {
        "augmentation": policy_for(data if named else None),
        **(usual.images or {}),
        **short,
        **(images or {}),
    }
    recipe = Recipe(
        study=study,
        data=data,
        target=target,
        data_hash=content_hash(X, labels),
        train_rows=rule.train_rows,
        test_share=None if rule.train_rows is not None else test_share or rule.test_share,
        drop_duplicates=rule.drop_duplicates,
        members=members,
        ours=replace(
            usual,
            n_neighbors=usual.n_neighbors if k is None else k,
            images=ImageOptions(**trained).state() if pictures else None,
            under_noise=_under_noise(trained) if pictures else NOISY_TABLES,
        ),
    )
    return noisy(quickened(recipe, len(labels)) if quick else recipe, noise or Noise())


def _under_noise(images: Mapping[str, Any]) -> dict[str, Any]:
    """What changes under wrong labels; a number of epochs that was asked for stays."""
    asked = images.get("epochs") is not None
    return {name: value for name, value in NOISY_IMAGES.items() if name != "epochs" or not asked}


def _as_source(source: Source) -> OurSettings:
    return OurSettings(
        n_neighbors=source.k, images=source.images, heads=source.heads, k_ensemble=source.k_ensemble
    )


def quickened(recipe: Recipe, rows: int) -> Recipe:
    """The recipe for a first look: few rows and short trainings, little tried and hardly anything averaged."""
    learned = recipe.train_rows or (1 - (recipe.test_share or 0.0)) * rows
    trains = recipe.ours.images is None and learned >= TRAIN_FROM  # on fewer only what is named is trained
    short = TrainingOptions(epochs=QUICK_EPOCHS).state() if trains else None
    return replace(
        recipe,
        most_rows=QUICK_ROWS,
        members=min(2, recipe.members),
        validation=replace(recipe.validation, folds_below=0),
        mlp=MLPGrid(hidden=((128,),), rounds=Rounds(step=1, patience=5, most=50)),
        trunk=TrunkGrid(lr=(3e-3,), rounds=Rounds(step=1, patience=5, most=20)),
        boosting=BoostingGrid(learning_rate=(0.1,), leaves=(31,), rounds=Rounds(step=20, patience=2, most=200)),
        draws=200,
        ours=replace(recipe.ours, table=short),
    )


def noisy(recipe: Recipe, noise: Noise) -> Recipe:
    """The recipe with wrong labels, and with what our methods do about them."""
    if not noise.rate:
        return replace(recipe, noise=noise)
    ours = recipe.ours
    if ours.images is None:
        return replace(recipe, noise=noise, ours=replace(ours, options={**ours.options, **ours.under_noise}))
    return replace(recipe, noise=noise, ours=replace(ours, images={**ours.images, **ours.under_noise}))


def at_point(recipe: Recipe, point: Point) -> Recipe:
    """The recipe as it is followed at a point of its study: what reaches the bank alone changes no training."""
    if point.k is not None:
        recipe = replace(recipe, ours=replace(recipe.ours, n_neighbors=point.k))
    return noisy(recipe, point.noise) if point.noise.rate and not point.bank_only else recipe


def _rule(name: str) -> Rule:
    """How a named set is split: as its files are, or as ``RULES`` says."""
    official = NAMED[name].train_count if name in NAMED else None
    return RULES.get(name, Rule()) if official is None else Rule(train_rows=official)


def task_of(X: pd.DataFrame | NDArray[np.uint8], labels: NDArray[Any], recipe: Recipe) -> Task:
    """The rows that a recipe speaks of.

    Raises:
        InvalidInput: Fewer than two classes, or no column in which rows differ.
    """
    if recipe.drop_duplicates and not isinstance(X, np.ndarray):
        whole = X.assign(**{f"label of {recipe.data}": labels})
        kept = np.unique(duplicate_groups(whole), return_index=True)[1]
        X, labels = X.iloc[kept], labels[kept]
    if labels.dtype.kind == "f" and (broken := labels[labels != np.floor(labels)]).size:
        raise InvalidInput(f"{recipe.target!r} must hold classes; it holds numbers such as {broken[0]:g}")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InvalidInput(f"a study needs at least two classes; {recipe.target!r} is always {str(classes[0])!r}")
    columns = None if isinstance(X, np.ndarray) else as_table(X)
    if columns is not None and len(same := constant_columns(columns)) == len(columns.columns):
        named = ", ".join(f"{name!r} ({what})" for name, what in list(same.items())[:5])
        raise InvalidInput(f"no column of {recipe.data} tells rows apart: {named}")
    alike = X.reshape(len(X), -1) if isinstance(X, np.ndarray) else columns
    return Task(X, codes.astype(np.int64), classes, duplicate_groups(alike), columns)


def constant_columns(table: Table) -> dict[str, str]:
    """Columns that are the same in every row, and what they hold; values that are missing here and there tell."""
    found = {}
    for column in table.columns:
        if column.missing.all():
            found[column.name] = "no value"
        elif not column.missing.any() and len(set(column.values.tolist())) == 1:
            value = column.values[0]
            found[column.name] = f"always {value!r}" if column.kind == "categorical" else f"always {value:g}"
    return found


def parts(task: Task, recipe: Recipe, seed: int, tail: float = 1.0) -> Parts:
    """The rows of one seed: stratified, duplicates together; noise in what is learned from.

    An official split stays as it is: the seed then decides only what is held out for validation.

    Args:
        task: All rows.
        recipe: How they are split, and the share of wrong labels.
        seed: Of everything that is drawn.
        tail: Size of the rarest class over that of the most frequent, in what is learned from.
    """
    if recipe.train_rows is not None:
        train, test = np.arange(recipe.train_rows), np.arange(recipe.train_rows, len(task))
    else:
        train, test = split(task.codes, test=recipe.test_share or 0.2, seed=seed, groups=task.groups)
    if not len(test):
        raise InvalidInput(f"no class of {recipe.data} can spare a row to test on: {len(task)} rows")
    if recipe.most_rows is not None and len(train) > recipe.most_rows:
        share = recipe.most_rows / len(train)
        train = train[split(task.codes[train], test=share, seed=seed, groups=task.groups[train])[1]]
    labels = task.codes.copy()
    train = train[kept_rows(task, train, tail, seed)]
    labels[train] = wrong_labels(task, train, recipe.noise, seed)
    return Parts(train, test, _checks(labels, task.groups, train, recipe.validation, seed), labels)


def kept_rows(task: Task, train: Rows, tail: float, seed: int) -> Rows:
    """Places in ``train`` of the rows that a long tail leaves."""
    random = np.random.default_rng([seed, 3])
    everything: Rows = np.arange(len(train))
    return (
        everything if tail == 1 else long_tail(task.codes[train], tail, classes=len(task.classes), random=random)
    )


def wrong_labels(task: Task, train: Rows, noise: Noise, seed: int) -> Rows:
    """The labels of the training rows, some of them flipped."""
    given: Rows = task.codes[train]
    random = np.random.default_rng([seed, 1])
    if not noise.rate:
        return given
    return flip_labels(given, noise.rate, kind=noise.kind, classes=len(task.classes), random=random)


def content_hash(X: pd.DataFrame | NDArray[np.uint8], labels: NDArray[Any]) -> str:
    """SHA-256 of names, values and labels, whatever file they came from."""
    digest = hashlib.sha256()
    if isinstance(X, np.ndarray):
        digest.update(f"images {X.shape}\0".encode() + np.ascontiguousarray(X).tobytes())
    else:
        _add_columns(digest, as_table(X))
    digest.update("\0".join(map(str, labels.tolist())).encode())
    return digest.hexdigest()


def _add_columns(digest: Any, table: Table) -> None:
    for column in table.columns:
        digest.update(f"{column.name}\0{column.kind}\0".encode())
        if column.kind == "categorical":
            digest.update("\0".join("\1" if v is None else v for v in column.values).encode())
        else:
            digest.update((np.where(np.isnan(column.values), np.nan, column.values) + 0.0).tobytes())


def _checks(labels: Rows, groups: Rows, train: Rows, how: Validation, seed: int) -> tuple[Check, ...]:
    if len(train) < how.folds_below:
        pairs = folds(labels[train], how.folds, seed=seed, groups=groups[train])
    else:
        pairs = [split(labels[train], test=how.fraction, seed=seed, groups=groups[train])]
    if not all(len(rows) for pair in pairs for rows in pair):
        raise InvalidInput(f"{len(train)} training rows are too few to hold out {how.fraction:.0%} of them")
    return tuple((train[fit], train[held]) for fit, held in pairs)

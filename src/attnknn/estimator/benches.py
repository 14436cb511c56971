"""Members before they have weights: their vectors, their banks, and rows that may judge them.

From 2,000 rows on a part is held out: it stops the training, then judges. Below that five folds take turns, and
a last training on all rows makes the vectors that are served.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.bank import Id, MemoryBank
from attnknn.bank.store import checked_groups
from attnknn.data import folds, split
from attnknn.embed import NETWORKS, AnyNetwork, Embedder, Identity, Standardize, embed
from attnknn.errors import InvalidInput
from attnknn.estimator.options import TRAIN_FROM, Options, training_device
from attnknn.train import Hearing, History, Judges, Layout, Rows, TrainingOptions, train_network

HELD_OUT_FROM: Final = 2000
"""Rows from which one held-out part is enough."""

FOLDS: Final = 5
_LEAST_HELD: Final = 1000  # held-out rows, where that is not more than a fifth


ENCODERS: Final[dict[str, type[Identity] | type[Standardize]]] = {
    "periodic": Standardize,
    "tabular": Standardize,
    "linear": Identity,
    "standardize": Standardize,
    "identity": Identity,
}
"""How each embedder encodes rows, before the network that some of them train."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Everything ``fit`` was given, encoded."""

    rows: Rows
    ids: list[Id]
    layout: Layout
    classes: int


@dataclass(frozen=True, slots=True)
class Search:
    """How banks are searched."""

    index: str
    metric: str
    device: str

    def bank(self, dim: int, features: int = 0) -> MemoryBank:
        """An empty bank."""
        return MemoryBank(dim, index=self.index, metric=self.metric, device=self.device, features=features)


@dataclass(frozen=True, slots=True)
class Bench:
    """A member that has vectors: the bank that is served, and hearings that tell how it may do.

    Without hearings the rows of the bank judge it themselves, each leaving itself out.
    """

    network: AnyNetwork | None
    bank: MemoryBank
    hearings: tuple[Hearing, ...]
    histories: tuple[History, ...]
    seed: int


def renumbered(bench: Bench, place: NDArray[np.int64]) -> Bench:
    """The same bench where class i so far is class ``place[i]`` from now on."""
    hearings = []
    for bank, judges in ((each.bank.copy(), each.judges) for each in bench.hearings):
        bank.update(bank.ids, labels=place[bank.labels(bank.live)])
        hearings.append(Hearing(bank, replace(judges, labels=place[judges.labels])))
    return replace(bench, hearings=tuple(hearings))


@dataclass(frozen=True, slots=True)
class School:
    """How members are trained."""

    kind: str  # of network
    options: TrainingOptions
    members: int
    fraction: float  # of the rows that are held out
    seed: int
    search: Search
    device: str
    progress: bool


def lesson_of(
    encoder: Embedder,
    features: NDArray[Any],
    labels: NDArray[np.int64],
    ids: Sequence[Id] | None,
    groups: NDArray[Any] | None,
    weights: NDArray[np.float64] | None,
    classes: int,
) -> Lesson:
    """Rows as they were given; what was left out is numbered, alone and of weight 1."""
    count = len(features)
    rows = Rows(
        features,
        labels,
        np.ones(count) if weights is None else weights,
        np.full(count, -1) if groups is None else checked_groups(groups, count),
    )
    names: list[Id] = [*range(count)] if ids is None else [*ids]
    if len(names) != count:
        raise InvalidInput(f"{count} rows, but {len(names)} ids")
    return Lesson(rows, names, Layout(encoder.numbers, encoder.columns), classes)


def make_benches(model: Any, kind: str, lesson: Lesson, search: Search, options: Options) -> list[Bench]:
    """The members of a classifier with these arguments: trained where its embedder learns and rows suffice."""
    school = School(
        kind=kind,
        options=options.training,
        members=int(model.n_estimators),
        fraction=float(model.validation_fraction),
        seed=model._seed,
        search=search,
        device=training_device(model.device, len(lesson.rows)),
        progress=bool(model.verbose),
    )
    asked = model.training is not None
    if kind in NETWORKS and _teachable(lesson.rows, TRAIN_FROM if not asked else 1):
        return trained_benches(lesson, school)
    if kind in NETWORKS and (asked or school.members > 1):
        warnings.warn("too few rows or classes to train on: nothing is trained", UserWarning, stacklevel=3)
    return [Bench(None, _filled(lesson, lesson.rows.features, search), (), (), school.seed)]


def _teachable(rows: Rows, least: int) -> bool:
    """Whether there are rows enough, of two classes, apart enough to be dealt into folds."""
    counted = rows.weights > 0
    alone = (rows.groups < 0) & counted
    apart = int(alone.sum()) + len(np.unique(rows.groups[counted & ~alone]))
    sizes = np.unique(rows.labels[counted], return_counts=True)[1]
    return int(counted.sum()) >= least and len(sizes) > 1 and apart >= 4 * FOLDS and int(np.sort(sizes)[-2]) > 1


def trained_benches(lesson: Lesson, school: School) -> list[Bench]:
    """Members with trained vectors; they share the held-out rows and differ in all that is drawn."""
    parts = _parts(lesson.rows, school)
    return [_trained(lesson, school, parts, member) for member in range(school.members)]


def _parts(rows: Rows, school: School) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(training rows, held-out rows), once or for each fold."""
    counted = np.flatnonzero(rows.weights > 0)  # what weighs nothing teaches nothing
    alone = rows.groups[counted] < 0
    groups = np.where(alone, rows.groups.max(initial=-1) + np.cumsum(alone), rows.groups[counted])
    labels = rows.labels[counted]
    if len(counted) >= HELD_OUT_FROM:
        share = max(school.fraction, min(0.2, _LEAST_HELD / len(counted)))
        dealt = [split(labels, test=share, seed=school.seed, groups=groups)]
    else:
        dealt = folds(labels, FOLDS, seed=school.seed, groups=groups)
    return [(counted[learn], counted[held]) for learn, held in dealt]


def _trained(
    lesson: Lesson, school: School, parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], member: int
) -> Bench:
    seed = school.seed + 1000 * member
    networks, histories, hearings = [], [], []
    for number, (learn, held) in enumerate(parts):
        network, history = _network(lesson, school, learn, held, seed + number, f"m{member}f{number}")
        networks.append(network)
        histories.append(history)
        part = _filled(_taken(lesson, learn), embed(network, lesson.rows.features[learn]), school.search)
        judges = lesson.rows.take(held)
        hearings.append(Hearing(part, Judges(embed(network, judges.features), judges.labels, judges.weights)))
    network = networks[0]
    if len(parts) > 1:
        epochs = max(1, round(float(np.mean([history.best_epoch for history in histories]))))
        everything = np.flatnonzero(lesson.rows.weights > 0)
        network, last = _network(lesson, school, everything, None, seed, f"m{member}", epochs)
        histories.append(last)
    kept = lesson
    if len(parts) == 1 and not school.options.join_validation:
        kept = _taken(lesson, parts[0][0])
    bank = _filled(kept, embed(network, kept.rows.features), school.search, features=member == 0)
    return Bench(network, bank, tuple(hearings), tuple(histories), seed)


def _network(
    lesson: Lesson,
    school: School,
    learn: NDArray[np.int64],
    held: NDArray[np.int64] | None,
    seed: int,
    name: str,
    epochs: int | None = None,
) -> tuple[AnyNetwork, History]:
    folder = school.options.checkpoint
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return train_network(
        school.kind,
        lesson.rows.take(learn),
        None if held is None else lesson.rows.take(held),
        classes=lesson.classes,
        layout=lesson.layout,
        options=school.options,
        seed=seed,
        device=school.device,
        epochs=epochs,
        checkpoint=None if folder is None else Path(folder) / f"{name}.pt",
        progress=f"training {name}" if school.progress else None,
    )


def _taken(lesson: Lesson, at: NDArray[np.int64]) -> Lesson:
    return replace(lesson, rows=lesson.rows.take(at), ids=[lesson.ids[row] for row in at.tolist()])


def _filled(lesson: Lesson, vectors: NDArray[Any], search: Search, *, features: bool = False) -> MemoryBank:
    rows = lesson.rows
    bank = search.bank(vectors.shape[1], rows.features.shape[1] if features else 0)
    bank.add(
        vectors,
        rows.labels,
        ids=lesson.ids,
        groups=rows.groups,
        weights=rows.weights,
        features=rows.features if features else None,
    )
    return bank

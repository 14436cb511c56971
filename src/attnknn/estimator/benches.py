"""Members before they have weights: their vectors, their banks, and rows that may judge them.

From 2,000 rows on a part is held out: it stops the training, then judges. Below that five folds take turns, and
a last training on all rows makes the vectors that are served.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.attend import Weighting
from attnknn.bank import Id, MemoryBank
from attnknn.bank.store import checked_groups
from attnknn.data import duplicate_groups, folds, split
from attnknn.embed import LEARNED, AnyNetwork, Embedder, Identity, Pictures, Standardize, embed
from attnknn.errors import InvalidInput
from attnknn.estimator.inputs import numbered_groups
from attnknn.estimator.options import (
    TRAIN_FROM,
    Options,
    check_prediction,
    check_that_all_is_read,
    chosen_embedders,
    search_device,
    search_index,
    search_metric,
    training_device,
)
from attnknn.train import (
    Hearing,
    History,
    Judges,
    Layout,
    Rows,
    TrainingOptions,
    train_networks,
    tune,
)
from attnknn.train.judges import Given

HELD_OUT_FROM: Final = 2000
"""Rows from which one held-out part is enough."""

FOLDS: Final = 5
_LEAST_HELD: Final = 1000  # held-out rows, where that is not more than a fifth


ENCODERS: Final[dict[str, Callable[[], Any]]] = {
    "periodic": Standardize,
    "tabular": Standardize,
    "linear": Identity,
    "standardize": Standardize,
    "identity": Identity,
    "image": Pictures,
}
"""How each embedder encodes rows, before the network that some of them train."""


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
class Lesson:
    """Everything ``fit`` was given, as one kind of embedder encodes it."""

    kind: str
    encoder: Embedder
    rows: Rows
    ids: list[Id]
    numbered: bool  # whether the ids are the numbers of all rows, as a bank gives them
    classes: int
    search: Search

    @property
    def layout(self) -> Layout:
        """What the columns of the encoded rows are."""
        return Layout(self.encoder.numbers, self.encoder.columns)

    def take(self, at: NDArray[np.int64]) -> Lesson:
        """Some of the rows."""
        names = [self.ids[row] for row in at.tolist()]
        return replace(self, rows=self.rows.take(at), ids=names, numbered=False)


@dataclass(frozen=True, slots=True)
class Bench:
    """A member that has vectors: the bank that is served, and hearings that tell how it may do.

    Without hearings the rows of the bank judge it themselves, each leaving itself out.
    """

    network: AnyNetwork | None
    bank: MemoryBank
    hearings: tuple[Hearing, ...]
    histories: tuple[History, ...]  # the training that was judged; where folds took turns, that of what is served
    seed: int
    outputs: tuple[int, ...] = ()  # the class of each output of the network's head


def renumbered(bench: Bench, place: NDArray[np.int64]) -> Bench:
    """The same bench where class i so far is class ``place[i]`` from now on."""
    hearings = []
    for each in bench.hearings:
        bank, judges = each.bank.copy(), each.judges
        bank.update(bank.ids, labels=place[bank.labels(bank.live)])
        given = None if judges.given is None else replace(judges.given, labels=place[judges.given.labels])
        hearings.append(replace(each, bank=bank, judges=replace(judges, labels=place[judges.labels], given=given)))
    outputs = tuple(int(place[each]) for each in bench.outputs)
    return replace(bench, hearings=tuple(hearings), outputs=outputs)


@dataclass(frozen=True, slots=True)
class School:
    """How members are trained."""

    options: TrainingOptions
    members: int
    fraction: float  # of the rows that are held out
    seed: int
    device: str
    progress: bool


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """A member before its last training: a network for each part, how they came about, and how they did."""

    networks: list[AnyNetwork]
    history: History
    hearings: list[Hearing]

    def nll(self, classes: int, k: int | None) -> float:
        """The NLL of the vote that the judges would be served, with their choice of k, scale and prior mass.

        The NLL that ended the training would not do: it has the scale that the training had come to, and a slow
        learner with the better vectors may still have a poor one.
        """
        even = np.ones(classes)
        hearings = [each.able(even) for each in self.hearings]
        tuning = tune(hearings, Weighting("softmax"), k=k, class_weight=even, calibrated=True)
        return min((nll for _, nll, _ in tuning.curve), default=np.inf)


def lessons_of(
    model: Any,
    rows: Any,
    labels: NDArray[np.int64],
    *,
    ids: Sequence[Id] | None,
    groups: Any,
    weights: NDArray[np.float64] | None,
    apart: bool,
) -> list[Lesson]:
    """The rows as each kind of embedder that the classifier may mean encodes them.

    Args:
        model: The classifier.
        rows: As checked.
        labels: (rows,) integers.
        ids: Names, or None to number the rows.
        groups: As given to ``fit``.
        weights: (rows,) or None.
        apart: Whether equal rows are kept apart where no groups are given.
    """
    count = len(labels)
    names: list[Id] = [*range(count)] if ids is None else [*ids]
    if len(names) != count:
        raise InvalidInput(f"{count} rows, but {len(names)} ids")
    if len(set(names)) < count:
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise InvalidInput(f"ids must differ from each other; {twice!r} was given twice")
    lessons: list[Lesson] = []
    together = None if groups is None else checked_groups(numbered_groups(groups), count)
    for kind in chosen_embedders(model, rows):
        check_that_all_is_read(model, kind)
        check_prediction(model, kind, search_index(model.index, count))
        encoder: Embedder = ENCODERS[kind]().fit(rows)
        features = encoder.transform(rows)
        if together is None:
            found = twins(features.reshape(count, -1)) if apart or kind in LEARNED else None
            together = np.full(count, -1) if found is None else found
        each = Rows(features, labels, np.ones(count) if weights is None else weights, together)
        search = Search(
            search_index(model.index, count),
            search_metric(model.metric, kind, features),
            search_device(model.device),
        )
        lessons.append(Lesson(kind, encoder, each, names, ids is None, len(model.classes_), search))
    return lessons


def school_of(model: Any, rows: int | None, options: Options) -> School:
    """How a classifier trains its members on so many rows; None stands for images."""
    return School(
        options=options.training,
        members=int(model.n_estimators),
        fraction=float(model.validation_fraction),
        seed=model._seed,
        device=training_device(model.device, rows),
        progress=bool(model.verbose),
    )


def make_benches(model: Any, lessons: Sequence[Lesson], options: Options) -> tuple[Lesson, list[Bench]]:
    """The members of a classifier of tables or vectors: trained where its embedder learns and rows suffice.

    Where several kinds of embedder may be meant, that with the lowest validation NLL is taken.
    """
    first = lessons[0]
    school = school_of(model, len(first.rows), options)
    asked, learns = model.training is not None, first.kind in LEARNED
    if learns and teachable(first.rows, TRAIN_FROM if not asked else 1):
        return _trained_benches(lessons, school, options.k)
    if learns and (asked or school.members > 1):
        warnings.warn("too few rows or classes to train on: nothing is trained", UserWarning, stacklevel=3)
    return first, [Bench(None, filled(first, first.rows.features), (), (), school.seed)]


def _trained_benches(lessons: Sequence[Lesson], school: School, k: int | None) -> tuple[Lesson, list[Bench]]:
    """Members share the held-out rows and differ in all that is drawn."""
    parts = _parts(lessons[0].rows, school)
    rehearsed = [_rehearsed(lesson, school, parts, 0) for lesson in lessons]
    best = int(np.argmin([each.nll(lessons[0].classes, k) for each in rehearsed])) if len(lessons) > 1 else 0
    lesson = lessons[best]
    rehearsals = [rehearsed[best], *(_rehearsed(lesson, school, parts, m) for m in range(1, school.members))]
    return lesson, [_served(lesson, school, parts, each, m) for m, each in enumerate(rehearsals)]


def teachable(rows: Rows, least: int) -> bool:
    """Whether there are rows enough, of two classes, apart enough to be dealt into folds."""
    counted = rows.weights > 0
    alone = (rows.groups < 0) & counted
    apart = int(alone.sum()) + len(np.unique(rows.groups[counted & ~alone]))
    sizes = np.unique(rows.labels[counted], return_counts=True)[1]
    return int(counted.sum()) >= least and len(sizes) > 1 and apart >= 4 * FOLDS and int(np.sort(sizes)[-2]) > 1


def _parts(rows: Rows, school: School) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(training rows, held-out rows), once or, where there are few, for each fold."""
    counted, groups = _counted(rows)
    if len(counted) >= HELD_OUT_FROM:
        return [held_out(rows, school.fraction, school.seed)]
    dealt = folds(rows.labels[counted], FOLDS, seed=school.seed, groups=groups)
    return [(counted[learn], counted[held]) for learn, held in dealt]


def held_out(rows: Rows, fraction: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training rows and held-out rows: the fraction, or what it takes for 1,000 of them, up to a fifth."""
    counted, groups = _counted(rows)
    share = max(fraction, min(0.2, _LEAST_HELD / len(counted)))
    learn, held = split(rows.labels[counted], test=share, seed=seed, groups=groups)
    return counted[learn], counted[held]


def _counted(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that weigh something, as others teach nothing, and a group for each."""
    counted = np.flatnonzero(rows.weights > 0)
    alone = rows.groups[counted] < 0
    groups = np.where(alone, rows.groups.max(initial=-1) + np.cumsum(alone), rows.groups[counted])
    return counted, groups


_Parts = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]


def _rehearsed(lesson: Lesson, school: School, parts: _Parts, member: int) -> _Rehearsal:
    """Train on each part and let the rows it holds out judge."""
    networks, history = _networks(lesson, school, parts, school.seed + 1000 * member, f"{lesson.kind}-{member}")
    join = len(parts) == 1 and school.options.join_validation
    hearings = [
        heard(lesson, embed(network, lesson.rows.features), part, join=join, seed=school.seed)
        for network, part in zip(networks, parts, strict=True)
    ]
    return _Rehearsal(networks, history, hearings)


def heard(
    lesson: Lesson,
    vectors: NDArray[Any],
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    join: bool,
    seed: int,
    given: Given | None = None,
) -> Hearing:
    """Held-out rows judge a bank like the one that is served: where they join it, each leaves itself out.

    Vectors of rows that taught the network lie closer to their class than those of any new row. Those of held-out
    rows do not, so a bank that they joined gives other evidence, for which k, weights and calibration are fitted.

    Args:
        lesson: All rows.
        vectors: Of all rows.
        parts: Training rows, held-out rows.
        join: Whether the held-out rows join the bank.
        seed: Of the order in which they judge.
        given: Labels of all rows before the training revised them.
    """
    learn, held = parts
    # Where there are many, the first of them judge: in the order of the rows they could be all alike.
    shuffled = np.random.default_rng(seed).permutation(held)
    rows = lesson.rows.take(shuffled)
    judges = Judges(
        vectors[shuffled],
        rows.labels,
        rows.weights,
        features=rows.features if lesson.kind == "image" else None,
        given=None if given is None else given.take(shuffled),
    )
    if join:
        return Hearing(filled(lesson, vectors), replace(judges, rows=shuffled), taught=learn)
    return Hearing(filled(lesson.take(learn), vectors[learn]), judges)


def _served(lesson: Lesson, school: School, parts: _Parts, done: _Rehearsal, member: int) -> Bench:
    """The member that is served: of one part its own network, of several one more that learns from all rows."""
    seed = school.seed + 1000 * member
    network, histories, kept = done.networks[0], [done.history], lesson
    if len(parts) > 1:
        everything = [(np.flatnonzero(lesson.rows.weights > 0), None)]
        name, epochs = f"{lesson.kind}-{member}-served", done.history.best_epoch
        (network,), last = _networks(lesson, school, everything, seed, name, epochs)
        histories.append(last)
    elif not school.options.join_validation:
        kept = lesson.take(parts[0][0])
    bank = filled(kept, embed(network, kept.rows.features), features=member == 0)
    return Bench(network, bank, tuple(done.hearings), tuple(histories), seed)


def _networks(
    lesson: Lesson,
    school: School,
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64] | None]],
    seed: int,
    name: str,
    epochs: int | None = None,
) -> tuple[list[AnyNetwork], History]:
    folder = school.options.checkpoint
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    taught = [(lesson.rows.take(learn), None if held is None else lesson.rows.take(held)) for learn, held in parts]
    networks, history = train_networks(
        *(lesson.kind, taught),
        layout=lesson.layout,
        options=school.options,
        classes=lesson.classes,
        seed=seed,
        device=school.device,
        epochs=epochs,
        checkpoint=None if folder is None else Path(folder) / f"{name}.pt",
        progress=f"training {name}" if school.progress else None,
    )
    return [*networks], history


def filled(lesson: Lesson, vectors: NDArray[Any], *, features: bool = False) -> MemoryBank:
    """A bank with the rows of a lesson under their vectors; ``features`` keeps the encoded rows as well."""
    rows = lesson.rows
    flat = rows.features.reshape(len(rows), -1)
    bank = lesson.search.bank(vectors.shape[1], flat.shape[1] if features else 0)
    bank.add(
        vectors,
        rows.labels,
        ids=None if lesson.numbered else lesson.ids,  # a bank never gives a number of its own again
        groups=rows.groups,
        weights=rows.weights,
        features=flat if features else None,
    )
    return bank


def twins(vectors: NDArray[Any]) -> NDArray[np.int64] | None:
    """Groups of equal rows, which must not judge each other; None where repeats are the norm.

    In a table with few distinct rows every new row has twins in the bank: there they are what a prediction
    rests on, and leaving them out would make the fit expect a bank without them.
    """
    groups = duplicate_groups(vectors)
    return groups if 2 * (int(groups.max(initial=-1)) + 1) >= len(groups) else None

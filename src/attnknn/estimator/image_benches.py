"""Members of a classifier of images: trained once each, judged by held-out images; labels revised where asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.bank import Id
from attnknn.embed import embed
from attnknn.errors import InvalidInput
from attnknn.estimator.benches import FOLDS, Bench, Lesson, School, filled, heard, held_out, teachable
from attnknn.train import ImageOptions, Rows, TrainedImages, train_images
from attnknn.train.judges import Given
from attnknn.train.relabel import Beliefs


@dataclass(frozen=True, slots=True)
class Suspect:
    """An example that was given one label, and has another since the training did not believe it."""

    id: Id
    given: Any
    label: Any
    chance: float  # of the new label

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"id": self.id, "given": self.given, "label": self.label, "chance": self.chance}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Suspect:
        """What :meth:`to_dict` gave."""
        return cls(plain["id"], plain["given"], plain["label"], float(plain["chance"]))


@dataclass(frozen=True, slots=True)
class ImageMembers:
    """What a training on images leaves: the lesson with its labels as they are now, and the chance of each."""

    lesson: Lesson
    benches: list[Bench]
    chances: NDArray[np.float64] | None = None  # (rows,) None where labels are as given

    def suspects(self, given: NDArray[np.int64], classes: NDArray[Any]) -> tuple[Suspect, ...]:
        """The examples whose labels were changed, the surest first; ``given`` are their labels before."""
        if self.chances is None:
            return ()
        now, names = self.lesson.rows.labels, classes.tolist()
        changed = np.flatnonzero(now != given)
        order = changed[np.argsort(-self.chances[changed], kind="stable")]
        return tuple(
            Suspect(self.lesson.ids[at], names[given[at]], names[now[at]], float(self.chances[at]))
            for at in order.tolist()
        )


def image_members(lesson: Lesson, school: School, options: ImageOptions) -> ImageMembers:
    """Members share the held-out images and differ in all that is drawn; the first revises labels for all."""
    if not options.nca:
        raise InvalidInput("nca=0 trains no vectors to find neighbors by; CNNClassifier answers by the head")
    if options.frozen and not teachable(lesson.rows, 1):
        return ImageMembers(lesson, [_frozen(lesson, school, options)])
    check_enough(lesson.rows)
    learn, held = held_out(lesson.rows, school.fraction, school.seed)
    benches, chances, given = [], None, None
    for member in range(school.members):
        done = _trained(lesson, school, options, (learn, held), member)
        if done.beliefs is not None:
            judges = lesson.rows.take(held)
            given = Given(lesson.rows.labels, done.beliefs.wrong(judges.labels, judges.weights))
            lesson, chances = _revised(lesson, done.beliefs, learn, held)
        options = replace(options, relabel=0)
        benches.append(_bench(lesson, school, options, (learn, held), done, member, given))
    return ImageMembers(lesson, benches, chances)


def check_enough(rows: Rows) -> None:
    """Refuse images that are too few to train on and to hold some out."""
    if not teachable(rows, 1):
        raise InvalidInput(
            f"{len(rows)} images of {len(np.unique(rows.labels))} classes are too few to train on: "
            f"at least {4 * FOLDS} different ones, and two of at least two classes, are needed"
        )


def _frozen(lesson: Lesson, school: School, options: ImageOptions) -> Bench:
    """A member that learns nothing, from images too few to hold some out: they judge their own bank."""
    everyone = np.arange(len(lesson.rows))
    done = _trained(lesson, school, options, (everyone, everyone[:0]), 0)
    bank = filled(lesson, embed(done.network, lesson.rows.features), features=True)
    return Bench(done.network, bank, (), (done.history,), school.seed)


def _trained(
    lesson: Lesson,
    school: School,
    options: ImageOptions,
    parts: Sequence[NDArray[np.int64]],
    member: int,
) -> TrainedImages:
    name = f"image-{member}"
    folder = options.checkpoint
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return train_images(
        *(lesson.rows.take(at) for at in parts),
        classes=lesson.classes,
        options=options,
        seed=school.seed + 1000 * member,
        device=school.device,
        checkpoint=None if folder is None else Path(folder) / f"{name}.pt",
        progress=f"training {name}" if school.progress else None,
    )


def _revised(
    lesson: Lesson, beliefs: Beliefs, learn: NDArray[np.int64], held: NDArray[np.int64]
) -> tuple[Lesson, NDArray[np.float64]]:
    """The lesson with the labels that are believed in, and the chance of each; who was not asked keeps its own."""
    labels, chances = lesson.rows.labels.copy(), np.ones(len(lesson.rows))
    for at, believed in ((learn, beliefs.rows), (held, beliefs.held)):
        if believed is not None:
            top = believed.max(dim=1)
            labels[at], chances[at] = top.indices.cpu().numpy(), top.values.double().cpu().numpy()
    return replace(lesson, rows=replace(lesson.rows, labels=labels)), chances


def _bench(
    lesson: Lesson,
    school: School,
    options: ImageOptions,
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    done: TrainedImages,
    member: int,
    given: Given | None,
) -> Bench:
    vectors = embed(done.network, lesson.rows.features)
    hearing = heard(lesson, vectors, parts, join=options.join_validation, seed=school.seed, given=given)
    kept = np.arange(len(vectors)) if options.join_validation else parts[0]
    served = lesson if options.join_validation else lesson.take(kept)
    bank = filled(served, vectors[kept], features=member == 0)
    outputs = tuple(range(done.network.classes))
    return Bench(done.network, bank, (hearing,), (done.history,), school.seed + 1000 * member, outputs)

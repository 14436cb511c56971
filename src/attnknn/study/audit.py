"""Wrong labels and lost rows: how a bank gets them after the training, and how well wrong labels are found."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.predict import CELLS, answer
from attnknn.study.job import Job
from attnknn.study.splits import kept_rows, wrong_labels

_AUDITED: Final = 20_000  # rows of the bank that vote on each other, at most


def changed(model: Any, job: Job) -> Any:
    """The same model with what the point of a job changes in the bank; nothing is fitted again."""
    point, rows = job.point, job.parts.train
    other = model.with_weights(model.weights, model.attention, model.prediction)
    if point.noise.rate:
        given = wrong_labels(job.task, rows, point.noise, job.seed)
        flipped = np.flatnonzero(given != job.task.codes[rows])
        other.relabel(flipped.tolist(), job.task.classes[given[flipped]])
    lost = np.setdiff1d(np.arange(len(rows)), kept_rows(job.task, rows, point.tail, job.seed))
    if len(lost):
        other.remove(lost.tolist())
    return other


def audit(model: Any, job: Job) -> dict[str, Any]:
    """How well wrong labels are found, where some are known to be wrong: by the training, else by votes."""
    noise, rows = job.point.noise if job.point.bank_only else job.recipe.noise, job.parts.train
    if not noise.rate:
        return {}
    images = job.recipe.ours.images
    revised = images is not None and bool(images.get("relabel")) and not job.point.bank_only
    most = len(rows) if revised else _AUDITED  # labels that were revised are known without asking
    asked = np.random.default_rng([job.seed, 4]).permutation(len(rows))[:most]
    codes = {label: code for code, label in enumerate(job.task.classes.tolist())}
    given = wrong_labels(job.task, rows, noise, job.seed)[asked]
    truth = job.task.codes[rows][asked]
    believed = revised_labels(model, asked, job.task.classes[given]) if revised else voted_labels(model, asked)
    now = np.array([codes[label] for label in believed.tolist()])
    suspected, wrong = now != given, given != truth
    return {
        "audit": {
            "rows": len(asked),
            "recall": float(suspected[wrong].mean()) if wrong.any() else None,
            "precision": float(wrong[suspected].mean()) if suspected.any() else None,
            "labels_right_before": float((given == truth).mean()),
            "labels_right_after": float((now == truth).mean()),
        }
    }


def revised_labels(model: Any, rows: NDArray[np.int64], given: NDArray[Any]) -> NDArray[Any]:
    """Labels of some examples, whose ids are their places, as the training revised them."""
    revised = {each.id: each.label for each in model.suspects_}
    return np.array([revised.get(row, label) for row, label in zip(rows.tolist(), given, strict=True)])


def voted_labels(model: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
    """What all others vote for, of some examples whose ids are their places."""
    voter = model.voter_
    member, found = voter.members[0], []
    step = max(1, CELLS // max(1, min(member.k, len(member.bank))))
    for at in range(0, len(rows), step):
        names = rows[at : at + step].tolist()
        places = member.bank.rows(names)
        vectors = member.bank.vectors(places)
        near = member.bank.search(vectors, member.k, exclude=names)
        said = answer(near, member.bank, vectors, member.weigher, voter.classes, None, places)
        found.append(said.evidence.numpy().argmax(axis=1))
    return np.asarray(model.classes_[np.concatenate(found)])

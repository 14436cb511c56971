"""What a cell holds: the metrics of what a method said of the test rows, and what they were computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn import metrics
from attnknn.metrics.floors import ece_floors
from attnknn.metrics.reliability import Kind
from attnknn.study.differences import DRAWN, under_draws
from attnknn.study.job import Fitted, Floats, Job
from attnknn.study.splits import Parts, Rows

_ERRORS: Final[Mapping[str, tuple[Kind, int]]] = {
    "ece": ("equal-width", 1),
    "ece_equal_mass": ("equal-mass", 1),
    "ece_smooth": ("smooth", 4),
    "ece_classwise": ("classwise", 1),
}
"""Kinds of calibration error by the name of the metric, and the part of the draws behind their floors."""


def scores(probabilities: Floats, labels: Rows, floors: Mapping[Kind, float]) -> dict[str, float]:
    """Every metric of a cell, beside what chance alone makes of its calibration errors."""
    found = {
        "accuracy": metrics.accuracy(probabilities, labels),
        "f1_macro": metrics.f1_macro(probabilities, labels),
        "nll": metrics.nll(probabilities, labels),
        **errors(probabilities, labels, floors),
        "brier": metrics.brier(probabilities, labels),
        "aurc": metrics.aurc(probabilities, labels),
        "balanced_accuracy": float(
            np.mean([value for value in recalls(probabilities, labels) if value is not None])
        ),
    }
    return found | {"auc": metrics.auc(probabilities, labels)} if probabilities.shape[1] == 2 else found


def floors_of(several: Sequence[Floats], draws: int) -> list[dict[Kind, float]]:
    """What chance alone would make of every kind of calibration error, in so many draws.

    Classes are drawn one by one, so that classwise needs fewer draws of each; a smooth one takes long, and a
    quarter of them tells its mean well enough.
    """
    classes = several[0].shape[1]
    shares = {kind: classes if kind == "classwise" else share for kind, share in _ERRORS.values()}
    return ece_floors(several, {kind: min(draws, max(20, draws // share)) for kind, share in shares.items()})


def errors(probabilities: Floats, labels: Rows, floors: Mapping[Kind, float]) -> dict[str, float]:
    """Every kind of calibration error, and its floor."""
    found = dict[str, float]()
    for name, (kind, _) in _ERRORS.items():
        found[name] = metrics.ece(probabilities, labels, kind=kind)
        found[f"{name}_floor"] = floors[kind]
    return found


def recalls(probabilities: Floats, labels: Rows) -> list[float | None]:
    """Of each class the share of its rows that is recognized; None where there is no row."""
    right = probabilities.argmax(axis=1) == labels
    each = [right[labels == code] for code in range(probabilities.shape[1])]
    return [float(some.mean()) if len(some) else None for some in each]


def _focused(probabilities: Floats, labels: Rows, focus: int | None) -> dict[str, float]:
    """Recall of one class and accuracy on the rest, where a class is of interest."""
    if focus is None:
        return {}
    right, new = probabilities.argmax(axis=1) == labels, labels == focus
    return {"recall_new": float(right[new].mean()), "accuracy_others": float(right[~new].mean())}


def scored(job: Job, fitted: Fitted) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cell's content and arrays. Test rows are predicted here; no method learns from them."""
    at: Parts = job.parts
    said, truth = fitted.predict(at.test), job.task.codes[at.test]
    floors, bare_floors = floors_of([said.calibrated, said.uncalibrated], job.recipe.draws)
    content: dict[str, Any] = {
        "point": {"name": job.point.name, "at": job.point.at, "line": job.point.line},
        "settings": fitted.settings,
        "rows": {"train": len(at.train), "test": len(at.test)},
        "seconds": {"fit": fitted.seconds, "predict": said.seconds},
        "metrics": {
            **scores(said.calibrated, truth, floors),
            **_focused(said.calibrated, truth, fitted.focus),
        },
        "uncalibrated": scores(said.uncalibrated, truth, bare_floors),
        "recalls": recalls(said.calibrated, truth),
        **({} if fitted.history is None else {"history": fitted.history}),
        **({} if fitted.attention is None else {"attention_history": fitted.attention}),
    }
    arrays = {
        "probabilities": narrowed(said.calibrated),  # the metrics above are of all digits
        "labels": truth.astype(np.int32),
        "rows": at.test.astype(np.int32),
        "classes": np.asarray(job.task.classes),
    }
    return content, arrays | _drawn(job, said.calibrated, truth)


def narrowed(probabilities: Floats) -> NDArray[np.float32]:
    """In 32 bits, each row with the winner it has in 64: what all digits tell apart may tie in fewer.

    >>> narrowed(np.array([[0.5, 0.5 + 1e-12]])).argmax(axis=1).tolist()
    [1]
    """
    narrow, winners = probabilities.astype(np.float32), probabilities.argmax(axis=1)
    lost = np.flatnonzero(narrow.argmax(axis=1) != winners)
    narrow[lost, winners[lost]] = np.nextafter(narrow[lost].max(axis=1), np.float32(np.inf))
    return narrow


def _drawn(job: Job, probabilities: Floats, truth: Rows) -> dict[str, Floats]:
    """Metrics under draws of test rows. An official test is drawn from itself, as all seeds have the same one."""
    rows, of = (None, None) if job.recipe.train_rows is not None else (job.parts.test, len(job.task))
    drawn = under_draws(probabilities, truth, job.recipe.draws, rows, of)
    return {f"{DRAWN}{name}": values for name, values in drawn.items()}

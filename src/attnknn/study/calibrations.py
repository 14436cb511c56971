"""One model of a seed under each calibrator: the same vectors, neighbors and weights, other probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnknn.calibrate import Identity
from attnknn.study.job import FITTED, Fitted, Job, Method, Predictions, Stopwatch
from attnknn.study.ours import chosen, predicted, shared_model, uncalibrated
from attnknn.study.recipe import BARE, ONE_TEMPERATURE
from attnknn.study.splits import Rows

KINDS: dict[str, str | None] = {
    BARE: None,
    ONE_TEMPERATURE: "temperature",
    "prior-mass": "prior",
    "density": "density",
    "isotonic": "isotonic",
    "matrix": "matrix",
}
"""What ends the name of a method, and the calibration of the classifier that it means."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The seed's trained attention under one calibrator.

    Args:
        kind: As ``calibration`` of ``AttnKNNClassifier``; None is the vote with a prior mass of 1/k.
    """

    kind: str | None

    def __call__(self, job: Job) -> Fitted:
        """Calibrate the model that all methods of the seed share."""
        model, earlier = shared_model(job)
        watch = Stopwatch()
        model = _judged(uncalibrated(model), model) if self.kind is None else recalibrated(model, self.kind)
        seconds = earlier + watch.seconds
        return Fitted(chosen(model), seconds, partial(predicted, model, job, alone=True))


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline before or after its calibration; one fit serves both, and other studies of the same run.

    Args:
        name: Under which the fit is shared.
        method: What fits it.
        calibrated: Whether what it says is calibrated.
    """

    name: str
    method: Method
    calibrated: bool

    def __call__(self, job: Job) -> Fitted:
        """Fit the baseline, unless that has been done."""
        key = f"{FITTED}{self.name}"
        if key not in job.shared:
            job.shared[key] = self.method(job)
        fitted: Fitted = replace(job.shared[key], history=None)  # of the baseline, not of its calibration
        if self.calibrated:
            return fitted
        settings = {**fitted.settings, "calibrator": Identity().state()}
        return replace(fitted, settings=settings, predict=partial(_bare, fitted))


def recalibrated(model: Any, kind: str) -> Any:
    """The same model with prior mass and calibrator of another kind, fitted on the same rows."""
    if model.calibration == kind:
        return model
    other = _judged(copy(model).set_params(calibration=kind), model)
    return other.with_weights(model.weights, model.attention, model.prediction)


def calibration_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Each calibrator against none and against one temperature; models against each other at one temperature.

    >>> calibration_pairs(["hgb-temperature", "attention-uncalibrated", "attention-temperature"])
    [('attention-temperature', 'attention-uncalibrated'), ('attention-temperature', 'hgb-temperature')]
    """
    found = []
    for at, mine in enumerate(methods):
        model, _, kind = mine.partition("-")
        own = [f"{model}-{other}" for other in (BARE, ONE_TEMPERATURE)]
        found += [(mine, other) for other in own[: own.index(mine) if mine in own else 2] if other in methods]
        if kind == ONE_TEMPERATURE:
            found += [(mine, other) for other in methods[:at] if other.partition("-")[2] == kind]
    return found


def _judged(other: Any, model: Any) -> Any:
    """A copy with the rows that judged the model, which copies leave out."""
    other._benches, other._fit = model._benches, model._fit
    return other


def _bare(fitted: Fitted, rows: Rows) -> Predictions:
    said = fitted.predict(rows)
    return replace(said, calibrated=said.uncalibrated)

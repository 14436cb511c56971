"""Prior mass and calibrator, fitted together on what the judges were told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.calibrate import Calibrator, Identity, Isotonic, Temperature, fit_calibrator, fit_prior_mass
from attnknn.calibrate.prior import MOST
from attnknn.estimator.jury import Polled
from attnknn.estimator.voter import AS_VOTED
from attnknn.metrics.scores import true_probability
from attnknn.ops import vote
from attnknn.train.judges import Given

Floats = NDArray[np.float64]

DENSITY_FROM: Final = 200
"""Judges from which ``calibration="auto"`` fits a temperature that follows density."""

_LEAST_MASS: Final = 1e-12  # beside a temperature T a mass weighs as its 1/T-th power: 1e-12 at 3 as 1e-4 alone
_STEPS: Final = (0.25, 4.0, 0.5, 2.0)  # factors of the mass that are tried, each for as long as it helps
_SMALLEST_GAIN: Final = 1e-6  # in NLL
_IMPOSSIBLE: Final = 1e-300


class Finish(NamedTuple):
    """What turns evidence into probabilities, and how well the judges' labels are predicted by it."""

    mass: float
    calibrator: Calibrator
    loss: float = np.inf


def fit_finish(kind: str, polled: Polled, mass: float | None) -> Finish:
    """The prior mass and the calibrator of least NLL.

    A temperature does part of what the prior's mass does, so the best mass beside it is another one, mostly
    smaller: both are found together.

    Args:
        kind: ``auto``, ``prior``, or one of ``CALIBRATORS``.
        polled: What was said of the judges.
        mass: The best without calibration; None where that is not known.
    """
    if kind == "auto":
        kind = "density" if len(polled.labels) >= DENSITY_FROM else "temperature"
    mass = _mass(polled) if mass is None else mass
    if kind == "prior" or polled.evidence.shape[1] < 2:
        return Finish(mass, Identity())
    if polled.given is not None:  # revised labels are the model's own: by them it would always be right
        return Finish(mass, _through_noise(polled, polled.given, mass))
    if kind == "matrix":  # it starts from a temperature, and so from the mass that suits one
        return _at(kind, polled, fit_finish("temperature", polled, mass).mass)
    best = _at(kind, polled, mass)
    if kind == "isotonic":  # it bends freely: any mass would do
        return best
    for step in _STEPS:
        while _LEAST_MASS <= best.mass * step <= MOST:
            tried = _at(kind, polled, best.mass * step)
            if not tried.loss < best.loss - _SMALLEST_GAIN:
                break
            best = tried
    return best


def calibrated(kind: str, votes: Floats, labels: NDArray[np.int64], importance: Floats) -> Calibrator:
    """A calibrator fitted on these votes."""
    return _Court.of(votes, labels, importance).fitted(kind)


@dataclass(frozen=True, slots=True)
class _Court:
    """Judges and one surprise more, the surest vote for the wrong class: n right in n do not prove certainty."""

    votes: Floats
    labels: NDArray[np.int64]
    importance: Floats
    density: Floats | None

    @classmethod
    def of(
        cls, votes: Floats, labels: NDArray[np.int64], importance: Floats, density: Floats | None = None
    ) -> _Court:
        surest = int(votes.max(axis=1).argmax())
        return cls(
            np.vstack([votes, votes[surest]]),
            np.append(labels, np.argsort(-votes[surest], kind="stable")[1]),
            np.append(importance, importance.mean()),
            None if density is None else np.append(density, density[surest]),
        )

    def fitted(self, kind: str) -> Calibrator:
        given = {"density": self.density, "sample_weight": self.importance}
        fitted = fit_calibrator(kind, self.votes, self.labels, **given)
        if isinstance(fitted, Isotonic):  # a class that no judge showed would get a curve of zeros
            shown = np.bincount(self.labels, minlength=self.votes.shape[1]) > 0
            curves = zip(fitted.curves, shown, strict=True)
            fitted = replace(fitted, curves=tuple(curve if known else AS_VOTED for curve, known in curves))
        return fitted

    def loss(self, calibrator: Calibrator) -> float:
        chances = true_probability(calibrator.transform(self.votes, self.density), self.labels)
        return float(self.importance @ -np.log(np.maximum(chances, _IMPOSSIBLE)) / self.importance.sum())


def _at(kind: str, polled: Polled, mass: float) -> Finish:
    court = _Court.of(_votes(polled, mass), polled.labels, polled.importance, polled.density)
    calibrator = court.fitted(kind)
    return Finish(mass, calibrator, court.loss(calibrator))


def _through_noise(polled: Polled, given: Given, mass: float) -> Temperature:
    """Of the true labels; that of the surprise is one, or votes would be certain once wrong labels explain all."""
    court = _Court.of(_votes(polled, mass), given.labels, polled.importance)
    wrong = np.append(np.full(len(given.labels), given.wrong), 0.0)
    return Temperature.through_noise(court.votes, court.labels, court.importance, wrong)


def _votes(polled: Polled, mass: float) -> Floats:
    votes: Floats = vote(torch.from_numpy(polled.evidence), torch.from_numpy(polled.prior), mass).numpy()
    return votes


def _mass(polled: Polled) -> float:
    """The prior mass of least NLL, for the judges and one more who finds none of its class."""
    evidence, labels, prior, importance = polled.evidence, polled.labels, polled.prior, polled.importance
    order = np.argsort(-evidence.mean(axis=0), kind="stable")
    surprise = np.zeros((1, evidence.shape[1]))
    surprise[0, order[0]] = 1.0
    return fit_prior_mass(
        np.vstack([evidence, surprise]),
        np.append(labels, order[1] if len(order) > 1 else order[0]),
        np.vstack([prior, prior.mean(axis=0)]),
        sample_weight=np.append(importance, importance.mean()),
    )

"""The fitted heart of the classifier: vectors in, calibrated class probabilities and reasons out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.attend import Weighting
from attnknn.bank import MemoryBank
from attnknn.calibrate import Calibrator, DensityTemperature, Identity, Isotonic, Temperature, fit_calibrator
from attnknn.calibrate.isotonic import Knots
from attnknn.data import duplicate_groups
from attnknn.errors import InvalidInput
from attnknn.ops import vote
from attnknn.predict import Answer, answer, answers
from attnknn.train import Tuning, choose_judges, leave_one_out, loo_prior, tune

Floats = NDArray[np.float64]

_AS_VOTED: Final[Knots] = ((0.0, 1.0), (0.0, 1.0))  # the curve of a class that nothing is known of
DENSITY_FROM = 200
"""Rows from which ``calibration="auto"`` fits a temperature that follows density."""


@dataclass(frozen=True)
class Voter:
    """A bank, and all that was fitted to turn its neighbors into probabilities. Classes are integers here."""

    bank: MemoryBank
    classes: int
    class_weight: Floats  # (classes,)
    weighting: Weighting
    k: int
    mass: float = 0.0
    calibrator: Calibrator = field(default_factory=Identity)

    @property
    def prior(self) -> Floats:
        """(classes,) weighted class frequencies of the bank as it stands."""
        totals = self.bank.label_weights(self.classes) * self.class_weight
        if totals.sum() <= 0:
            return np.full(self.classes, 1 / self.classes)
        return np.asarray(totals / totals.sum())

    def answers(self, vectors: NDArray[Any]) -> Iterator[Answer]:
        """What the bank says, before prior and calibration, a bounded number of rows at a time."""
        if len(self.bank) == 0:
            raise InvalidInput("the bank is empty: add examples before predicting")
        weight = self.class_weight if (self.class_weight != 1).any() else None
        return answers(self.bank, vectors, self.k, self.weighting, self.classes, weight)

    def probabilities(self, vectors: NDArray[Any]) -> Floats:
        """(rows, classes) calibrated probabilities."""
        prior = self.prior
        each = [self.finished(said, prior) for said in self.answers(vectors)]
        return np.concatenate(each) if each else np.empty((0, self.classes))

    def finished(self, said: Answer, prior: Floats) -> Floats:
        """Prior and calibration on top of the bank's answer."""
        votes = vote(said.evidence, torch.from_numpy(prior), self.mass).numpy()
        if isinstance(self.calibrator, Identity):
            return votes
        return self.calibrator.transform(votes, said.density)

    def extended(self, place: NDArray[np.int64], classes: int) -> Voter:
        """The same voter for more classes; class i so far is class ``place[i]`` from now on."""
        weight = np.ones(classes)
        weight[place] = self.class_weight
        calibrator = self.calibrator
        if isinstance(calibrator, Isotonic):  # it holds a curve for each class; a new one keeps its vote
            curves = [_AS_VOTED] * classes
            for old, new in enumerate(place.tolist()):
                curves[new] = calibrator.curves[old]
            calibrator = replace(calibrator, curves=tuple(curves))
        return replace(self, classes=classes, class_weight=weight, calibrator=calibrator)

    def temperatures(self, density: Floats) -> Floats | None:
        """Temperature of each row; None where calibration is not a temperature."""
        if isinstance(self.calibrator, DensityTemperature):
            return self.calibrator.temperature(density)
        value = {Temperature: getattr(self.calibrator, "value", 1.0), Identity: 1.0}.get(type(self.calibrator))
        return None if value is None else np.full(len(density), value)


def has_free_parts(weighting: Weighting, k: int | None, calibration: str | None) -> bool:
    """Whether anything is left to fit."""
    return k is None or calibration is not None or weighting.fitted


def fit_voter(
    voter: Voter, *, k: int | None, calibration: str | None, fraction: float, random: np.random.Generator
) -> tuple[Voter, Tuning]:
    """Fit what is free on leave-one-out predictions of the voter's own bank.

    Args:
        voter: With a filled bank and the kind of weighting.
        k: Neighbors, or None to choose them.
        calibration: ``auto``, ``density``, ``temperature``, ``isotonic``, ``prior`` or None.
        fraction: Share of the rows to predict.
        random: Draws them.
    """
    if k is not None and not has_free_parts(voter.weighting, k, calibration):
        return replace(voter, k=k), Tuning(k, voter.weighting, 0.0, (), np.empty(0, np.int64))
    judges = choose_judges(voter.bank, fraction, random)
    tuned = tune(
        voter.bank,
        voter.weighting,
        judges,
        k=k,
        class_weight=voter.class_weight,
        calibrated=calibration is not None,
    )
    voter = replace(voter, k=tuned.k, weighting=tuned.weighting, mass=tuned.mass)
    if calibration is None or len(tuned.judges) == 0:
        return voter, tuned
    if calibration == "auto":
        calibration = "density" if len(tuned.judges) >= DENSITY_FROM else "temperature"
    return replace(voter, calibrator=_calibrated(voter, calibration, tuned.judges)), tuned


def _calibrated(voter: Voter, calibration: str, judges: NDArray[np.int64]) -> Calibrator:
    if calibration == "prior" or voter.classes < 2:
        return Identity()
    judges = judges[: max(256, 4_000_000 // min(voter.k, len(voter.bank)))]
    near = leave_one_out(voter.bank, judges, voter.k)
    said = answer(near, voter.bank, voter.weighting, voter.classes, voter.class_weight, judges)
    prior = torch.from_numpy(loo_prior(voter.bank, judges, voter.class_weight))
    votes = vote(said.evidence, prior, voter.mass).numpy()
    labels = voter.bank.labels(judges)
    importance = voter.bank.weights(judges) * voter.class_weight[labels]
    # One surprise more than was seen: n right answers in n do not prove certainty.
    surest = int(votes.max(axis=1).argmax())
    votes, density = np.vstack([votes, votes[surest]]), np.append(said.density, said.density[surest])
    labels = np.append(labels, np.argsort(-votes[surest], kind="stable")[1])
    importance = np.append(importance, importance.mean())
    fitted = fit_calibrator(calibration, votes, labels, density=density, sample_weight=importance)
    if isinstance(fitted, Isotonic):  # a class that no judge showed would get a curve of zeros
        shown = np.bincount(labels, minlength=voter.classes) > 0
        curves = zip(fitted.curves, shown, strict=True)
        fitted = replace(fitted, curves=tuple(curve if known else _AS_VOTED for curve, known in curves))
    return fitted


def twins(vectors: NDArray[Any]) -> NDArray[np.int64] | None:
    """Groups of equal rows, which must not judge each other; None where repeats are the norm.

    In a table with few distinct rows every new row has twins in the bank: there they are what a prediction
    rests on, and leaving them out would make the fit expect a bank without them.
    """
    groups = duplicate_groups(vectors)
    return groups if 2 * (int(groups.max(initial=-1)) + 1) >= len(groups) else None

"""Probabilities that are told how frequent classes really are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnknn.study.job import FITTED, Fitted, Floats, Job, Method, Predictions
from attnknn.study.points import cell_name
from attnknn.study.splits import Rows, kept_rows, parts


@dataclass(frozen=True, slots=True)
class Corrected:
    """A method whose probabilities are told that classes are as frequent as they were before the long tail."""

    name: str
    method: Method

    def __call__(self, job: Job) -> Fitted:
        """Fit the method, unless its own cell has just been filled."""
        known = job.shared.get(f"{FITTED}{cell_name(self.name, job.point)}")
        fitted, train = self.method(job) if known is None else known, job.parts.train
        kept = train[kept_rows(job.task, train, job.point.tail, job.seed)] if job.point.bank_only else train
        learned, usual = (
            np.bincount(job.task.codes[rows], minlength=len(job.task.classes)) + 1.0  # no class is impossible
            for rows in (kept, parts(job.task, job.recipe, job.seed).train)
        )
        factors = (usual / usual.sum()) / (learned / learned.sum())

        def predict(rows: Rows) -> Predictions:
            said = fitted.predict(rows)
            calibrated, bare = (_times(each, factors) for each in (said.calibrated, said.uncalibrated))
            return Predictions(calibrated, bare, said.seconds)

        return replace(fitted, predict=predict, settings={**fitted.settings, "prior_factors": factors.tolist()})


def _times(probabilities: Floats, factors: Floats) -> Floats:
    told = probabilities * factors
    return np.asarray(told / told.sum(axis=1, keepdims=True))

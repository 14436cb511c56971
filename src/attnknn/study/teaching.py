"""A class that the training never saw, taught by a few examples: what is recognized of it, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnknn.study.job import Fitted, Floats, Job, Predictions, Stopwatch
from attnknn.study.ours import Ours, chosen, trained
from attnknn.study.splits import Rows


@dataclass(frozen=True, slots=True)
class Taught:
    """The method: train without one class, the seed says which, then add some of its examples to the bank.

    Args:
        examples: How many; 0 leaves the class unknown.
        balanced: Whether they weigh together as much as a class does on average.
    """

    examples: int
    balanced: bool = True

    def __call__(self, job: Job) -> Fitted:
        """Train once for all numbers of examples, and teach."""
        new = job.seed % len(job.task.classes)
        model, earlier = job.once("all classes but one", lambda: _without(job, new))
        watch = Stopwatch()
        rows = job.parts.train[job.parts.labels[job.parts.train] == new]
        some = np.random.default_rng([job.seed, 2]).permutation(rows)[: self.examples]
        if len(some):
            model = self._taught(model, job, new, some)
        told = {"new_class": str(job.task.classes[new]), "examples": len(some), "balanced": self.balanced}
        settings = {**chosen(model), **told, "teaching_seconds": watch.seconds}
        return Fitted(settings, earlier + watch.seconds, _predictor(model, job), focus=new)

    def _taught(self, model: Any, job: Job, new: int, some: Rows) -> Any:
        other, label = model.with_weights(model.weights, model.attention), job.task.classes[new]
        other.add(
            job.task.take(some),
            np.full(len(some), label, job.task.classes.dtype),
            classes=[label],
            sample_weight="balanced" if self.balanced else None,
        )
        return other


def _without(job: Job, new: int) -> Any:
    """The usual classifier, trained on the rows of all other classes."""
    rows = job.parts.train[job.parts.labels[job.parts.train] != new]
    classes = np.delete(job.task.classes, new)
    task = replace(job.task, classes=classes, codes=job.task.codes - (job.task.codes > new))
    parts = replace(job.parts, train=rows, labels=job.parts.labels - (job.parts.labels > new))
    return trained(replace(job, task=task, parts=parts), Ours("attention"))


def _predictor(model: Any, job: Job) -> Callable[[Rows], Predictions]:
    def predict(rows: Rows) -> Predictions:
        watch = Stopwatch()
        chances = _for_all(model.predict_proba(job.task.take(rows)), model.classes_, job.task.classes)
        return Predictions(chances, chances, watch.seconds)

    return predict


def _for_all(chances: Floats, known: Any, classes: Any) -> Floats:
    """Probabilities with a column of zeros for a class that the model does not know."""
    found = np.zeros((len(chances), len(classes)))
    found[:, np.isin(classes, known)] = chances
    return found

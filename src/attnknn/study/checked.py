"""Studies of what a model is, beside how it does: the checks of the theory, and where the time goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.study.job import Fitted, Job, Stopwatch
from attnknn.study.ours import chosen, predicted, reweighed, shared_model
from attnknn.study.theory import check_theory
from attnknn.study.timing import overhead, stages

_ASKED: Final = 200  # test rows that the theory is checked on
_BATCHES: Final = (1, 1000)


@dataclass(frozen=True, slots=True)
class Theory:
    """The method: softmax attention over the bank of the trained vectors, whose logits the theory speaks of."""

    def __call__(self, job: Job) -> Fitted:
        """Fit, and check."""
        model, earlier = shared_model(job)
        watch = Stopwatch()
        model = reweighed(model, "softmax")
        settings = {**chosen(model), "checks": [asdict(each) for each in _checks(model, job)]}
        return Fitted(settings, earlier + watch.seconds, partial(predicted, model, job, alone=True))


@dataclass(frozen=True, slots=True)
class Timed:
    """The method: the trained attention, and the time of each of its stages."""

    def __call__(self, job: Job) -> Fitted:
        """Fit, and time."""
        model, seconds = shared_model(job)
        rows = model._encoded(job.task.take(job.parts.test))
        found = [stages(model, _so_many(rows, batch), batch=batch) for batch in _BATCHES]
        settings = {**chosen(model), "stages": found, "overhead": overhead(found)}
        return Fitted(settings, seconds, partial(predicted, model, job, alone=True))


def _checks(model: Any, job: Job) -> list[Any]:
    voter, rows = model.voter_, job.parts.test
    member, bank = voter.members[0], voter.bank
    asked = np.sort(np.random.default_rng([job.seed, 5]).permutation(rows)[:_ASKED])
    return check_theory(
        bank.vectors(bank.live),
        member.vectors(model._encoded(job.task.take(asked))),
        bank.labels(bank.live),
        job.task.codes[asked],
        scale=voter.weighting.scale,
        metric=bank.metric,
        k=min(member.k, len(bank)),
        classes=len(job.task.classes),
        seed=job.seed,
    )


def _so_many(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Rows again and again until there are enough for a batch."""
    return np.resize(rows, (max(count, min(len(rows), 200)), *rows.shape[1:]))

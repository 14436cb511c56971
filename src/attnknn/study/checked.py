"""Studies of what a model is, beside how it does: the checks of the theory, and where the time goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.attend import AttentionOptions
from attnknn.errors import AttnKNNError
from attnknn.predict import base_of
from attnknn.study.ablation import VARIANTS
from attnknn.study.job import Fitted, Job, Stopwatch
from attnknn.study.ours import TRAINED, chosen, predicted, reweighed, robustly, shared_model, weighed_anew
from attnknn.study.scales import check_scales, head_scales
from attnknn.study.splits import Rows
from attnknn.study.theory import Check, check_theory
from attnknn.study.timing import LEARNED, SHIPPED, overhead, stages

_ASKED: Final = 200  # test rows that the theory is checked on
_BATCHES: Final = (1, 1000)


@dataclass(frozen=True, slots=True)
class Theory:
    """The method: softmax attention over the bank of the trained vectors, whose logits the theory speaks of."""

    def __call__(self, job: Job) -> Fitted:
        """Fit, and check."""
        shipped, earlier = shared_model(job)
        watch = Stopwatch()
        model = reweighed(shipped, "softmax")
        checks = [*_checks(model, job), _scales(shipped, job)]
        settings = {**chosen(model), "checks": [asdict(each) for each in checks]}
        return Fitted(settings, earlier + watch.seconds, partial(predicted, model, job, alone=True))


@dataclass(frozen=True, slots=True)
class Timed:
    """The method: the trained attention, and the time of each of its stages.

    What ships may be softmax weights, where no learned part gained anything. So attention with all of its parts on
    is timed as well, on the same vectors: it is what the claim of an overhead speaks of.
    """

    def __call__(self, job: Job) -> Fitted:
        """Fit, and time."""
        model, seconds = shared_model(job)
        shipped = _timed(model, job, SHIPPED)
        learned, why = _learned(job)
        found = [] if learned is None else _timed(learned, job, LEARNED)
        settings = {
            **chosen(model),
            "stages": shipped + found,
            "overhead": overhead(found) if found else f"{LEARNED}: not run: {why}",
            "overhead_shipped": overhead(shipped),
        }
        return Fitted(settings, seconds, partial(predicted, model, job, alone=True))


def _learned(job: Job) -> tuple[Any | None, str]:
    """The seed's vectors under attention with all parts on, as the ablation has them; or None, and why not."""
    options = AttentionOptions(**(VARIANTS["attention-all"].attention or {}))
    try:
        model, _ = weighed_anew(job, TRAINED, robustly(job, options))
    except (AttnKNNError, RuntimeError) as problem:  # of which the second is torch's, as without memory
        return None, str(problem)
    if any(base_of(member.weigher).kind != TRAINED for member in model.voter_.members):
        return None, "there are too few rows to train its parts"
    return model, ""


def _timed(model: Any, job: Job, what: str) -> list[dict[str, Any]]:
    rows = model._encoded(job.task.take(job.parts.test))
    return [{"what": what, **stages(model, _so_many(rows, batch), batch=batch)} for batch in _BATCHES]


def _checks(model: Any, job: Job) -> list[Check]:
    voter, asked = model.voter_, _some(job)
    member, bank = voter.members[0], voter.bank
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


def _scales(shipped: Any, job: Job) -> Check:
    """The scale of each head, of what ships and of attention with all learned parts."""
    learned, why = _learned(job)
    models = {SHIPPED: shipped} | ({} if learned is None else {LEARNED: learned})
    rows = job.task.take(_some(job))
    heads = {}
    for what, model in models.items():
        member = model.voter_.members[0]
        heads[f"{what} ({base_of(member.weigher).kind} weights)"] = head_scales(
            member, member.vectors(model._encoded(rows))
        )
    return check_scales(heads, {} if learned is not None else {LEARNED: why})


def _some(job: Job) -> Rows:
    """Test rows that the theory is checked on."""
    return np.sort(np.random.default_rng([job.seed, 5]).permutation(job.parts.test)[:_ASKED])


def _so_many(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Rows again and again until there are enough for a batch."""
    return np.resize(rows, (max(count, min(len(rows), 200)), *rows.shape[1:]))

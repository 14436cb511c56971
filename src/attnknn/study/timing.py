"""Where the time of a prediction goes: embedding, search, weighing and vote, timed apart over the same queries."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from attnknn.attend import Weighting
from attnknn.errors import InvalidInput
from attnknn.estimator import AttnKNNClassifier
from attnknn.estimator.voter import Floats, Voter
from attnknn.metrics.inputs import checked_count
from attnknn.ops import evidence
from attnknn.predict import Answer, Poll, base_of

STAGES: Final = ("embedding", "search", "weighing", "vote")
"""The parts of a prediction, in their order; calibration belongs to the vote."""

ALLOWED: Final = 1.0
"""Milliseconds per query that weighing may add to uniform weights."""

SHIPPED: Final = "what ships"
LEARNED: Final = "attention with all learned parts"
"""What is timed: the weights that were chosen, and those that the claim of an overhead speaks of."""

_UNIFORM = Weighting("uniform")
_MOST_BATCHES = 40  # timed in each round


def stages(model: AttnKNNClassifier, rows: NDArray[Any], *, batch: int, repeats: int = 5) -> dict[str, Any]:
    """Milliseconds per query of each stage of a prediction, and of uniform weights in place of the model's own.

    Batches are predicted once before they are timed, so that what a bank looks up only once, such as how reliable
    its rows are, is there already.

    Args:
        model: Fitted.
        rows: (n, ...) queries as the model encodes them, at least one batch; as many whole batches as there are,
            up to 40, are timed.
        batch: Queries at a time.
        repeats: How often each batch is timed.

    Returns:
        ``ms_per_query``, the median of each of ``STAGES`` and of ``uniform``; ``adds``, the median of what the
        weighing takes more than uniform weights do; and what was timed.
    """
    check_is_fitted(model)
    for name, count in {"batch": batch, "repeats": repeats}.items():
        checked_count(count, name)
    if len(rows) < batch:
        raise InvalidInput(f"a batch has {batch} queries, but only {len(rows)} rows were given")
    voter = model.voter_
    batches = [rows[at : at + batch] for at in range(0, len(rows) - batch + 1, batch)][:_MOST_BATCHES]
    for part in batches:
        timed(voter, part)
    laps = [timed(voter, part)[1] for _ in range(repeats) for part in batches]
    each = {stage: 1e3 / batch * np.array([lap[stage] for lap in laps]) for stage in (*STAGES, "uniform")}
    return {
        "weights": " and ".join(dict.fromkeys(base_of(member.weigher).kind for member in voter.members)),
        "members": len(voter.members),
        "k": model.n_neighbors_,
        "rows": len(voter.bank),
        "dim": voter.bank.dim,
        "index": voter.bank.index,
        "device": voter.bank.device,
        "threads": torch.get_num_threads(),
        "batch": batch,
        "laps": len(laps),
        "ms_per_query": {stage: float(np.median(values)) for stage, values in each.items()},
        "adds": float(np.median(each["weighing"] - each["uniform"])),
    }


def timed(voter: Voter, rows: NDArray[Any]) -> tuple[Floats, dict[str, float]]:
    """Probabilities as :meth:`Voter.probabilities` gives them, step by step, and the seconds of each stage."""
    laps, said, heads = _Laps(voter.bank.device), list[Answer](), list[Floats]()
    factors = voter.class_weight if (voter.class_weight != 1).any() else None
    for member in voter.members:
        bank = member.bank
        with laps.lap("embedding"):
            asked = voter.lens(member.network, rows)
        heads += [] if asked.head is None else [asked.head]
        for vectors in asked.views:
            with laps.lap("search"):
                near = bank.search(vectors, member.k)
            with laps.lap("uniform"):
                _UNIFORM(near, bank, vectors, class_weight=factors)
            with laps.lap("weighing"):
                weights = member.weigher(near, bank, vectors, class_weight=factors)
            with laps.lap("vote"):
                weighed = evidence(weights, torch.from_numpy(near.labels), voter.classes)
            said.append(Answer(near, weights, weighed, bank.metric))
    with laps.lap("vote"):
        poll = Poll(said, np.mean(heads, axis=0) if heads else None)
        chances = voter.finished(poll, voter.prior_of(poll))
    return chances, laps.seconds


def overhead(found: Sequence[Mapping[str, Any]]) -> str:
    """Whether weighing adds less than 1 ms per query to uniform weights, in a sentence.

    Args:
        found: What :func:`stages` found for one model, at one batch size or several; ``what`` says of which model.

    >>> single = {"weights": "attention", "batch": 1, "adds": 0.4}
    >>> overhead([single, {"weights": "attention", "batch": 1000, "adds": 0.012}])
    'attention adds 0.012 ms per query at batch 1,000 (0.4 ms at batch 1): below 1 ms'
    >>> overhead([{"what": "what ships", "weights": "softmax", "k": 16, "batch": 1, "adds": 0.4}])
    'what ships (softmax weights, k = 16) adds 0.4 ms per query at batch 1: below 1 ms'
    """
    if not found:
        raise InvalidInput("nothing was timed: give what stages() found for at least one batch size")
    first, *rest = sorted(found, key=lambda each: -int(each["batch"]))
    others = ", ".join(f"{_ms(each)} at {_at(each)}" for each in rest)
    beside = f" ({others})" if rest else ""
    return f"{_who(first)} {_ms(first)} per query at {_at(first)}{beside}: {_verdict([first, *rest])}"


def _who(each: Mapping[str, Any]) -> str:
    """Whose time it is, with the verb."""
    weights = "attention" if each["weights"] == "attention" else f"{each['weights']} weights"
    if "what" not in each:
        return f"{weights} add{'s' * (weights == 'attention')}"
    return f"{each['what']} ({'' if each['what'] == LEARNED else f'{weights}, '}k = {each['k']}) adds"


def _verdict(found: Sequence[Mapping[str, Any]]) -> str:
    below = [_at(each) for each in found if each["adds"] < ALLOWED]
    above = [_at(each) for each in found if not each["adds"] < ALLOWED]
    if below and above:
        return f"below {ALLOWED:g} ms at {', '.join(below)}, not below at {', '.join(above)}"
    return f"{'not ' if above else ''}below {ALLOWED:g} ms"


def _ms(each: Mapping[str, Any]) -> str:
    return f"{max(0.0, round(each['adds'], 3)):g} ms"  # what is less than uniform weights take is noise


def _at(each: Mapping[str, Any]) -> str:
    return f"batch {each['batch']:,}"


class _Laps:
    """Seconds by stage."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds = dict.fromkeys((*STAGES, "uniform"), 0.0)

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        """Adds the time spent within to a stage."""
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        self.seconds[stage] += time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        elif self.device.startswith("mps"):
            torch.mps.synchronize()

"""What the fit of a classifier decided, and how its trainings went, as a cell tells it."""

from __future__ import annotations

from typing import Any

from attnknn.attend import LearnedWeighting
from attnknn.predict import base_of
from attnknn.study.history import Columns, told
from attnknn.train.attention import Seen, part_sizes


def chosen(model: Any) -> dict[str, Any]:
    """What the fit decided."""
    voter = model.voter_
    return {
        "k": model.n_neighbors_,
        "weights": model.weights,
        "embedder": model.embedder,
        "scale": voter.weighting.scale,
        "trust": getattr(base_of(voter.members[0].weigher), "trust", None),
        "prior_mass": voter.mass,
        "calibrator": voter.calibrator.state(),
        "index": voter.bank.index,
        "metric": voter.bank.metric,
        # What was asked for may not be what was trained: few rows, or no gain on validation, leave parts out.
        "members": [
            {"network": _kind(each.network), "weigher": _kind(base_of(each.weigher)), "k": each.k}
            for each in voter.members
        ],
        "parts": parts(model),
    }


def parts(model: Any) -> dict[str, dict[str, float]]:
    """What each learned part of the first member's attention does to rows that judge it: see ``part_sizes``."""
    member, bench = model.voter_.members[0], model._benches[0]
    weigher = base_of(member.weigher)
    if not isinstance(weigher, LearnedWeighting) or not bench.hearings:
        return {}
    hearing = bench.hearings[0]
    weight = model.voter_.class_weight
    seen = Seen.by(hearing.able(weight), model.tuning_.k, weight, 100_000)
    return part_sizes(weigher, seen, model.voter_.mass, weight)


def told_of(model: Any) -> Columns | None:
    """How the first member was trained, before any last training on all rows."""
    bench = model._benches[0]
    return told(bench.histories[0], max(1, len(bench.hearings))) if bench.histories else None


def attention_of(model: Any) -> Columns | None:
    """How the attention of the first member was trained, whether it was kept or not; None where it was not."""
    bench, history = model._benches[0], model._fit.weighed[0].history
    return None if history is None else told(history, max(1, len(bench.hearings)))


def _kind(part: Any) -> str | None:
    return None if part is None else type(part).__name__

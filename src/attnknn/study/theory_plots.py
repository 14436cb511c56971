"""Figures of the checks of the theory: recall of HNSW by its effort, and NLL against k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnknn.metrics import Estimate, seed_interval
from attnknn.study.figures import MOST_SERIES, Figure, Lines, Series

Curve = dict[float, Estimate]  # from a place on the axis to a value


def checks_of(report: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The checks of a report by name, one of each seed that has it."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for told in (told for some in report["settings"].values() for told in some if told):
        for check in told.get("checks", ()):
            found.setdefault(check["name"], []).append(check)
    return found


def theory_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """A figure for each check that has a curve.

    Args:
        report: As ``report_of`` makes it.
    """
    checks, data = checks_of(report), report["config"]["data"]
    recalls = [curve for each in checks.get("hnsw recall", ()) if (curve := each["numbers"].get("curve"))]
    losses = [_losses(by_k) for each in checks.get("k", ()) if (by_k := each["numbers"].get("by_k"))]
    found: dict[str, Figure] = {}
    if recalls:
        lines = tuple(_recall(curve, at, len(recalls)) for at, curve in enumerate(recalls[:MOST_SERIES]))
        title = f"Recall of HNSW on {data}"
        found["hnsw-recall"] = Lines(title, "search effort (efSearch)", "recall", lines, log_x=True)
    line = _over_seeds(losses)
    if line is not None:
        title = f"NLL of the softmax vote on {data}"
        found["nll-k"] = Lines(title, "neighbors", "NLL", (line,), log_x=True, note=_note(losses))
    return found


def _recall(curve: Sequence[Mapping[str, float]], at: int, seeds: int) -> Series:
    """A line for each seed: the least effort is their own, as it grows with k."""
    efforts, found = (tuple(float(each[name]) for each in curve) for name in ("ef_search", "recall"))
    return Series(f"recall, {at + 1}. of {seeds} seeds" if seeds > 1 else "recall", efforts, found)


def _losses(by_k: Sequence[Mapping[str, Any]]) -> Curve:
    return {float(at["k"]): Estimate(*(_number(at[name]) for name in ("nll", "low", "high"))) for at in by_k}


def _over_seeds(curves: Sequence[Curve]) -> Series | None:
    """The mean at places that all seeds have, with a t interval; of one seed its own."""
    places = sorted(set.intersection(*map(set, curves))) if curves else []
    if not places:
        return None
    means = [_mean([curve[at] for curve in curves]) for at in places]
    values, low, high = (
        tuple(_number(getattr(each, part)) for each in means) for part in ("value", "low", "high")
    )
    if all(map(math.isnan, values)):
        return None
    if all(map(math.isnan, low)):
        return Series("NLL", tuple(places), values)
    down = np.clip(low, 0.0, None).tolist()  # what is unknown stays so
    return Series("NLL", tuple(places), values, tuple(down), high)


def _mean(some: Sequence[Estimate]) -> Estimate:
    if len(some) == 1:
        return some[0]
    values = [each.value for each in some]
    return seed_interval(values) if np.isfinite(values).all() else Estimate(math.nan, math.nan, math.nan)


def _note(curves: Sequence[Curve]) -> str:
    if len(curves) > 1:
        return f"Mean and 95 % interval over {len(curves)} seeds."
    return "One seed, with the 95 % interval over its test rows."


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)

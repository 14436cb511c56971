"""Figures of the checks of the theory: recall of HNSW by its effort, and NLL against k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnknn.metrics import Estimate, seed_interval
from attnknn.study.figures import Figure, Lines, Series

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
    recalls = [
        {float(at["ef_search"]): Estimate(at["recall"], math.nan, math.nan) for at in each["numbers"]["curve"]}
        for each in checks.get("hnsw recall", ())
        if each["numbers"].get("curve")
    ]
    losses = [
        {float(at["k"]): Estimate(*(_number(at[name]) for name in ("nll", "low", "high"))) for at in some}
        for each in checks.get("k", ())
        if (some := each["numbers"].get("by_k"))
    ]
    found: dict[str, Figure] = {}
    for name, curves, most, words in (
        ("hnsw-recall", recalls, 1.0, ("Recall of HNSW", "search effort (efSearch)", "recall")),
        ("nll-k", losses, math.inf, ("NLL of the softmax vote", "neighbors", "NLL")),
    ):
        series, (title, x, y) = _over_seeds(curves, words[2], most), words
        if series is not None:
            found[name] = Lines(f"{title} on {data}", x, y, (series,), log_x=True, note=_note(curves))
    return found


def _over_seeds(curves: Sequence[Curve], name: str, most: float) -> Series | None:
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
        return Series(name, tuple(places), values)
    down, up = (np.clip(each, 0.0, most).tolist() for each in (low, high))
    return Series(name, tuple(places), values, tuple(down), tuple(up))


def _mean(some: Sequence[Estimate]) -> Estimate:
    if len(some) == 1:
        return some[0]
    values = [each.value for each in some]
    return seed_interval(values) if np.isfinite(values).all() else Estimate(math.nan, math.nan, math.nan)


def _note(curves: Sequence[Curve]) -> str:
    if len(curves) > 1:
        return f"Mean and 95 % interval over {len(curves)} seeds."
    known = any(math.isfinite(each.low) for each in curves[0].values())
    return "One seed" + (", with the 95 % interval over its test rows." if known else ".")


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)

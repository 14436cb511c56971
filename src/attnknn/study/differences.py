"""Paired differences between methods: over seeds, and over test rows where all seeds share them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from attnknn.metrics import seed_interval
from attnknn.metrics.reliability import chunks, ece_of
from attnknn.metrics.scores import accuracy_of, auc_of, aurc_of, brier_of, f1_macro_of, nll_of
from attnknn.study.job import Floats
from attnknn.study.recipe import ON_IMAGES
from attnknn.study.splits import Rows

BUILDERS = {
    "accuracy": accuracy_of,
    "f1_macro": f1_macro_of,
    "nll": nll_of,
    "ece": ece_of("equal-width"),
    "brier": brier_of,
    "aurc": aurc_of,
    "auc": auc_of,
}
LEVEL = 0.95
DRAWN = "drawn_"
"""Begins the name of a cell's array that holds a metric under every draw of test rows."""


def pairs(methods: Sequence[str], ours: Sequence[str]) -> list[tuple[str, str]]:
    """Each of ours against every other method; of two of ours, the later one against the earlier."""
    mine = [name for name in ours if name in methods]
    others = [name for name in methods if name not in ours]
    return [(name, other) for at, name in reversed(list(enumerate(mine))) for other in (*others, *mine[:at])]


def image_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Each of ours against the CNN, its own plain manner, and earlier ways of weighing in the same manner.

    >>> image_pairs(["cnn", "uniform", "attention"])
    [('attention', 'uniform'), ('attention', 'cnn'), ('uniform', 'cnn')]
    """
    known = [name for name in ON_IMAGES if name in methods]
    found = []
    for at, mine in reversed(list(enumerate(known))):
        way, _, manner = mine.partition("+")
        if way == "cnn":
            continue
        for other in reversed(known[:at]):
            its_way, _, its_manner = other.partition("+")
            if its_way == "cnn" or (its_way == way and not its_manner) or (its_manner == manner):
                found.append((mine, other))
    return found


def difference(
    mine: Mapping[int, float],
    other: Mapping[int, float],
    drawn: tuple[Mapping[int, Floats], ...] | None = None,
    identical: Collection[int] = (),
) -> dict[str, Any] | None:
    """Mine minus the other, on the seeds that both have; None where there is no such seed.

    Args:
        mine: Value of a metric for each seed.
        other: The same for the other method.
        drawn: The metric of both for each seed under the same draws of test rows.
        identical: Seeds in which both predicted the very same, as one model under two names does.
    """
    seeds = sorted(set(mine) & set(other))
    if not seeds:
        return None
    values = [mine[seed] - other[seed] for seed in seeds]
    mean = seed_interval(values, LEVEL)
    found: dict[str, Any] = {
        "mean": mean.value,
        "low": mean.low,
        "high": mean.high,
        "values": values,
        "seeds": seeds,
    }
    if set(seeds) & set(identical):
        found["identical_seeds"] = [seed for seed in seeds if seed in identical]
    if drawn is not None:
        gaps = np.mean([drawn[0][seed] - drawn[1][seed] for seed in seeds], axis=0)
        tail = 50 * (1 - LEVEL)
        low, high = np.percentile(gaps, [tail, 100 - tail]) if np.isfinite(gaps).all() else (np.nan, np.nan)
        found["over_rows"] = {"low": float(low), "high": float(high), "draws": len(gaps)}
    return found


def under_draws(probabilities: Floats, labels: Rows, draws: int) -> dict[str, Floats]:
    """Every metric under draws of rows with replacement; the same number of rows gives the same draws."""
    names = [name for name in BUILDERS if name != "auc" or probabilities.shape[1] == 2]
    built = {name: BUILDERS[name](probabilities, labels) for name in names}
    found: dict[str, list[Floats]] = {name: [] for name in names}
    random = np.random.default_rng(0)
    rows = len(labels)
    for size in chunks(draws, rows):
        counts = np.stack([np.bincount(random.integers(rows, size=rows), minlength=rows) for _ in range(size)])
        for name, value in built.items():
            found[name].append(value(counts.astype(np.float64)))
    return {name: np.concatenate(each) for name, each in found.items()}

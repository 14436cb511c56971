"""How trainings went: short enough for a cell, and as figures of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from attnknn.study.figures import MOST_SERIES, Figure, Lines, Series
from attnknn.train import History

MOST_EPOCHS: Final = 60
"""Epochs of a training that a cell tells; of more than that only those that were validated, evenly thinned."""

DRAWN: Final = {
    "validation_nll": ("nll", "Validation NLL", "NLL"),
    "validation_accuracy": ("accuracy", "Validation accuracy", "accuracy"),
    "validation_entropy": ("entropy", "Entropy of the weights", "share of the most"),
    "validation_scale": ("scale", "Scale of the similarities", "scale"),
    "lr": ("rate", "Learning rate", "rate"),
}
"""Numbers of an epoch that are kept beside the losses; how the file, the figure and its axis are called."""

ATTENDED: Final = {
    "loss_total": ("loss", "Loss of the attention's own training", "loss"),
    "validation_nll": ("nll", "Validation loss of the attention's own training", "loss"),
    "validation_entropy": ("entropy", "Entropy of the weights in that training", "share of the most"),
}
"""The same of the attention, which is trained by itself on fixed vectors."""

_LOSS: Final = "loss_"
_TOTAL: Final = "loss_total"
_LOSSES: Final = 3  # trainings whose loss is drawn in its parts

Columns: TypeAlias = dict[str, list[float | None]]
Curve: TypeAlias = dict[float, float]  # from epoch to value


def told(history: History, together: int = 1) -> Columns | None:
    """What is kept of a training: a column for each number, null where an epoch has none; None where none trained.

    Args:
        history: The training.
        together: How many networks learned side by side: their losses were summed, and means are kept.

    >>> told(History(({"epoch": 1, "loss_nca": 3.0, "loss_total": 3.0, "seconds": 9.0},), 1, None, False), 2)
    {'epoch': [1], 'loss_nca': [1.5], 'loss_total': [1.5]}
    """
    epochs = _thinned(history.epochs)
    if not epochs:
        return None
    found: Columns = {"epoch": [int(each["epoch"]) for each in epochs]}
    for name in dict.fromkeys(name for each in epochs for name in each):
        loss = name.startswith(_LOSS)
        if loss or name in DRAWN:
            found[name] = [_short(each.get(name), together if loss else 1) for each in epochs]
    return found


def _thinned(epochs: Sequence[dict[str, float]]) -> Sequence[dict[str, float]]:
    """Not too many epochs, the last among them."""
    if len(epochs) <= MOST_EPOCHS:
        return epochs
    some = [each for each in epochs if "validation_nll" in each] or epochs
    return some[:: -math.ceil(len(some) / MOST_EPOCHS)][::-1]


def _short(value: float | None, share: int) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value / share:.4g}")


def training_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """Every number of the trainings against the epoch, and the losses of the first of them in their parts.

    Args:
        report: As ``report_of`` makes it; one without trainings has no such figure.
    """
    history, data = report.get("history", {}), report["config"]["data"]
    found: dict[str, Figure] = {}
    for name in [*history][:_LOSSES]:
        lines = _loss(history[name])
        if lines:
            found[f"training-loss-{name}"] = Lines(f"Training loss of {name} on {data}", "epoch", "loss", lines)
    attended = report.get("attention_history", {})
    for kind, each, columns in (("training", history, DRAWN), ("attention", attended, ATTENDED)):
        for column, (short, title, axis) in columns.items():
            lines = _lines(each, report["seeds"], column)
            if lines:
                found[f"{kind}-{short}"] = Lines(f"{title} on {data}", "epoch", axis, lines)
    return found


def _loss(each: Sequence[Columns | None]) -> tuple[Series, ...]:
    """The mean over seeds of a loss, and of its parts where it has several."""
    names = dict.fromkeys(name for columns in each if columns for name in columns if name.startswith(_LOSS))
    parts = [name for name in names if name != _TOTAL]
    shown = [_TOTAL, *(parts if len(parts) > 1 else ())][:MOST_SERIES]
    known = [columns for columns in each if columns]
    mean = ", mean over seeds" * (len(known) > 1)
    curves = {name: _mean([_curve(columns, name) for columns in known]) for name in shown}
    return tuple(_series(f"{name.removeprefix(_LOSS)}{mean}", curve) for name, curve in curves.items() if curve)


def _lines(
    history: Mapping[str, Sequence[Columns | None]], seeds: Sequence[int], column: str
) -> tuple[Series, ...]:
    """A line for each seed of each training; where they are too many, one for the mean over its seeds."""
    curves = {
        (name, seed): curve
        for name, each in history.items()
        for seed, columns in zip(seeds, each, strict=True)
        if columns and (curve := _curve(columns, column))
    }
    if len(curves) <= MOST_SERIES:
        return tuple(_series(f"{name}, seed {seed}", curve) for (name, seed), curve in curves.items())
    names = list(dict.fromkeys(name for name, _ in curves))[:MOST_SERIES]
    means = {name: _mean([curve for (its, _), curve in curves.items() if its == name]) for name in names}
    return tuple(_series(f"{name}, mean over seeds", curve) for name, curve in means.items() if curve)


def _curve(columns: Columns, name: str) -> Curve:
    pairs = zip(columns["epoch"], columns.get(name, ()), strict=False)  # a column may be lacking
    return {epoch: value for epoch, value in pairs if epoch is not None and value is not None}


def _mean(curves: Sequence[Curve]) -> Curve:
    """Over the epochs that all have: a mean of those that went on would jump where one stopped."""
    shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    return {epoch: float(np.mean([curve[epoch] for curve in curves])) for epoch in sorted(shared)}


def _series(name: str, curve: Curve) -> Series:
    return Series(name, tuple(curve), tuple(curve.values()))

"""Figures of the study of calibration: reliability before and after, coverage against accuracy, and each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnknn.metrics import ece, ece_floor, reliability_curve
from attnknn.metrics.scores import confidence, hits
from attnknn.study.cells import Answers, Cells
from attnknn.study.figures import MOST_SERIES, Figure, Lines, Reliability, Series
from attnknn.study.job import Floats
from attnknn.study.recipe import BARE, CALIBRATED, ONE_TEMPERATURE
from attnknn.study.splits import Rows
from attnknn.study.verdicts import short

MOST_CLASSES: Final = 20
"""Classes that a figure shows."""

_COVERAGE: Final = np.arange(1, 21) / 20
_DRAWS: Final = 100  # behind the floor of each class
_LONGEST: Final = 16  # letters of a class in a note


def calibration_figures(report: Mapping[str, Any], cells: Cells) -> dict[str, Figure]:
    """Every figure that the cells have the predictions for.

    Args:
        report: As ``report_of`` makes it.
        cells: Where the predictions are.
    """
    names = [name for name in report["methods"] if "@" not in name]
    every = {name: cells.answers(name, report["seeds"]) for name in names}
    data = report["config"]["data"]
    found: dict[str, Figure] = {
        f"reliability-{name}": _reliability(name, report["methods"][name], some) for name, some in every.items()
    }
    ours = {name: every[name] for name in CALIBRATED if name in every}
    found["coverage"] = _coverage(ours | every, data)  # ours first: so they have the same colors in both figures
    return found | ({"per-class": _per_class(ours, data)} if ours else {})


def selective_accuracy(said: Floats, truth: Rows, coverage: Floats) -> Floats:
    """Accuracy on the surest rows, for each share of them; rows that are equally sure count pro rata.

    >>> said = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.6, 0.4]])
    >>> selective_accuracy(said, np.array([0, 0, 0, 1]), np.array([0.5, 0.75, 1.0])).round(4).tolist()
    [1.0, 0.8333, 0.75]
    """
    _, group = np.unique(-confidence(said), return_inverse=True)
    rows, right = (np.append(0, np.cumsum(np.bincount(group, each))) for each in (None, hits(said, truth)))
    asked = coverage * len(truth)
    return np.asarray(np.interp(asked, rows, right) / asked)


def class_error(some: Sequence[Answers], code: int) -> float:
    """ECE of the probability of one class, with 15 bins of equal width; the mean over seeds."""
    each = [ece(_pair(one.said, code), one.truth == code, kind="classwise") for one in some]
    return float(np.mean(each))


def _pair(said: Floats, code: int) -> Floats:
    """One class and all others; both columns have the same error, that of the class."""
    own = np.minimum(said[:, code], 1.0)
    return np.stack([1 - own, own], axis=1)


def _reliability(name: str, found: Mapping[str, Any], some: Sequence[Answers]) -> Reliability:
    """All seeds in one diagram."""
    said, truth, _ = Answers.together(some)
    model, _, kind = name.partition("-")
    when = "before calibration" if kind == BARE else f"after {kind.replace('-', ' ')}"
    error, floor = (short(found[metric]["mean"]) for metric in ("ece", "ece_floor"))
    return Reliability.of(reliability_curve(said, truth), f"{model} {when}: ECE {error}, floor {floor}")


def _coverage(every: Mapping[str, Sequence[Answers]], data: str) -> Lines:
    series = [
        _series(name, _COVERAGE, np.mean([selective_accuracy(*one[:2], _COVERAGE) for one in some], axis=0))
        for name, some in every.items()
    ]
    note = f"{_over(every)} Lines coincide where the order of the rows is kept."
    title = f"Accuracy on the surest rows of {data}"
    return Lines(title, "share of the rows answered", "accuracy", tuple(series[:MOST_SERIES]), note=note)


def _per_class(ours: Mapping[str, Sequence[Answers]], data: str) -> Lines:
    """ECE of each class, those first that need calibration most, and what chance alone would make of it."""
    before = next(iter(ours.values()))
    classes = before[0].classes
    order = np.argsort([-class_error(before, code) for code in range(len(classes))], kind="stable")[:MOST_CLASSES]
    places = np.arange(1, len(order) + 1)
    series = [_series(name, places, [class_error(some, code) for code in order]) for name, some in ours.items()]
    likely = ours.get(f"attention-{ONE_TEMPERATURE}", before)
    series.append(_series("chance alone", places, [_floor(likely, code) for code in order]))
    shown = ", ".join(_cut(classes[code]) for code in order)
    left = f" The worst {len(order)} of {len(classes)} classes are shown." if len(order) < len(classes) else ""
    note = f"{_over(ours)} From left to right: {shown}.{left}"
    title = f"ECE of each class on {data}"
    return Lines(title, f"class, worst first ({next(iter(ours))})", "ECE", tuple(series), note=note)


def _floor(some: Sequence[Answers], code: int) -> float:
    """What the ECE of a class would be if these probabilities were right."""
    each = [ece_floor(_pair(one.said, code), kind="classwise", draws=_DRAWS) for one in some]
    return float(np.mean(each))


def _series(name: str, x: Floats | Rows, y: Floats | Sequence[float]) -> Series:
    return Series(name, tuple(map(float, x)), tuple(map(float, y)))


def _over(every: Mapping[str, Sequence[Answers]]) -> str:
    seeds = max(map(len, every.values()))
    return f"Means over {seeds} seeds." if seeds > 1 else "One seed."


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"

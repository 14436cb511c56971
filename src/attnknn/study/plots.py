"""The figures of a report, each under the name of its file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnknn.metrics import reliability_curve
from attnknn.study.calibration_plots import calibration_figures
from attnknn.study.cells import Answers, Cells
from attnknn.study.figures import MOST_SERIES, Bars, Figure, Lines, Matrix, Reliability, Series
from attnknn.study.history import training_figures
from attnknn.study.points import method_of
from attnknn.study.published import published
from attnknn.study.recall_plots import recall_figures
from attnknn.study.recipe import CORRECTED
from attnknn.study.tables import MOST
from attnknn.study.theory_plots import theory_figures
from attnknn.study.verdicts import ends_of

SHOWN: Final = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
"""Metrics that are drawn, and how they are written."""

AXES: Final = {
    "k-sweep": "neighbors",
    "noise": "share of wrong labels",
    "imbalance": "smallest class over largest",
}
_USUAL: Final = ("attention", "attention-all")  # shown where a study, such as an ablation, is about no method
_DIAGRAMS: Final = 4  # methods that get a reliability diagram


def plots_of(report: Mapping[str, Any], cells: Cells, leads: Sequence[str]) -> dict[str, Figure]:
    """Every figure that a report has the numbers for.

    Args:
        report: As ``report_of`` makes it.
        cells: Where the predictions are.
        leads: Methods that a study is about.
    """
    if not report["methods"]:
        return {}
    if report["study"] == "theory":  # which is about checks, not about how it answers
        return theory_figures(report)
    if report["study"] == "efficiency":
        return _searches(report["places"])
    found: dict[str, Figure] = {}
    for metric, title in SHOWN.items():
        if report["study"] in AXES:
            found |= _lines(report, metric, title)
        else:
            found[metric] = bars(report, metric)
    if report["study"] == "calibration":
        return found | calibration_figures(report, cells)
    if report["study"] == "imbalance":
        found |= recall_figures(report)
    if report["study"] == "ablation":
        found |= difference_figures(report)
    return found | _diagrams(report, cells, leads) | training_figures(report)


def _searches(places: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Milliseconds per query of each index against the rows, one by one and in a batch, for each device."""
    run = [each for each in places.values() if "ms_per_query" in each]
    found: dict[str, Figure] = {}
    for device in dict.fromkeys(each["device"] for each in run):
        here = [each for each in run if each["device"] == device]
        for asked, words in (("single", "one by one"), ("batch", "1,000 at once")):
            title, name = (
                f"Search on {device}, queries {words}",
                f"search-{asked}{f'-{device}' * (device != 'cpu')}",
            )
            found |= _several(name, title, "rows", "ms per query", _timed(here, asked), log_x=True, log_y=True)
    return found


def _timed(places: Sequence[Mapping[str, Any]], asked: str) -> tuple[Series, ...]:
    lines: dict[str, dict[float, float]] = {}
    for each in places:
        line = lines.setdefault(f"{each['index']}, {each['dim']} dimensions", {})
        line[each["rows"]] = each["ms_per_query"][asked]["median"]
    return tuple(Series(name, tuple(line), tuple(line.values())) for name, line in lines.items())


def _several(
    name: str, title: str, x: str, y: str, series: Sequence[Series], *, log_x: bool, log_y: bool = False
) -> dict[str, Figure]:
    """Lines in as many figures as there are colors for, so that none is left out."""
    parts = [tuple(series[at : at + MOST_SERIES]) for at in range(0, len(series), MOST_SERIES)]
    return {
        f"{name}{f'-{at + 1}' * (at > 0)}": Lines(
            title + f", part {at + 1}" * (len(parts) > 1), x, y, some, log_x=log_x, log_y=log_y
        )
        for at, some in enumerate(parts)
    }


def bars(report: Mapping[str, Any], metric: str) -> Bars:
    """A bar for each method of a report, with its interval and what others published.

    Args:
        report: As ``report_of`` makes it.
        metric: A key of ``SHOWN``.
    """
    title, names = SHOWN[metric], tuple(report["methods"])
    each = [report["methods"][name][metric] for name in names]
    values, low, high = (tuple(_known(one[end]) for one in each) for end in ("mean", "low", "high"))
    told: dict[str, list[float]] = {}
    for one in published(report["study"], report["config"]["data"]):
        if one.metric == metric:
            told.setdefault(one.method, []).append(one.value)
    best = max if metric == "accuracy" else min
    beside = tuple(best(told[name]) if name in told else None for name in names)
    there = any(one is not None for one in beside)
    seeds = f"95 % intervals over {len(report['seeds'])} seeds." if len(report["seeds"]) > 1 else "One seed."
    return Bars(
        f"{title} on {report['config']['data']}",
        title,
        names,
        values,
        *_interval(low, high, MOST[metric]),
        note=seeds + " Published: the best of any setting." * there,
        published=beside if there else None,
    )


def difference_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """What each change of an ablation does against its reference, with the paired intervals."""
    by_reference: dict[str, list[str]] = {}
    for mine, others in report["differences"].items():
        for other in others:
            by_reference.setdefault(other, []).append(mine)
    found: dict[str, Figure] = {}
    for other, names in by_reference.items():
        for metric in ("accuracy", "nll"):
            gaps = {name: report["differences"][name][other].get(metric) for name in names}
            known = {name: gap for name, gap in gaps.items() if gap}
            if known:
                title = f"{SHOWN[metric]} beyond that of {other} on {report['config']['data']}"
                found[f"difference-{metric}-{other}"] = _differences(known, title, SHOWN[metric])
    return found


def _differences(gaps: Mapping[str, Mapping[str, Any]], title: str, metric: str) -> Bars:
    values = tuple(_known(gap["mean"]) for gap in gaps.values())
    low, high = zip(*(ends_of(gap) for gap in gaps.values()), strict=True)
    seeds = max(len(gap["seeds"]) for gap in gaps.values())
    known = any(map(math.isfinite, low))
    note = f"Paired by seed and test row; 95 % intervals over {seeds} seeds." if known else "One seed."
    ends = {"low": low if known else None, "high": high if known else None}
    return Bars(title, f"difference in {metric}", tuple(gaps), values, **ends, note=note, from_zero=True)


def _lines(report: Mapping[str, Any], metric: str, title: str) -> dict[str, Figure]:
    """A figure for each line of the axis; what belongs to every line begins each of them."""
    points = report["points"]
    found: dict[str, Figure] = {}
    for line in dict.fromkeys(each["line"] for each in points.values() if each["line"]):
        here = {name: each["at"] for name, each in points.items() if each["line"] in ("", line)}
        every, log = _series(report, metric, here), report["study"] != "noise"
        for end in ("", "-corrected"):
            series = [each for each in every if each.name.endswith(CORRECTED) == bool(end)]
            words = f"{title} on {report['config']['data']}, {line.replace('-', ' ')}{end.replace('-', ', ')}"
            found |= _several(f"{metric}-{line}{end}", words, AXES[report["study"]], title, series, log_x=log)
    return found


def _series(report: Mapping[str, Any], metric: str, here: Mapping[str, float]) -> tuple[Series, ...]:
    found = []
    for method in dict.fromkeys(method_of(name) for name in report["methods"]):
        # Without a tail there is nothing to correct: the line begins where that of the method itself does.
        cells = {at: f"{method}@{name}" if name else method.removesuffix(CORRECTED) for name, at in here.items()}
        known = {
            at: report["methods"][name][metric] for at, name in sorted(cells.items()) if name in report["methods"]
        }
        if len(known) > 1 or (known and len(here) == 1):
            values, low, high = (
                tuple(_known(each[end]) for each in known.values()) for end in ("mean", "low", "high")
            )
            found.append(Series(method, tuple(known), values, *_interval(low, high, MOST[metric])))
    return tuple(found)


def _diagrams(report: Mapping[str, Any], cells: Cells, leads: Sequence[str]) -> dict[str, Figure]:
    """Reliability of the methods that a study is about, and whom the first of them takes for whom; all seeds."""
    found: dict[str, Figure] = {}
    names = [name for name in report["methods"] if "@" not in name]
    first = (
        [name for name in leads if name in names] or [name for name in _USUAL if name in names][:1] or names[-1:]
    )
    for name in dict.fromkeys(
        [*first, *(each for each in ("uniform", "cnn", "hgb") if each in names)][:_DIAGRAMS]
    ):
        said, truth, classes = Answers.together(cells.answers(name, report["seeds"]))
        found[f"reliability-{name}"] = Reliability.of(reliability_curve(said, truth), f"{name}, calibrated")
        if name == first[0]:
            counts = np.zeros((len(classes), len(classes)), np.int64)
            np.add.at(counts, (truth, said.argmax(axis=1)), 1)
            found["confusion"] = Matrix(f"{name}: answers", classes, tuple(map(tuple, counts.tolist())))
    return found


def _known(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)


def _interval(
    low: tuple[float, ...], high: tuple[float, ...], most: float
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Ends of intervals, no further than the metric can go; none where no value has one, as with one seed."""
    if not any(math.isfinite(one) and math.isfinite(two) for one, two in zip(low, high, strict=True)):
        return None, None
    ends = (np.clip(each, 0.0, most).tolist() for each in (low, high))  # what is unknown stays so
    return tuple(next(ends)), tuple(next(ends))

"""The tables of a report as text, the same for its page, its PDF and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attnknn.metrics import seed_interval
from attnknn.study import efficiency
from attnknn.study.answers import share
from attnknn.study.beside import Beside, published_beside
from attnknn.study.points import method_of
from attnknn.study.tables import ERRORS, FLOOR, METRICS, finite, in_words
from attnknn.study.verdicts import short

MOST_CLASSES: Final = 20
"""Classes that a table has columns for: of a long tail the rarest."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One table.

    Args:
        name: Of its files.
        title: What stands above it.
        head: What stands above the columns.
        rows: Cells of text; lines after the first are small.
        words: The column that holds sentences, if any.
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int | None = None


def grids_of(report: Mapping[str, Any]) -> tuple[list[Grid], list[Grid]]:
    """The tables of a report that have rows: those before its figures, and those after them."""
    numbers, before = (
        _numbers(report, *each) for each in (("methods", "Numbers"), ("uncalibrated", "Before calibration"))
    )
    first = [
        numbers,
        _retained(report),
        errors(report),
        audits(report),
        recalls(report),
        _stages(report),
        _searches(report),
    ]
    return [each for each in first if each.rows], [each for each in (before, reported(report)) if each.rows]


def _numbers(report: Mapping[str, Any], kind: str, title: str) -> Grid:
    """The metrics of each cell; an ECE has its floor below it."""
    methods = report[kind]
    shown = [name for name in METRICS if name != FLOOR and any(name in each for each in methods.values())]
    rows = ((name, *(_with_floor(each, metric) for metric in shown)) for name, each in methods.items())
    return Grid(kind, title, ("method", *(METRICS[name] for name in shown)), tuple(rows) if shown else ())


def errors(report: Mapping[str, Any]) -> Grid:
    """Every kind of calibration error with the floor that chance puts under it."""
    kinds = {
        kind: title for kind, title in ERRORS.items() if any(kind in each for each in report["methods"].values())
    }
    rows = [
        (name, *(_with_floor(each, kind) for kind in kinds))
        for name, each in report["methods"].items()
        if len(kinds) > 1
    ]
    return Grid("calibration-error", "Calibration error, and its floor", ("method", *kinds.values()), tuple(rows))


def _with_floor(metrics: Mapping[str, Any], kind: str) -> str:
    floor = metrics.get(f"{kind}_floor", {}).get("mean")
    return number(metrics.get(kind), kind) + (f"\nfloor {short(floor)}" if finite(floor) else "")


def _retained(report: Mapping[str, Any]) -> Grid:
    """What is left of the accuracy of each method at each place."""
    known = {name: found for name, found in report["retention"].items() if finite(found["mean"])}
    methods = list(dict.fromkeys(map(method_of, known)))
    places = list(dict.fromkeys(name.partition("@")[2] for name in known))
    cells = ((place, *(known.get(f"{method}@{place}") for method in methods)) for place in places)
    rows = tuple(
        (place, *("–" if each is None else _lined(share(each)) for each in some)) for place, *some in cells
    )
    return Grid("retention", "Accuracy over that without changes", ("place", *methods), rows)


def _lined(words: str) -> str:
    """A number in one line, its interval in the next."""
    return words.replace(" ", "\n", 1)


def audits(report: Mapping[str, Any]) -> Grid:
    """How well each cell finds the labels that are known to be wrong, means over seeds."""
    columns = {
        "recall": "wrong labels that are found",
        "precision": "suspects that are wrong",
        "labels_right_before": "labels right before",
        "labels_right_after": "and after",
    }
    rows = []
    for name, some in report["settings"].items():
        each = [told["audit"] for told in some if told and "audit" in told]
        if each:
            rows.append((name, *(mean_of([audit[column] for audit in each]) for column in columns)))
    return Grid("audit", "Which labels are wrong", ("method", *columns.values()), tuple(rows))


def recalls(report: Mapping[str, Any]) -> Grid:
    """The recall of each class under a long tail, means over seeds; the rarest classes where there are many."""
    names = report.get("classes", [])
    if report["study"] != "imbalance" or not names:
        return Grid("recall", "", (), ())
    shown = range(max(0, len(names) - MOST_CLASSES), len(names))
    rows = [
        (cell, *(mean_of([each[code] for each in some if each]) for code in shown))
        for cell, some in report["recalls"].items()
    ]
    left = f", the rarest {len(shown)} of {len(names)}" if len(shown) < len(names) else ""
    title = f"Recall of each class, from the most frequent to the rarest{left}"
    return Grid("recall", title, ("method", *(names[code] for code in shown)), tuple(rows))


def _stages(report: Mapping[str, Any]) -> Grid:
    """Milliseconds per query of the first seed that was timed, a row for each batch of each kind of weights."""
    timed = [told["stages"] for some in report["settings"].values() for told in some if told and "stages" in told]
    stages = timed[0] if timed else []
    names = list(stages[0]["ms_per_query"]) if stages else []
    rows = ((_timed(one), *(f"{one['ms_per_query'][name]:.4f}" for name in names)) for one in stages)
    return Grid("stages", "Time of each stage", ("milliseconds per query", *names), tuple(rows))


def _timed(one: Mapping[str, Any]) -> str:
    """A batch, and below it the weights that were timed, where that is recorded."""
    batches = f"batches of {one['batch']:,}"
    if "what" not in one:
        return batches
    return f"{one['what']}, {batches}\n{one['weights']} weights, k = {one['k']}"


def _searches(report: Mapping[str, Any]) -> Grid:
    rows = tuple(map(tuple, efficiency.table(report.get("places", {}))))
    return Grid("searches", "Searches", efficiency.HEAD, rows, words=len(efficiency.HEAD) - 1)


def reported(report: Mapping[str, Any]) -> Grid:
    """Published numbers, each beside ours of the same setting."""
    rows = (
        (_under(each), each.entry.metric, f"{each.entry.value:.4g}", each.here, each.where)
        for each in published_beside(report)
    )
    head = ("method", "metric", "published", "here", "where")
    return Grid("published", "What others reported", head, tuple(rows), words=4)


def _under(each: Beside) -> str:
    """A method, and below it what it was measured with."""
    return f"{each.entry.method}\n{each.setting}" if each.setting else each.entry.method


def number(found: Mapping[str, Any] | None, metric: str) -> str:
    """A mean, and its interval in the next line."""
    return "\n".join(each for each in in_words(found, metric) if each)


def mean_of(values: Sequence[float | None]) -> str:
    """The mean of shares over seeds, and its interval in the next line; a dash where no seed has one."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    found = seed_interval(known)
    return number({"mean": found.value, "low": found.low, "high": found.high}, "accuracy")

"""What to know of a study beside its numbers: classes too small to test, k beyond the bank, unequal trainings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnknn.estimator.benches import HELD_OUT_FROM
from attnknn.study import record
from attnknn.study.alike import sentences
from attnknn.study.points import Scope, method_of
from attnknn.study.recipe import BASELINES, Recipe
from attnknn.study.splits import Parts, Task, constant_columns, parts

_NAMED: Final = 5  # classes or cells that a note names


def notes_of(
    report: Mapping[str, Any], recipe: Recipe, task: Task, scope: Scope, seeds: Sequence[int]
) -> list[str]:
    """One line for each thing that a reader of the numbers should know.

    Args:
        report: As ``report_of`` makes it.
        recipe: That of the study.
        task: All rows.
        scope: Methods and points of this run.
        seeds: Those of this run.
    """
    each = [parts(task, recipe, seed) for seed in seeds]
    same = sentences(report.get("alike", ()), report.get("unexpected", ()))
    found = [*_constant(task), *_classes(task, each), *_tails(task, recipe, scope, seeds), *_beyond(report)]
    found += _shared(report)
    found += _unequal(report, recipe, scope, min(len(one.train) for one in each))
    return [*found, *_noisy(recipe, scope), *same]


def _constant(task: Task) -> Iterable[str]:
    """Columns that are the same in every row."""
    same = {} if task.columns is None else constant_columns(task.columns)
    if same:
        named = [f"{name!r} ({what})" for name, what in same.items()]
        yield f"{_listed(named, 'columns')}: the same in every row, so nothing is told apart by it"


def _classes(task: Task, each: Sequence[Parts]) -> Iterable[str]:
    """Classes with no row to test on, to learn from, or to hold out."""
    learned, tested = (_counts(task, [getattr(one, side) for one in each]) for side in ("train", "test"))
    untested, unknown = tested.max(axis=0) == 0, learned.max(axis=0) == 0
    alone = (learned.min(axis=0) == 1) & ~unknown
    yield from _told(
        task, untested & ~unknown, "never tested, as too few rows are theirs: their recall is unknown"
    )
    yield from _told(task, unknown, "tested but never learned from: every answer to them is wrong")
    yield from _told(
        task, alone, "learned from one row, which stays there: none of theirs chooses settings or calibrates"
    )


def _tails(task: Task, recipe: Recipe, scope: Scope, seeds: Sequence[int]) -> Iterable[str]:
    """Classes of which a long tail leaves one row."""
    for point in scope.points:
        if point.tail < 1 and not point.bank_only:
            left = _counts(task, [parts(task, recipe, seeds[0], point.tail).train])[0]
            yield from _told(task, left == 1, f"learned from one row at {point.name}: none of theirs calibrates")


def _counts(task: Task, some: Iterable[Any]) -> Any:
    """(seeds, classes) rows of each class."""
    return np.stack([np.bincount(task.codes[rows], minlength=len(task.classes)) for rows in some])


def _told(task: Task, which: Any, what: str) -> Iterable[str]:
    """A sentence on some classes; nothing where there is none."""
    rows = np.bincount(task.codes, minlength=len(task.classes)).tolist()
    names = list(map(str, task.classes.tolist()))
    named = [f"{names[code]!r} ({rows[code]} row{'s' * (rows[code] != 1)})" for code in np.flatnonzero(which)]
    if named:
        yield f"{_listed(named, 'classes')}: {what}"


def _beyond(report: Mapping[str, Any]) -> Iterable[str]:
    """Cells whose k was larger than their bank, so that all rows of it voted."""
    asked, points = report["config"]["ours"]["n_neighbors"], report["points"]
    found: dict[tuple[int, int], list[str]] = {}
    for name, some in report["settings"].items():
        point = points.get(name.partition("@")[2], {})
        k = point["at"] if point.get("line") == "k" else asked
        used = min((each["k"] for each in some if each and "weights" in each and "scale" in each), default=None)
        if isinstance(k, int | float) and used is not None and used < k:
            found.setdefault((int(k), int(used)), []).append(name)
    for (k, used), names in found.items():
        yield f"k {k} is more than the bank of {_listed(names, 'cells')} holds: all of its rows vote (k {used})"


def _shared(report: Mapping[str, Any]) -> Iterable[str]:
    """Whether cells were filled side by side."""
    if (most := record.processes_of(report)) > 1:
        yield f"up to {most} processes filled cells side by side: times say little beside those of a run alone"


def _unequal(report: Mapping[str, Any], recipe: Recipe, scope: Scope, rows: int) -> list[str]:
    """Whether baselines and all others chose on different rows; what trains on images has no folds."""
    methods = [name for name in scope.methods if name in {method_of(cell) for cell in report["methods"]}]
    others, images = [name for name in methods if _is_baseline(name)], recipe.ours.images is not None
    how, alone = recipe.validation, len(others) in (0, len(methods))
    by_folds, theirs_by_folds = rows < how.folds_below, not images and rows < HELD_OUT_FROM
    if alone or by_folds == theirs_by_folds:
        return []
    told = f"{_listed(others, 'baselines')}: "
    if by_folds:
        told += "settings and temperature were chosen on all training rows, by folds; "
        return [told + "all others chose theirs on some of these rows, held out from the training"]
    told += f"to be quick, settings and temperature were chosen on {how.fraction:.0%} of the training rows; "
    return [told + "our methods chose theirs on all of these rows, by folds"]


def _noisy(recipe: Recipe, scope: Scope) -> list[str]:
    """What wrong labels do to calibration, and how trainings on them differ from the clean one."""
    wrong = any(point.noise.rate and not point.bank_only for point in scope.points) or recipe.noise.rate
    changes = ", ".join(f"{name} {value}" for name, value in recipe.ours.under_noise.items())
    if not wrong:
        return []
    revises = recipe.ours.under_noise.get("relabel")
    modest = (
        "where labels to learn from are wrong, so are as many of those by which settings and calibration are "
        "chosen, while all that test are right: chances that suit the former are too modest for the latter"
    )
    if revises:
        modest += "; a training that revises labels counts the wrong ones and allows for them"
    if not changes:
        return [modest]
    if recipe.ours.images is None:
        differs = (
            f"where labels to learn from are wrong, the attention is trained with {changes}, however few the rows "
            "are; vectors and baselines are trained as on clean labels"
        )
    else:
        alone = "; the CNN has the same but relabel: nothing revises its labels" * bool(
            revises and "cnn" in scope.methods
        )
        differs = f"where labels to learn from are wrong, trainings differ from the clean one by {changes}{alone}"
    return [modest, differs]


def _is_baseline(method: str) -> bool:
    return any(method == name or method.startswith((f"{name}-", f"{name}+")) for name in BASELINES)


def _listed(names: Sequence[str], what: str) -> str:
    some = ", ".join(names[:_NAMED])
    return some if len(names) <= _NAMED else f"{some} and {len(names) - _NAMED} more {what}"

"""Cells to a report: the schema of results files, with differences and verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.metrics import seed_interval
from attnknn.study.ablation import reference_pairs
from attnknn.study.alike import Cell, told_apart, unanimous
from attnknn.study.calibrations import calibration_pairs
from attnknn.study.cells import Cells
from attnknn.study.differences import (
    BUILDERS,
    DRAWN,
    Draws,
    difference,
    image_pairs,
)
from attnknn.study.filling import Lacking
from attnknn.study.left_out import left_out
from attnknn.study.manners import table_pairs
from attnknn.study.methods import METHODS
from attnknn.study.points import method_of
from attnknn.study.recipe import CORRECTED, OURS, TAUGHT, Recipe
from attnknn.study.verdicts import verdicts

COMPARED = (*OURS, *(f"{name}{CORRECTED}" for name in OURS), *TAUGHT)
"""Methods that are compared with those before them and with all others."""

Found = dict[tuple[str, int], dict[str, Any]]
Arrays = Mapping[tuple[str, int], Mapping[str, NDArray[Any]]]


def report_of(cells: Cells, wanted: Sequence[tuple[str, int]], lacking: Lacking) -> dict[str, Any]:
    """The results of all cells in a folder, those of earlier runs included.

    Args:
        cells: The folder.
        wanted: Name and seed of the cells of this run; what only earlier runs had is reported as well.
        lacking: Cells that raised, or for which no time was left, with the reason.
    """
    found = cells.all()
    done = {key: cell for key, cell in found.items() if "metrics" in cell and cells.done(*key)}
    arrays = {key: _kept(cells.predictions(*key)) for key in done}
    points = {each["name"]: each for cell in done.values() if (each := cell.get("point")) is not None}
    names = sorted({name for name, _ in done}, key=lambda name: _place(name, points))
    all_seeds = sorted({*(seed for _, seed in wanted), *(seed for _, seed in done)})
    gaps = _differences(cells, done, arrays, names)
    same, classes = _identical(done), _classes(arrays)
    alike, unexpected = told_apart([_judged(cells, done, group) for group in same], cells.recipe)
    lost = {key for key, cell in found.items() if "metrics" in cell} - set(done)
    missing = {f"{name}-{seed}" for name, seed in (set(wanted) - set(found)) | lost}
    return {
        "study": cells.recipe.study,
        "config": cells.recipe.config(),
        "recipe": cells.recipe.hash,
        "seeds": all_seeds,
        "classes": classes,
        "seconds": {name: _seconds(done, name, all_seeds) for name in names},
        "methods": {name: _summary(done, name, all_seeds, "metrics") for name in names},
        "uncalibrated": {name: _summary(done, name, all_seeds, "uncalibrated") for name in names},
        "settings": {name: _each(done, name, all_seeds, lambda cell: cell["settings"]) for name in names},
        "recalls": {name: _each(done, name, all_seeds, lambda cell: cell.get("recalls")) for name in names},
        "history": _history(done, names, all_seeds, "history"),
        "attention_history": _history(done, names, all_seeds, "attention_history"),
        "points": {name: {"at": points[name]["at"], "line": points[name]["line"]} for name in sorted(points)},
        "retention": _retention(done, arrays, names, all_seeds),
        "differences": gaps,
        "verdicts": verdicts(gaps),
        "identical": [[f"{name}-{seed}" for name, seed in group] for group in same],
        "alike": alike,
        "unexpected": unexpected,
        "not_run": lacking.late
        | {f"{m}-{s}": found[m, s]["not_run"] for m, s in sorted(found) if "not_run" in found[m, s]},
        "failed": {name: lacking.failed[name] for name in sorted(lacking.failed)},
        "left_out": left_out(cells.recipe, {name for name, _ in (*wanted, *found)}, len(classes)),
        "missing": sorted(missing - {*lacking.failed, *lacking.late}),
        "environments": _environments(done),
    }


def _kept(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What a report needs of a cell's arrays: many cells with all of their probabilities may not fit in memory."""
    return {name: each for name, each in arrays.items() if name in ("rows", "classes") or name.startswith(DRAWN)}


def _classes(arrays: Arrays) -> list[str]:
    """Names of the classes, as all cells have them."""
    return next((list(map(str, each["classes"].tolist())) for each in arrays.values() if "classes" in each), [])


def _place(name: str, points: Mapping[str, Mapping[str, Any]]) -> tuple[str, float, int]:
    """Where a cell's name stands: by line, along the line, then as in ``METHODS``."""
    point = points.get(name.partition("@")[2], {"line": "", "at": 0.0})
    return point["line"], point["at"], list(METHODS).index(method_of(name))


def _retention(done: Found, arrays: Arrays, names: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Of each method at each point its accuracy over that without wrong labels and long tails, by seed."""
    found = {}
    for name in names:
        plain = method_of(name)
        if name == plain or plain not in names:
            continue
        pairs = zip(
            *(_each(done, each, seeds, lambda cell: cell["metrics"]["accuracy"]) for each in (name, plain)),
            strict=True,
        )
        values = [None if None in pair or not pair[1] else pair[0] / pair[1] for pair in pairs]
        known = [seed for seed, value in zip(seeds, values, strict=True) if value is not None]
        found[name] = _retained(arrays, (name, plain), values, known)
    return found


def _retained(
    arrays: Arrays, names: tuple[str, str], values: Sequence[float | None], seeds: Sequence[int]
) -> dict[str, Any]:
    """A share of an accuracy that is retained, with an interval as that of a difference."""
    drawn = _drawn(arrays, names, "accuracy", seeds)
    if drawn is None:
        return _estimate(values)
    # A draw in which the plain method is never right has no share; it is left out.
    shares = [drawn.mine[seed] / np.where(drawn.other[seed] > 0, drawn.other[seed], np.nan) for seed in seeds]
    known = [value for value in values if value is not None]
    return {**drawn.interval(known, np.mean(shares, axis=0)), "values": list(values)}


def _history(done: Found, names: Sequence[str], seeds: Sequence[int], kind: str) -> dict[str, Any]:
    """How each training went, by seed; along an axis that where nothing is changed, and cells have the others."""
    known: dict[str, Any] = {}
    for name in names:
        each = _each(done, name, seeds, lambda cell: cell.get(kind))
        if any(each) and each not in known.values():  # a corrected method has the training of the method itself
            known[name] = each
    return {name: each for name, each in known.items() if "@" not in name} or known


def _each(done: Found, method: str, seeds: Sequence[int], value: Any) -> list[Any]:
    """A value of each seed; None where the method has no such cell."""
    return [value(done[method, seed]) if (method, seed) in done else None for seed in seeds]


def _summary(done: Found, method: str, seeds: Sequence[int], kind: str) -> dict[str, Any]:
    # Cells of an older version may lack a metric.
    metrics = dict.fromkeys(name for (its, _), cell in done.items() if its == method for name in cell[kind])
    return {
        name: _estimate(_each(done, method, seeds, lambda cell, n=name: cell[kind].get(n))) for name in metrics
    }


def _estimate(values: Sequence[float | None]) -> dict[str, Any]:
    known = seed_interval([value for value in values if value is not None] or [np.nan])
    return {"mean": known.value, "low": known.low, "high": known.high, "values": list(values)}


def _seconds(done: Found, method: str, seeds: Sequence[int]) -> dict[str, Any]:
    each = {
        name: _each(done, method, seeds, lambda cell, n=name: cell["seconds"][n]) for name in ("fit", "predict")
    }
    return {
        name: {"mean": float(np.mean([v for v in values if v is not None])), "values": values}
        for name, values in each.items()
    }


def _differences(cells: Cells, done: Found, arrays: Arrays, methods: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for mine, other in _pairs(methods, cells.recipe):
        gaps = {metric: _difference(done, arrays, (mine, other), metric) for metric in BUILDERS}
        found.setdefault(mine, {})[other] = {metric: gap for metric, gap in gaps.items() if gap is not None}
    return found


def _pairs(names: Sequence[str], recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Cells that are compared: methods at the same point."""
    for point in dict.fromkeys(name.partition("@")[1:] for name in names):
        here = [method_of(name) for name in names if name.partition("@")[1:] == point]
        for both in _compared(here, recipe):
            yield both[0] + "".join(point), both[1] + "".join(point)


def _compared(methods: Sequence[str], recipe: Recipe) -> list[tuple[str, str]]:
    if recipe.study == "ablation":
        return reference_pairs(methods)
    if recipe.study == "calibration":
        return calibration_pairs(methods)
    images = recipe.ours.images is not None and recipe.study == "main"
    return image_pairs(methods) if images else table_pairs(methods, COMPARED)


def _difference(done: Found, arrays: Arrays, names: tuple[str, str], metric: str) -> dict[str, Any] | None:
    mine, other = (_by_seed(done, name, metric) for name in names)
    seeds = sorted(set(mine) & set(other))
    identical = [seed for seed in seeds if len({_said(done, name, seed) for name in names}) == 1]
    return difference(mine, other, _drawn(arrays, names, metric, seeds), identical)


def _drawn(arrays: Arrays, names: tuple[str, str], metric: str, seeds: Sequence[int]) -> Draws | None:
    """A metric of two cells under the same draws of test rows; None where a cell of an older version has none."""
    each = [{seed: arrays[name, seed].get(DRAWN + metric) for seed in seeds} for name in names]
    if not seeds or any(values is None for some in each for values in some.values()):
        return None
    mine, other = ({seed: np.asarray(values) for seed, values in some.items()} for some in each)
    return Draws.of(mine, other, metric, [arrays[names[0], seed]["rows"] for seed in seeds])


def _said(done: Found, method: str, seed: int) -> str:
    return str(done[method, seed]["predictions"])


def _by_seed(done: Found, method: str, metric: str) -> dict[int, float]:
    cells = {seed: cell["metrics"] for (name, seed), cell in done.items() if name == method}
    # JSON has no infinity: what is null is not finite.
    return {
        seed: np.nan if each[metric] is None else each[metric] for seed, each in cells.items() if metric in each
    }


def _identical(done: Found) -> list[list[tuple[str, int]]]:
    """Cells with the very same predictions: one model under several names, or a mistake."""
    same: dict[str, list[tuple[str, int]]] = {}
    for method, seed in sorted(done):
        same.setdefault(_said(done, method, seed), []).append((method, seed))
    return [cells for cells in same.values() if len(cells) > 1]


def _judged(cells: Cells, done: Found, group: Sequence[tuple[str, int]]) -> list[Cell]:
    """Cells with the same predictions, as they are judged."""
    agree = unanimous(cells.predictions(*group[0])["probabilities"])
    return [Cell(*key, done[key]["settings"], agree) for key in group]


def _environments(done: Found) -> list[dict[str, Any]]:
    """Machines and sources that cells came from, each with its cells."""
    kinds: dict[str, dict[str, Any]] = {}
    for (method, seed), cell in sorted(done.items()):
        told = {name: cell.get(name) for name in ("environment", "commit", "source_hash")}
        kind = kinds.setdefault(json.dumps(told, sort_keys=True), {**told, "cells": []})
        kind["cells"].append(f"{method}-{seed}")
    return list(kinds.values())

"""Two runs of studies side by side: how they were made, and what the second found beyond the first."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput
from attnknn.study.cells import RECIPE, Cells, flat
from attnknn.study.differences import DRAWN, Draws, difference
from attnknn.study.methods import METHODS
from attnknn.study.points import method_of
from attnknn.study.recipe import EVERYTHING, Recipe, hash_of
from attnknn.study.verdicts import JUDGED, verdict

SIDES: Final = ("first", "second")
_RECORD: Final = ("commit", "source_hash", "environment")  # what a cell tells of how it was made
_SAME_TABLE: Final = ("data_hash", "drop_duplicates")  # row numbers mean the same rows only where these agree
_SPLIT: Final = ("train_rows", "test_share")
_KEPT: Final = ("probabilities", "labels", "rows")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """A folder of a study, left by whatever version of the package; ``done`` are its cells with numbers."""

    config: dict[str, Any]
    cells: Cells
    done: dict[tuple[str, int], dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read the recipe and all cells, but not yet their predictions.

        Raises:
            InvalidInput: The folder is not that of a study, a cell of it is broken, or none has numbers.
        """
        config = _config(folder)
        # Fields come and go with versions, so a recipe cannot always be built again; its cells need the hash only.
        cells = Cells(folder, cast(Recipe, _Written(config)))
        done = {key: cell for key, cell in cells.all().items() if "metrics" in cell}
        if not done and config.get("study") == EVERYTHING.name:
            raise InvalidInput(f"{folder} holds several studies; name one of them, such as {folder / 'main'}")
        if not done:
            raise InvalidInput(f"{folder} has no cell with numbers; run its study first")
        for key, cell in done.items():
            if not _are_numbers(cell["metrics"]):
                raise InvalidInput(f"{cells.path(*key)} has metrics that are no numbers; remove it and run again")
        return cls(config, cells, done)

    def seeds(self, name: str) -> set[int]:
        """Seeds with numbers under the name of a cell."""
        return {seed for each, seed in self.done if each == name}

    def values(self, name: str, metric: str, seeds: Sequence[int]) -> dict[int, float]:
        """A metric for each of the seeds that have it."""
        told = {seed: self.done[name, seed]["metrics"] for seed in seeds}
        # JSON has no infinity: what is null is not finite.
        return {
            seed: math.nan if each[metric] is None else each[metric]
            for seed, each in told.items()
            if metric in each
        }

    def predictions(self, name: str, seeds: Sequence[int]) -> dict[int, Arrays]:
        """What the cells of a name predicted, and for which rows.

        Raises:
            InvalidInput: They are absent, damaged, or not those that the cell speaks of.
        """
        found = {seed: self.cells.predictions(name, seed) for seed in seeds}
        for seed, arrays in found.items():
            lacking = [each for each in _KEPT if each not in arrays]
            if lacking:
                path = self.cells.path(name, seed).with_suffix(".npz")
                raise InvalidInput(f"{path} has no {lacking[0]}; remove the cell and run again")
        return found


@dataclass(frozen=True, slots=True)
class _Written:
    """Stands for a recipe by what was written of it."""

    config: dict[str, Any]

    @property
    def hash(self) -> str:
        return hash_of(self.config)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """What differs between two runs: recipes, records, and each cell by seed and test row, second minus first.

    Raises:
        InvalidInput: A folder is not that of a study, a cell is broken, or the runs were tested on different rows,
            so that no difference between them could be paired.
    """
    runs = (Run.read(first), Run.read(second))
    _check_same_data(runs)
    both = sorted({name for name, _ in runs[0].done.keys() & runs[1].done.keys()}, key=_place)
    cells = {name: _compared(runs, name) for name in both}
    return {
        "runs": {side: _head(run) for side, run in zip(SIDES, runs, strict=True)},
        "recipes": _differing([dict(flat(run.config)) for run in runs]),
        "records": _differing([_records(run) for run in runs]),
        "cells": cells,
        "verdicts": [sentence for name, cell in cells.items() for sentence in sentences(name, cell)],
        "only": {
            side: _beyond(mine, other)
            for side, mine, other in zip(SIDES, runs, reversed(runs), strict=True)
        },
    }  # fmt: skip


def sentences(name: str, cell: Mapping[str, Any]) -> list[str]:
    """What the differences of one cell of ``compare`` allow to say."""
    if cell["identical_seeds"] == cell["seeds"]:
        seeds = len(cell["seeds"])
        return [f"{name}: identical predictions, {seeds} seed{'s' * (seeds != 1)}"]
    return [
        f"{name}: {verdict('the second', 'the first', JUDGED[metric], gap)}"
        for metric, gap in cell["differences"].items()
    ]


def _config(folder: Path) -> dict[str, Any]:
    file = folder / RECIPE
    if not file.is_file():
        raise InvalidInput(f"{folder} is not the folder of a study: it has no {RECIPE}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not {"study", "data", "data_hash"} <= set(found):
        raise InvalidInput(f"{file} is not the recipe of a study")
    return found


def _are_numbers(metrics: Any) -> bool:
    return isinstance(metrics, dict) and all(
        each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in metrics.values()
    )


def _head(run: Run) -> dict[str, Any]:
    told = {name: run.config[name] for name in ("study", "data")}
    return {"folder": str(run.cells.folder), **told, "recipe": run.cells.recipe.hash}


def _check_same_data(runs: tuple[Run, Run]) -> None:
    # A recipe that lacks ``drop_duplicates`` dropped nothing.
    differ = _differing([{name: run.config.get(name) or False for name in _SAME_TABLE} for run in runs])
    if differ:
        folders = " and ".join(f"{run.cells.folder} ({run.config['data']})" for run in runs)
        raise InvalidInput(
            f"{folders} are studies of different rows, so their differences cannot be paired; "
            f"they differ in {_listed(differ)}"
        )


def _check_same_rows(runs: tuple[Run, Run], name: str, seed: int, kept: tuple[Arrays, Arrays]) -> None:
    if all(np.array_equal(kept[0][each], kept[1][each]) for each in ("rows", "labels")):
        return
    paths = " and ".join(str(run.cells.path(name, seed)) for run in runs)
    differ = _differing([{each: run.config.get(each) for each in _SPLIT} for run in runs])
    why = f"; the recipes differ in {_listed(differ)}" if differ else "; their splits differ"
    sizes = " and ".join(str(len(each["rows"])) for each in kept)
    raise InvalidInput(f"{paths} have different test rows ({sizes}), so they cannot be paired{why}")


def _differing(told: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Names under which two mappings have different values, with both."""
    names = [name for name in {**told[0], **told[1]} if told[0].get(name) != told[1].get(name)]
    return {name: {side: each.get(name) for side, each in zip(SIDES, told, strict=True)} for name in names}


def _listed(differ: Mapping[str, Mapping[str, Any]]) -> str:
    """Names with both values, of hashes the beginnings."""
    both = {name: " and ".join(str(value)[:12] for value in each.values()) for name, each in differ.items()}
    return ", ".join(f"{name} ({values})" for name, values in both.items())


def _records(run: Run) -> dict[str, list[Any]]:
    """Commit, source, machine and versions under flat names; several values where cells come from several."""
    found: dict[str, list[Any]] = {}
    for _, cell in sorted(run.done.items()):
        for name, value in flat({each: cell.get(each) for each in _RECORD}):
            if value not in (values := found.setdefault(name, [])):
                values.append(value)
    return {name: sorted(values, key=str) for name, values in found.items()}


def _compared(runs: tuple[Run, Run], name: str) -> dict[str, Any]:
    """A cell that both runs have, on the seeds that both have."""
    seeds = sorted(runs[0].seeds(name) & runs[1].seeds(name))
    kept = [run.predictions(name, seeds) for run in runs]
    for seed in seeds:
        _check_same_rows(runs, name, seed, (kept[0][seed], kept[1][seed]))
    identical = [s for s in seeds if np.array_equal(kept[0][s]["probabilities"], kept[1][s]["probabilities"])]
    values = {metric: [run.values(name, metric, seeds) for run in runs] for metric in JUDGED}
    gaps = {
        metric: difference(second, first, _drawn(kept, metric), identical)
        for metric, (first, second) in values.items()
    }
    known = {metric: gap for metric, gap in gaps.items() if gap is not None}
    means = {
        side: {metric: float(np.mean([*each[at].values()])) for metric, each in values.items() if metric in known}
        for at, side in enumerate(SIDES)
    }
    return {"seeds": seeds, "identical_seeds": identical, **means, "differences": known}


def _drawn(kept: Sequence[Mapping[int, Arrays]], metric: str) -> Draws | None:
    """A metric of the second and the first run under the same draws of test rows, where all cells have them."""
    name = DRAWN + metric
    every = [arrays.get(name) for cells in kept for arrays in cells.values()]
    draws = min(0 if each is None else len(each) for each in every)
    if not draws:
        return None
    first, second = ({seed: arrays[name][:draws] for seed, arrays in cells.items()} for cells in kept)
    # More draws only add to the same first ones.
    return Draws.of(second, first, metric, [arrays["rows"] for arrays in kept[0].values()])


def _beyond(mine: Run, other: Run) -> dict[str, list[int]]:
    """Names and seeds of the cells that only one run has."""
    found: dict[str, list[int]] = {}
    for name, seed in sorted(mine.done.keys() - other.done.keys(), key=lambda key: (_place(key[0]), key[1])):
        found.setdefault(name, []).append(seed)
    return found


def _place(name: str) -> tuple[int, list[Any]]:
    """Where a cell's name stands: as in ``METHODS``, then along its axis by the numbers in the name."""
    method, order = method_of(name), list(METHODS)
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    numbered = [float(part) if at % 2 else part for at, part in enumerate(parts)]
    return order.index(method) if method in order else len(order), numbered

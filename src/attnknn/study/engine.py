"""Runs the cells of a study that are missing, and writes its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnknn import metrics
from attnknn.errors import InvalidInput, MissingExtra
from attnknn.estimator.options import search_device
from attnknn.study import record
from attnknn.study.cells import Cells
from attnknn.study.differences import DRAWN, under_draws
from attnknn.study.efficiency import PLACES, quick_places, run_places
from attnknn.study.job import FITTED, Fitted, Floats, Job, Stopwatch
from attnknn.study.methods import METHODS, has_meaning
from attnknn.study.ours import Ours
from attnknn.study.points import PLAIN_POINT, Point, cell_name
from attnknn.study.recipe import Recipe
from attnknn.study.report import report_of
from attnknn.study.splits import Parts, Rows, Task, at_point, parts
from attnknn.study.written import write_figures, write_report

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A study that ran to its end: the report, and why some cells have no numbers."""

    report: dict[str, Any]
    failed: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Where cells are run, as their record tells."""

    device: str
    commit: str | None

    def told(self) -> dict[str, Any]:
        """Part of a cell."""
        return {
            "commit": self.commit,
            "source_hash": record.source_hash(),
            "environment": record.environment(self.device),
        }


def run_study(
    recipe: Recipe,
    task: Task,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    points: Sequence[Point] = (PLAIN_POINT,),
    device: str = "auto",
    commit: str | None = None,
    keep: Sequence[str] = (),
    figures: bool = False,
    say: Say = lambda text: None,
) -> Outcome:
    """Fill the cells that are missing in a folder and write ``report.json`` from all that are there.

    Args:
        recipe: What decides the numbers.
        task: The rows it speaks of.
        methods: Keys of ``METHODS``.
        seeds: Each gives every method a cell.
        out: New, empty, or with the same recipe.
        points: Each gives every method that has a meaning there a cell.
        device: Where our methods run.
        commit: The commit of the source, where there is no git to ask.
        keep: Methods whose models are saved in ``out / "models"``, as ``method-seed``.
        figures: Whether figures are drawn as files too; that takes matplotlib.
        say: Hears what is being done and how long it may take.

    Raises:
        InvalidInput: Something that no cell could mend, such as a folder of another study.
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise InvalidInput(f"no method is called {unknown[0]!r}; try one of: {', '.join(METHODS)}")
    unsaved = [name for name in keep if not isinstance(METHODS[name], Ours)]
    if unsaved:
        raise InvalidInput(f"a model of {unsaved[0]} cannot be saved; keep one of ours, such as attention")
    machine = Machine(search_device(device), commit or record.commit())
    for seed in seeds:
        parts(task, recipe, seed)  # what no cell could mend is told before any is run
    cells = Cells.open(out, recipe)
    every = [
        Asked(method, point, seed)
        for seed in seeds
        for point in points
        for method in methods
        if has_meaning(METHODS[method], point)
    ]
    models = {(method, seed): out / "models" / f"{method}-{seed}" for method in keep for seed in seeds}
    failed = _fill(cells, task, every, machine, models, say)
    say("writing the report")
    told = report_of(cells, [asked.cell for asked in every], failed)
    if recipe.study == "efficiency":
        places = PLACES if recipe.most_rows is None else quick_places()
        told["places"] = run_places(out / "places", places, say)
    report = record.recorded(told, given_commit=machine.commit)
    write_report(report, cells)
    if figures:
        say("drawing figures")
        write_figures(report, cells)
    return Outcome(report, failed)


@dataclass(frozen=True, slots=True)
class Asked:
    """A cell that a run is to have."""

    method: str
    point: Point
    seed: int

    @property
    def cell(self) -> tuple[str, int]:
        """The names under which it is kept."""
        return cell_name(self.method, self.point), self.seed


def _fill(
    cells: Cells,
    task: Task,
    every: Sequence[Asked],
    machine: Machine,
    models: Mapping[tuple[str, int], Path],
    say: Say,
) -> dict[str, str]:
    """Run the cells that are missing, and those whose model is; returns why some have no numbers."""
    lacking = {key for key, folder in models.items() if not folder.exists()}
    todo = [asked for asked in every if asked.cell in lacking or not cells.done(*asked.cell)]
    failed: dict[str, str] = {}
    pace, shared = Pace(cells, [asked.cell for asked in todo]), Shared()
    for at, asked in enumerate(todo):
        name, seed = asked.cell
        say(f"{name}, seed {seed}: cell {at + 1} of {len(todo)}{pace.left(at)}")
        watch = Stopwatch()
        job = job_at(cells.recipe, task, asked.point, seed, machine.device, shared.of(seed, asked.point))
        reason = run_cell(cells, job, asked.method, machine, models.get(asked.cell))
        pace.took(name, watch.seconds)
        if reason is not None:
            failed[f"{name}-{seed}"] = reason
    return failed


def job_at(recipe: Recipe, task: Task, point: Point, seed: int, device: str, shared: dict[str, Any]) -> Job:
    """What is to be done at a point: rows and labels are changed here, unless the bank alone is meant."""
    followed = at_point(recipe, point)
    rows = parts(task, followed, seed, 1.0 if point.bank_only else point.tail)
    return Job(followed, task, rows, seed, device, shared, point)


class Shared:
    """What methods leave for each other: of the training that is under way, and of the plain one of its seed."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._held: dict[str, dict[str, Any]] = {}

    def of(self, seed: int, point: Point) -> dict[str, Any]:
        """Where to look, and to leave something."""
        if seed != self._seed:
            self._seed, self._held = seed, {}
        self._held = {key: each for key, each in self._held.items() if key in ("", point.training)}
        return self._held.setdefault(point.training, {})


def run_cell(cells: Cells, job: Job, method: str, machine: Machine, keep: Path | None = None) -> str | None:
    """Fill one cell, and keep its model in a folder if asked.

    A failure is told, not raised, so that the other cells are not lost.
    """
    name = cell_name(method, job.point)
    try:
        fitted = job.shared[f"{FITTED}{name}"] = METHODS[method](job)
        if keep is not None and fitted.save is not None:
            fitted.save(keep)
        content, arrays = _scored(job, fitted)
    except MissingExtra as problem:
        cells.write(name, job.seed, {"not_run": str(problem), **machine.told()})
        return None
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    cells.write(name, job.seed, {**content, **machine.told()}, arrays)
    return None


def scores(probabilities: Floats, labels: Rows, draws: int) -> dict[str, float]:
    """Every metric of a cell."""
    found = {
        "accuracy": metrics.accuracy(probabilities, labels),
        "f1_macro": metrics.f1_macro(probabilities, labels),
        "nll": metrics.nll(probabilities, labels),
        "ece": metrics.ece(probabilities, labels),
        "ece_floor": metrics.ece_floor(probabilities, draws=draws),
        "brier": metrics.brier(probabilities, labels),
        "aurc": metrics.aurc(probabilities, labels),
        "balanced_accuracy": float(
            np.mean([value for value in recalls(probabilities, labels) if value is not None])
        ),
    }
    return found | {"auc": metrics.auc(probabilities, labels)} if probabilities.shape[1] == 2 else found


def recalls(probabilities: Floats, labels: Rows) -> list[float | None]:
    """Of each class the share of its rows that is recognized; None where there is no row."""
    right = probabilities.argmax(axis=1) == labels
    each = [right[labels == code] for code in range(probabilities.shape[1])]
    return [float(some.mean()) if len(some) else None for some in each]


def _focused(probabilities: Floats, labels: Rows, focus: int | None) -> dict[str, float]:
    """Recall of one class and accuracy on the rest, where a class is of interest."""
    if focus is None:
        return {}
    right, new = probabilities.argmax(axis=1) == labels, labels == focus
    return {"recall_new": float(right[new].mean()), "accuracy_others": float(right[~new].mean())}


def _scored(job: Job, fitted: Fitted) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cell's content and arrays. Test rows are predicted here; no method learns from them."""
    at: Parts = job.parts
    said, truth = fitted.predict(at.test), job.task.codes[at.test]
    content = {
        "point": {"name": job.point.name, "at": job.point.at, "line": job.point.line},
        "settings": fitted.settings,
        "rows": {"train": len(at.train), "test": len(at.test)},
        "seconds": {"fit": fitted.seconds, "predict": said.seconds},
        "metrics": {
            **scores(said.calibrated, truth, job.recipe.draws),
            **_focused(said.calibrated, truth, fitted.focus),
        },
        "uncalibrated": scores(said.uncalibrated, truth, job.recipe.draws),
        "recalls": recalls(said.calibrated, truth),
    }
    arrays = {
        "probabilities": said.calibrated.astype(np.float32),  # the metrics above are of all digits
        "labels": truth.astype(np.int32),
        "rows": at.test.astype(np.int32),
        "classes": np.asarray(job.task.classes),
    }
    if job.recipe.train_rows is not None:  # seeds share their test rows, so that draws of them can be paired
        drawn = under_draws(said.calibrated, truth, job.recipe.draws)
        arrays |= {f"{DRAWN}{name}": values for name, values in drawn.items()}
    return content, arrays


class Pace:
    """How long the cells that are left may take, judged by those that are done."""

    def __init__(self, cells: Cells, todo: Sequence[tuple[str, int]]) -> None:
        self._todo = todo
        self._seen: dict[str, list[float]] = {}
        for (method, _), cell in cells.all().items():
            if "seconds" in cell:
                self.took(method, sum(cell["seconds"].values()))

    def took(self, method: str, seconds: float) -> None:
        """Remember a cell."""
        self._seen.setdefault(method, []).append(seconds)

    def left(self, at: int) -> str:
        """Time left before cell ``at`` of those to do; nothing while nothing is known."""
        if not self._seen:
            return ""
        mean = {method: float(np.mean(each)) for method, each in self._seen.items()}
        other = float(np.mean(list(mean.values())))
        seconds = sum(mean.get(method, other) for method, _ in self._todo[at:])
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"

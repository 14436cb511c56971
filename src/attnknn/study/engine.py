"""Runs the cells of a study that are missing, and writes its report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnknn.errors import InvalidInput, MissingExtra
from attnknn.estimator.options import search_device
from attnknn.study import record
from attnknn.study.cells import Cells
from attnknn.study.efficiency import PLACES, quick_places, run_places
from attnknn.study.job import FITTED, Job, Stopwatch
from attnknn.study.methods import METHODS, has_meaning
from attnknn.study.notes import notes_of
from attnknn.study.ours import Ours
from attnknn.study.points import PLAIN_POINT, Point, Scope, cell_name
from attnknn.study.recipe import Recipe
from attnknn.study.rendered import need_matplotlib
from attnknn.study.report import report_of
from attnknn.study.scored import scored
from attnknn.study.splits import Task, at_point, parts
from attnknn.study.written import Drawn, Extra, not_drawn, write_overview, write_report

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

    @classmethod
    def here(cls, device: str, commit: str | None) -> Machine:
        """This one; ``commit`` is of the source, where there is no git to ask."""
        return cls(search_device(device), commit or record.commit())

    def told(self) -> dict[str, Any]:
        """Part of a cell."""
        return {
            "commit": self.commit,
            "source_hash": record.source_hash(),
            "environment": record.environment(self.device),
        }


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


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One study of a run: its folder, the cells that it is to have, and where models of some are kept."""

    cells: Cells
    scope: Scope
    seeds: Sequence[int]
    every: tuple[Asked, ...]
    models: Mapping[tuple[str, int], Path]

    @classmethod
    def of(cls, recipe: Recipe, scope: Scope, seeds: Sequence[int], out: Path, keep: Sequence[str] = ()) -> Plan:
        """Claim the folder.

        Raises:
            InvalidInput: Something that no cell could mend, such as a folder of another study.
        """
        unknown = [name for name in scope.methods if name not in METHODS]
        if unknown:
            raise InvalidInput(f"no method is called {unknown[0]!r}; try one of: {', '.join(METHODS)}")
        unsaved = [name for name in keep if not isinstance(METHODS[name], Ours)]
        if unsaved:
            raise InvalidInput(f"a model of {unsaved[0]} cannot be saved; keep one of ours, such as attention")
        every = tuple(
            Asked(method, point, seed)
            for seed in seeds
            for point in scope.points
            for method in scope.methods
            if has_meaning(METHODS[method], point)
        )
        models = {(method, seed): out / "models" / f"{method}-{seed}" for method in keep for seed in seeds}
        return cls(Cells.open(out, recipe), scope, seeds, every, models)

    def todo(self) -> list[Asked]:
        """The cells that are missing, and those whose model is."""
        lacking = {key for key, folder in self.models.items() if not folder.exists()}
        return [asked for asked in self.every if asked.cell in lacking or not self.cells.done(*asked.cell)]


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
    also: Collection[Extra] = (),
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
        also: ``figures`` draws them as .png too, where there is matplotlib; ``pdf`` writes ``report.pdf``.
        say: Hears what is being done and how long it may take.

    Raises:
        InvalidInput: Something that no cell could mend, such as a folder of another study.
    """
    machine = Machine.here(device, commit)
    _check(task, recipe, seeds, also)
    plan = Plan.of(recipe, Scope(methods, points), seeds, out, keep)
    failed = _fill([plan], task, machine, say)[0]
    return Outcome(_finished(plan, failed, Closing(task, machine, also, say))[0], failed)


def run_all(
    recipe: Recipe,
    task: Task,
    scopes: Mapping[str, Scope],
    *,
    seeds: Sequence[int],
    out: Path,
    device: str = "auto",
    commit: str | None = None,
    also: Collection[Extra] = (),
    say: Say = lambda text: None,
) -> Outcome:
    """Run several studies, each in a folder of its own in ``out``, and write one report of them all.

    What is trained for a seed serves all of them: they go seed by seed.

    Args:
        recipe: What decides the numbers; each study follows it under its own name.
        task: The rows it speaks of.
        scopes: What each study compares, by its name.
        seeds: As in ``run_study``.
        out: As in ``run_study``.
        device: As in ``run_study``.
        commit: As in ``run_study``.
        also: As in ``run_study``.
        say: As in ``run_study``.

    Raises:
        InvalidInput: As in ``run_study``.
    """
    machine, watch = Machine.here(device, commit), Stopwatch()
    _check(task, recipe, seeds, also)
    Cells.open(out, recipe)
    plans = [Plan.of(replace(recipe, study=name), scope, seeds, out / name) for name, scope in scopes.items()]
    run = sum(len(plan.todo()) for plan in plans)
    failed = _fill(plans, task, machine, say)
    closing = Closing(task, machine, also, say)
    ended = {
        plan.cells.recipe.study: _finished(plan, reasons, closing)
        for plan, reasons in zip(plans, failed, strict=True)
    }
    reports = {name: report for name, (report, _) in ended.items()}
    told = {"study": recipe.study, "config": recipe.config(), "recipe": recipe.hash}
    told |= {"run": {"cells": run, "seconds": watch.seconds}, "studies": reports}
    report = record.recorded(told, given_commit=machine.commit)
    say("writing the report of all")
    write_overview(report, {name: drawn for name, (_, drawn) in ended.items()}, out, also)
    named = {
        f"{name}: {cell}": why for name, some in zip(reports, failed, strict=True) for cell, why in some.items()
    }
    return Outcome(report, named)


def _check(task: Task, recipe: Recipe, seeds: Sequence[int], also: Collection[Extra]) -> None:
    """What no cell could mend is told before any is run."""
    if "pdf" in also:
        need_matplotlib()
    for seed in seeds:
        parts(task, recipe, seed)


@dataclass(frozen=True, slots=True, eq=False)
class Closing:
    """What the reports of a run share."""

    task: Task
    machine: Machine
    also: Collection[Extra]
    say: Say


def _finished(plan: Plan, failed: Mapping[str, str], how: Closing) -> tuple[dict[str, Any], Drawn]:
    """Write what a study leaves, from all cells that its folder has; returns the report, and what was drawn."""
    recipe, out = plan.cells.recipe, plan.cells.folder
    how.say(f"writing the report of {recipe.study}")
    told = report_of(plan.cells, [asked.cell for asked in plan.every], failed)
    if recipe.study == "efficiency":
        places = PLACES if recipe.most_rows is None else quick_places()
        told["places"] = run_places(out / "places", places, how.say)
    told["notes"] = notes_of(told, recipe, how.task, plan.scope, plan.seeds)
    told["notes"] += [why] if (why := not_drawn(how.also)) is not None else []
    report = record.recorded(told, given_commit=how.machine.commit)
    return report, write_report(report, plan.cells, how.also)


def _fill(plans: Sequence[Plan], task: Task, machine: Machine, say: Say) -> list[dict[str, str]]:
    """Run the cells that are missing, seed by seed; returns of each plan why some have no numbers."""
    lacking = [(at, asked) for at, plan in enumerate(plans) for asked in plan.todo()]
    todo = sorted(lacking, key=lambda each: each[1].seed)  # stable: else as the studies come
    failed: list[dict[str, str]] = [{} for _ in plans]
    pace, shared = Pace([plan.cells for plan in plans], [asked.cell for _, asked in todo]), Shared()
    for done, (at, asked) in enumerate(todo):
        (name, seed), cells = asked.cell, plans[at].cells
        study = f"{cells.recipe.study}: " if len(plans) > 1 else ""
        say(f"{study}{name}, seed {seed}: cell {done + 1} of {len(todo)}{pace.left(done)}")
        watch = Stopwatch()
        job = job_at(cells.recipe, task, asked.point, seed, machine.device, shared.of(seed, asked.point))
        reason = run_cell(cells, job, asked.method, machine, plans[at].models.get(asked.cell))
        pace.took(name, watch.seconds)
        if reason is not None:
            failed[at][f"{name}-{seed}"] = reason
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
        fitted = job.shared.get(f"{FITTED}{name}") or METHODS[method](job)  # another study of the run may have it
        if not _trains_alone(method):
            job.shared[f"{FITTED}{name}"] = fitted
        if keep is not None and fitted.save is not None:
            fitted.save(keep)
        content, arrays = scored(job, fitted)
    except MissingExtra as problem:
        cells.write(name, job.seed, {"not_run": str(problem), **machine.told()})
        return None
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    cells.write(name, job.seed, {**content, **machine.told()}, arrays)
    return None


def _trains_alone(method: str) -> bool:
    """Whether no other method or study asks for what it fitted, so that it need not be held."""
    ours = METHODS[method]
    return isinstance(ours, Ours) and ours.trained_alone


class Pace:
    """How long the cells that are left may take, judged by those that are done."""

    def __init__(self, folders: Sequence[Cells], todo: Sequence[tuple[str, int]]) -> None:
        self._todo = todo
        self._seen: dict[str, list[float]] = {}
        for cells in folders:
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

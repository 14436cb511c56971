"""Runs studies, one or all of them, and writes their reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnknn.study import record
from attnknn.study.cells import Cells
from attnknn.study.claims import CLAIMS, claimed
from attnknn.study.efficiency import PLACES, quick_places, run_places
from attnknn.study.filling import Filling, Lacking, Machine, Plan, Say
from attnknn.study.job import Stopwatch
from attnknn.study.notes import notes_of
from attnknn.study.points import PLAIN_POINT, Point, Scope, meant_points
from attnknn.study.recipe import Recipe
from attnknn.study.rendered import need_matplotlib
from attnknn.study.report import report_of
from attnknn.study.splits import Task, parts
from attnknn.study.turns import Turn, state_of
from attnknn.study.workers import check_jobs, filled
from attnknn.study.written import Drawn, Extra, not_drawn, write_overview, write_report


@dataclass(frozen=True, slots=True)
class Outcome:
    """A study that ran to its end: the report, and why some cells have no numbers.

    Of several runs in one folder one has ``written`` the report, and the others have it as its file tells it.
    """

    report: dict[str, Any]
    failed: dict[str, str]
    written: bool = True


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
    minutes: float | None = None,
    jobs: int = 1,
    keep: Sequence[str] = (),
    also: Collection[Extra] = (),
    say: Say = lambda text: None,
) -> Outcome:
    """Fill the cells that are missing in a folder and write ``report.json`` from all that are there.

    Several processes, by ``jobs`` or by starting the same several times at once, share the work; times that are
    measured meanwhile say little beside those of a run alone.

    Args:
        recipe: What decides the numbers.
        task: The rows it speaks of.
        methods: Keys of ``METHODS``.
        seeds: Each gives every method a cell.
        out: New, empty, or with the same recipe.
        points: Each gives every method that has a meaning there a cell.
        device: Where our methods run.
        commit: The commit of the source, where there is no git to ask.
        minutes: After so many no cell is begun, and what is left is told as not run; the next run goes on with it.
        jobs: How many processes fill cells; each has its share of the threads.
        keep: Methods whose models are saved in ``out / "models"``, as ``method-seed``.
        also: ``figures`` draws them as .png too, where there is matplotlib; ``pdf`` writes ``report.pdf``.
        say: Hears what is being done and how long it may take.

    Raises:
        InvalidInput: Something that no cell could mend, such as a folder of another study.
    """
    _check(task, recipe, seeds, also, jobs)
    machine = Machine.here(device, commit, minutes, jobs)
    plan = Plan.of(recipe, _meant(Scope(methods, points), task), seeds, out, keep)
    turn, closing = Turn.of(out), Closing(task, machine, also, say)
    (lacking,) = filled(Filling([plan], task, machine, out, say))
    state = state_of([plan], [lacking], also)
    report, mine = turn.report(state, lambda: _finished(plan, lacking, closing)[0], say)
    return Outcome(report, lacking.failed, mine)


def run_all(
    recipe: Recipe,
    task: Task,
    scopes: Mapping[str, Scope],
    *,
    seeds: Sequence[int],
    out: Path,
    device: str = "auto",
    commit: str | None = None,
    minutes: float | None = None,
    jobs: int = 1,
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
        minutes: As in ``run_study``.
        jobs: As in ``run_study``.
        also: As in ``run_study``.
        say: As in ``run_study``.

    Raises:
        InvalidInput: As in ``run_study``.
    """
    _check(task, recipe, seeds, also, jobs)
    machine, watch = Machine.here(device, commit, minutes, jobs), Stopwatch()
    Cells.open(out, recipe)
    plans = [
        Plan.of(replace(recipe, study=name), _meant(scope, task), seeds, out / name)
        for name, scope in scopes.items()
    ]
    turn, closing = Turn.of(out), Closing(task, machine, also, say)
    run = sum(len(plan.todo()) for plan in plans)
    lacking = filled(Filling(plans, task, machine, out, say))

    def write() -> dict[str, Any]:
        ended = {
            plan.cells.recipe.study: _finished(plan, reasons, closing)
            for plan, reasons in zip(plans, lacking, strict=True)
        }
        told = {"study": recipe.study, "config": recipe.config(), "recipe": recipe.hash}
        told |= {"run": {"cells": run, "seconds": watch.seconds}}
        told |= {"studies": {name: report for name, (report, _) in ended.items()}}
        report = record.recorded(told, given_commit=machine.commit)
        say("writing the report of all")
        write_overview(report, {name: drawn for name, (_, drawn) in ended.items()}, out, also)
        return report

    report, mine = turn.report(state_of(plans, lacking, also), write, say)
    named = {
        f"{name}: {cell}": why
        for name, some in zip(scopes, lacking, strict=True)
        for cell, why in some.failed.items()
    }
    return Outcome(report, named, mine)


def _check(task: Task, recipe: Recipe, seeds: Sequence[int], also: Collection[Extra], jobs: int) -> None:
    """What no cell could mend is told before any is run."""
    check_jobs(jobs)
    if "pdf" in also:
        need_matplotlib()
    for seed in seeds:
        parts(task, recipe, seed)


def _meant(scope: Scope, task: Task) -> Scope:
    return replace(scope, points=meant_points(scope.points, len(task.classes)))


@dataclass(frozen=True, slots=True, eq=False)
class Closing:
    """What the reports of a run share."""

    task: Task
    machine: Machine
    also: Collection[Extra]
    say: Say


def _finished(plan: Plan, lacking: Lacking, how: Closing) -> tuple[dict[str, Any], Drawn]:
    """Write what a study leaves, from all cells that its folder has; returns the report, and what was drawn."""
    recipe, out = plan.cells.recipe, plan.cells.folder
    how.say(f"writing the report of {recipe.study}")
    told = report_of(plan.cells, [asked.cell for asked in plan.every], lacking)
    if recipe.study == "efficiency":
        places = PLACES if recipe.most_rows is None else quick_places()
        with claimed(out / CLAIMS / "places", wait=True):  # two that measure at once would measure each other
            told["places"] = run_places(out / "places", places, how.say, how.machine.began, how.machine.late)
    told["notes"] = notes_of(told, recipe, how.task, plan.scope, told["seeds"])
    told["notes"] += [why] if (why := not_drawn(how.also)) is not None else []
    report = record.recorded(told, given_commit=how.machine.commit)
    return report, write_report(report, plan.cells, how.also)

"""Fills the cells of studies that are missing, those that share a training together.

Several runs in one folder share the work: what is taken by one is left to it, and looked at again when it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnknn.errors import InvalidInput, MissingExtra, NotApplicable
from attnknn.estimator.options import search_device
from attnknn.study import record
from attnknn.study.cells import Cells
from attnknn.study.claims import CLAIMS, claimed
from attnknn.study.job import FITTED, Job, Stopwatch
from attnknn.study.methods import METHODS, fit_of, has_meaning
from attnknn.study.ours import Ours
from attnknn.study.points import Point, Scope, cell_name
from attnknn.study.recipe import Recipe
from attnknn.study.scored import scored
from attnknn.study.splits import Task, at_point, parts

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Where cells are run, as their record tells, for how many minutes, by how many processes, and since when.

    None minutes are no limit.
    """

    device: str
    commit: str | None
    minutes: float | None = None
    jobs: int = 1
    began: float = field(default_factory=time.time)

    @classmethod
    def here(cls, device: str, commit: str | None, minutes: float | None = None, jobs: int = 1) -> Machine:
        """This one; ``commit`` is of the source, where there is no git to ask."""
        return cls(search_device(device), commit or record.commit(), minutes, jobs)

    def late(self) -> str | None:
        """Why nothing more is begun, in words; None while something may be."""
        if self.minutes is None or time.time() < self.began + 60 * self.minutes:
            return None
        if not self.minutes:
            return "not there yet when the report was written"
        return f"no time was left of {self.minutes:g} minutes"

    def told(self) -> dict[str, Any]:
        """Part of a cell."""
        here = record.environment(self.device)
        if self.jobs > 1:
            here["processes"] = self.jobs
        return {"commit": self.commit, "source_hash": record.source_hash(), "environment": here}


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

    @property
    def told(self) -> str:
        """Names the cell where something is said of it."""
        return "-".join(map(str, self.cell))

    @property
    def part(self) -> str:
        """Names the cells that share what is fitted; one run takes them all."""
        return "-".join(filter(None, (f"seed-{self.seed}", self.point.training, fit_of(self.method))))


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One study of a run: its folder, the cells that it is to have, and where models of some are kept."""

    cells: Cells
    scope: Scope
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
        return cls(Cells.open(out, recipe), scope, every, models)

    def lacks(self, asked: Asked) -> bool:
        """Whether a cell is missing, or its model is."""
        model = self.models.get(asked.cell)
        return (model is not None and not model.exists()) or not self.cells.done(*asked.cell)

    def todo(self) -> list[Asked]:
        """All that it lacks."""
        return [asked for asked in self.every if self.lacks(asked)]


class Lacking(NamedTuple):
    """Why some cells of a plan have no numbers: what they raised, or that no time was left for them."""

    failed: dict[str, str]
    late: dict[str, str]


class Filling:
    """A run over the cells that studies lack.

    Args:
        plans: The studies.
        task: The rows they speak of.
        machine: Where.
        out: Folder of the run, which other runs of the same may share.
        say: Hears what is being done and how long it may take.
    """

    def __init__(self, plans: Sequence[Plan], task: Task, machine: Machine, out: Path, say: Say) -> None:
        self.plans, self.task, self.machine, self.out, self.say = plans, task, machine, out, say
        self._lacking = [Lacking({}, {}) for _ in plans]
        lacking = [(at, asked) for at, plan in enumerate(plans) for asked in plan.todo()]
        self._parts: dict[str, list[tuple[int, Asked]]] = {}
        for at, asked in sorted(lacking, key=lambda each: each[1].seed):  # stable: else as the studies come
            self._parts.setdefault(asked.part, []).append((at, asked))
        self._pace, self._shared = Pace([plan.cells for plan in plans]), Shared()
        self._taken: list[str] = []  # by other runs
        self._all, self._done = len(lacking), 0

    def run(self) -> list[Lacking]:
        """Fill what is missing, seed by seed; returns of each plan why some cells have no numbers."""
        for part in self._parts:
            if not self._take(part):
                self._taken.append(part)
        for part in self._taken:
            if self.machine.late() is not None:
                self._leave(self._parts[part])
                continue
            self.say(f"waiting for another run, which has {len(self._parts[part])} cells of {part} under way")
            self._take(part, wait=True)
        return self.lacks()

    def lacks(self) -> list[Lacking]:
        """Of each plan why some cells have no numbers, as things are now."""
        for at, plan in enumerate(self.plans):
            late = self._lacking[at].late
            for asked in plan.every:
                if asked.told in late and self._tried(at, asked):  # by another run, which had begun it in time
                    del late[asked.told]
        return [
            Lacking(*(_still(plan, some) for some in each))
            for plan, each in zip(self.plans, self._lacking, strict=True)
        ]

    def share(self) -> int:
        """Among how many processes the work can be shared; that many are its machine's from now on."""
        most = 1 if self.machine.late() is not None else max(1, len(self._parts))
        self.machine = replace(self.machine, jobs=min(self.machine.jobs, most))
        return self.machine.jobs

    def _take(self, part: str, *, wait: bool = False) -> bool:
        """Fill a part unless another run has it, in which case it may be waited for."""
        with claimed(self.out / CLAIMS / part, wait=wait) as mine:
            if mine:
                todo = self._parts[part]
                while todo:
                    self._fill(*todo[0])
                    todo.pop(0)
        return mine

    def _fill(self, at: int, asked: Asked) -> None:
        (name, seed), plan = asked.cell, self.plans[at]
        self._done += 1
        if not plan.lacks(asked) or self._tried(at, asked):  # by another run, since this one began
            return
        if self.machine.late() is not None:
            self._leave([(at, asked)])
            return
        study = f"{plan.cells.recipe.study}: " if len(self.plans) > 1 else ""
        ahead = [some for part, some in self._parts.items() if part not in self._taken]
        left = self._pace.left([each.cell[0] for some in ahead for _, each in some], self.machine.jobs)
        self.say(f"{study}{name}, seed {seed}: cell {self._done} of {self._all}{left}")
        watch, shared = Stopwatch(), self._shared.of(seed, asked.point)
        at_work, device = self.out / CLAIMS, self.machine.device
        job = job_at(plan.cells.recipe, self.task, asked.point, seed, device, shared, at_work)
        reason = run_cell(plan.cells, job, asked.method, self.machine, plan.models.get(asked.cell))
        self._pace.took(name, watch.seconds)
        if reason is not None:
            self._lacking[at].failed[asked.told] = reason

    def _leave(self, some: Sequence[tuple[int, Asked]]) -> None:
        """Note that no time was left; nothing is written, for another run may have some."""
        for at, asked in some:
            if self.plans[at].lacks(asked):
                self._lacking[at].late[asked.told] = str(self.machine.late())

    def _tried(self, at: int, asked: Asked) -> bool:
        """Whether a cell was tried in vain since this run began: what was so before is tried again."""
        cells, (name, seed) = self.plans[at].cells, asked.cell
        reason = cells.failure(name, seed, self.machine.began)
        if reason is not None:
            self._lacking[at].failed[asked.told] = reason
        return reason is not None or cells.not_run(name, seed, self.machine.began)


def _still(plan: Plan, failed: Mapping[str, str]) -> dict[str, str]:
    """What has no numbers for a reason found here, and was not filled by another run since."""
    there = {each.told for each in plan.every if plan.cells.done(*each.cell)}
    return {name: why for name, why in failed.items() if name not in there}


def job_at(
    recipe: Recipe,
    task: Task,
    point: Point,
    seed: int,
    device: str,
    shared: dict[str, Any],
    left: Path | None = None,
) -> Job:
    """What is to be done at a point: rows and labels are changed here, unless the bank alone is meant."""
    followed = at_point(recipe, point)
    rows = parts(task, followed, seed, 1.0 if point.bank_only else point.tail)
    return Job(followed, task, rows, seed, device, shared, point, left)


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
    except (MissingExtra, NotApplicable) as problem:
        cells.write(name, job.seed, {"not_run": str(problem), **machine.told()})
        return None
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}"
        cells.write_failure(name, job.seed, reason)
        return reason
    cells.write(name, job.seed, {**content, **machine.told()}, arrays)
    return None


def _trains_alone(method: str) -> bool:
    """Whether no other method or study asks for what it fitted, so that it need not be held."""
    ours = METHODS[method]
    return isinstance(ours, Ours) and ours.trained_alone


class Pace:
    """How long cells may take, judged by those that are done."""

    def __init__(self, folders: Sequence[Cells]) -> None:
        self._seen: dict[str, list[float]] = {}
        for cells in folders:
            for (name, _), cell in cells.all().items():
                if "seconds" in cell:
                    self.took(name, sum(cell["seconds"].values()))

    def took(self, name: str, seconds: float) -> None:
        """Remember a cell."""
        self._seen.setdefault(name, []).append(seconds)

    def left(self, names: Sequence[str], jobs: int = 1) -> str:
        """Time that these cells may take as many processes; nothing while nothing is known."""
        if not self._seen:
            return ""
        mean = {name: float(np.mean(each)) for name, each in self._seen.items()}
        other = float(np.mean(list(mean.values())))
        seconds = sum(mean.get(name, other) for name in names) / jobs
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"

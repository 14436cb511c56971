"""A study that several processes fill."""

from __future__ import annotations

import os
import pickle
import sys
import time

import pytest
from mixed import mixed

from attnknn.errors import InvalidInput
from attnknn.study import workers
from attnknn.study.cells import Cells
from attnknn.study.engine import run_study
from attnknn.study.filling import Machine, Plan
from attnknn.study.methods import METHODS
from attnknn.study.points import PLAIN_POINT, Scope
from attnknn.study.splits import recipe_for, task_of

METHODS_HERE = ["sklearn-knn", "logistic"]
needs_locks = pytest.mark.skipif(not workers.CAN_SHARE, reason="no locks on files here")


@pytest.fixture(scope="module")
def asked():
    """A recipe and its rows."""
    frame, labels = mixed()
    recipe = recipe_for(frame, labels, data="mixed", target="y", named=False, study="main", quick=True)
    return recipe, task_of(frame, labels, recipe)


def study(asked, out, jobs, said=None):
    say = (lambda _: None) if said is None else said.append
    how = {"methods": METHODS_HERE, "seeds": [0], "out": out, "device": "cpu", "commit": "c"}
    return run_study(*asked, jobs=jobs, say=say, **how)


def soon(holds, seconds=60.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@needs_locks
def test_another_process_fills_cells_beside_this_one_with_the_same_numbers(asked, tmp_path, monkeypatch):
    alone = study(asked, tmp_path / "alone", 1).report
    cells, by_itself = Cells(tmp_path / "run", asked[0]), METHODS["sklearn-knn"]

    def waits(job):
        soon(lambda: cells.done("logistic", 0))  # which this process cannot fill meanwhile
        return by_itself(job)

    monkeypatch.setitem(METHODS, "sklearn-knn", waits)
    monkeypatch.setitem(METHODS, "logistic", lambda job: pytest.fail("it began long before the other"))
    found = study(asked, tmp_path / "run", 2).report
    assert found["methods"] == alone["methods"]
    assert [each["environment"].get("processes") for each in found["environments"]] == [2]
    assert "processes" not in alone["environments"][0]["environment"]
    assert "times are upper bounds: up to 2 processes filled cells side by side" in found["notes"]
    assert not any("upper bounds" in each for each in alone["notes"])


@needs_locks
def test_a_process_that_dies_leaves_its_cells_to_this_one(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    told = []
    found = study(asked, tmp_path / "run", 3, told)
    assert set(found.report["methods"]) == set(METHODS_HERE)
    assert told.count("another process of this run ended with code 3") == 2


@needs_locks
def test_a_process_ends_with_the_run_that_started_it(asked, tmp_path):
    recipe, task = asked
    plan = Plan.of(recipe, Scope(METHODS_HERE, (PLAIN_POINT,)), range(40), tmp_path / "run")
    told = pickle.dumps(([plan], task, Machine.here("cpu", "c", None, 2), tmp_path / "run"))
    process = workers._started(told, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    soon(lambda: len(plan.todo()) < 80)
    process.stdin.close()  # as the system does it for a run that is killed
    assert process.wait(30) == 0
    assert plan.todo()


def test_one_process_starts_no_other(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_started", lambda *given: pytest.fail("it was started"))
    assert study(asked, tmp_path / "run", 1).failed == {}


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2", True, None])
def test_a_number_of_processes_that_cannot_be_is_refused_before_anything_is_run(asked, tmp_path, jobs):
    with pytest.raises(InvalidInput, match="jobs must be a whole number of at least 1, got"):
        study(asked, tmp_path / "run", jobs)
    assert not (tmp_path / "run").exists()


def test_where_files_have_no_locks_there_is_one_process(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CAN_SHARE", False)
    with pytest.raises(InvalidInput, match="jobs must be 1, got 2"):
        study(asked, tmp_path / "run", 2)
    assert study(asked, tmp_path / "run", 1).failed == {}

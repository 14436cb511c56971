"""A study that several processes fill."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time

import pytest
import torch
from mixed import mixed
from threadpoolctl import threadpool_info

from attnknn.errors import InvalidInput
from attnknn.study import workers
from attnknn.study.cells import Cells
from attnknn.study.claims import CLAIMS, claimed
from attnknn.study.engine import run_study
from attnknn.study.filling import Filling, Machine, Plan
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


def study(asked, out, jobs, seeds=(0,)):
    how = {"methods": METHODS_HERE, "seeds": seeds, "out": out, "device": "cpu", "commit": "c"}
    return run_study(*asked, jobs=jobs, **how)


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
    assert any(each.startswith("up to 2 processes filled cells side by side") for each in found["notes"])
    assert not any("processes" in each for each in alone["notes"])


@needs_locks
def test_a_process_that_dies_leaves_its_cells_to_this_one(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.warns(UserWarning, match="another process") as told:
        found = study(asked, tmp_path / "run", 3, seeds=[0, 1])
    assert set(found.report["methods"]) == set(METHODS_HERE)
    words = [str(each.message) for each in told]
    assert words.count("another process of this run ended with code 3") == 2


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


@needs_locks
def test_a_cell_that_another_process_tried_in_vain_has_failed_even_when_time_is_up(asked, tmp_path):
    plan = Plan.of(asked[0], Scope(METHODS_HERE, (PLAIN_POINT,)), [0], tmp_path)
    work = Filling([plan], asked[1], Machine.here("cpu", "c", 0.0), tmp_path, lambda _: None)
    with claimed(tmp_path / CLAIMS / plan.every[1].part):  # by another process, which began in time
        (lacking,) = work.run()
        assert lacking.failed == {}
        assert set(lacking.late) == {"sklearn-knn-0", "logistic-0"}
        plan.cells.write_failure("logistic", 0, "RuntimeError: too warm")
    (lacking,) = work.lacks()
    assert lacking.failed == {"logistic-0": "RuntimeError: too warm"}
    assert set(lacking.late) == {"sklearn-knn-0"}


@needs_locks
def test_each_process_has_its_share_of_the_threads(asked, tmp_path, monkeypatch):
    written, seen, by_itself = tmp_path / "threads", [], METHODS["sklearn-knn"]
    code = f"import os; open({str(written)!r}, 'a').write(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.setattr(workers, "_COMMAND", (sys.executable, "-c", code))

    def counted(job):
        seen.append(torch.get_num_threads())
        seen.extend(each["num_threads"] for each in threadpool_info())
        return by_itself(job)

    monkeypatch.setitem(METHODS, "sklearn-knn", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        study(asked, tmp_path / "run", 2)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert seen[0] == 2
    assert max(seen) == 2
    assert written.read_text() == "2"


def test_no_more_processes_than_there_is_work_for(asked, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(workers, "_started", lambda *given: started.append(given) or pytest.fail("it was started"))
    study(asked, tmp_path / "run", 1)
    assert study(asked, tmp_path / "run", 8).failed == {}  # all is there
    recipe, task = asked
    how = {"methods": METHODS_HERE, "seeds": [0], "device": "cpu", "commit": "c"}
    assert run_study(recipe, task, out=tmp_path / "late", minutes=0, jobs=8, **how).failed == {}
    assert started == []


@needs_locks
def test_where_one_process_cannot_start_none_goes_on(asked, tmp_path, monkeypatch):
    started, start = [], workers._started

    def second_fails(*given):
        if started:
            raise OSError("no more processes")
        started.append(start(*given))
        return started[0]

    monkeypatch.setattr(workers, "_started", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        study(asked, tmp_path / "run", 3, seeds=[0, 1])
    assert started[0].poll() is not None


@needs_locks
def test_a_process_that_is_told_half_of_its_work_ends_in_silence():
    process = subprocess.run(workers._COMMAND, input=pickle.dumps(list(range(1000)))[:100], capture_output=True)
    assert (process.returncode, process.stderr) == (0, b"")


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

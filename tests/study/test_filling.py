"""Cells that are missing, and runs that share them."""

from __future__ import annotations

import json
import shutil
import threading
import time
from types import FunctionType

import pytest
from mixed import mixed

from attnknn.cli.study_shown import tell
from attnknn.study import engine
from attnknn.study.cells import Cells
from attnknn.study.claims import CLAIMS, claimed
from attnknn.study.engine import run_study
from attnknn.study.filling import Asked
from attnknn.study.methods import METHODS, fit_of
from attnknn.study.points import PLAIN_POINT, noise_points
from attnknn.study.recipe import STUDIES
from attnknn.study.splits import recipe_for, task_of

METHODS_HERE = ["sklearn-knn", "logistic"]


@pytest.fixture(scope="module")
def asked():
    """A recipe and its rows."""
    frame, labels = mixed()
    recipe = recipe_for(frame, labels, data="mixed", target="y", named=False, study="main", quick=True)
    return recipe, task_of(frame, labels, recipe)


def study(asked, out, said=None, methods=METHODS_HERE):
    say = (lambda _: None) if said is None else said.append
    return run_study(*asked, methods=methods, seeds=[0], out=out, device="cpu", commit="c", say=say)


def soon(holds, seconds=60.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def beside(asked, out, told, meanwhile):
    """A study that runs while another run has the part of logistic, during which something is done."""
    found = []
    Cells.open(out, asked[0])  # as that run did
    runs = threading.Thread(target=lambda: found.append(study(asked, out, told)))
    with claimed(out / CLAIMS / Asked("logistic", PLAIN_POINT, 0).part):
        runs.start()
        soon(lambda: not runs.is_alive() or any("waiting for another run" in each for each in told))
        meanwhile()
    runs.join()
    return found[0]


def test_what_another_run_has_is_left_to_it_and_done_only_if_it_was_not(asked, tmp_path):
    out, told = tmp_path / "run", []

    def meanwhile():
        cells = Cells.open(out, asked[0])
        assert cells.done("sklearn-knn", 0)
        assert not cells.done("logistic", 0)

    found = beside(asked, out, told, meanwhile)
    assert found.failed == {}
    assert set(found.report["methods"]) == set(METHODS_HERE)
    assert "waiting for another run, which has 1 cells of seed-0-logistic under way" in told
    assert any("logistic, seed 0: cell 2 of 2" in each for each in told)


def test_once_its_time_is_over_a_run_begins_nothing_and_tells_what_is_not_run(asked, tmp_path, capsys):
    how = {"seeds": [0], "out": tmp_path / "run", "device": "cpu", "commit": "c"}
    run_study(*asked, methods=["sklearn-knn"], **how)
    found = run_study(*asked, methods=METHODS_HERE, minutes=0, **how)
    assert (found.failed, found.report["missing"]) == ({}, [])
    assert set(found.report["methods"]) == {"sklearn-knn"}
    assert found.report["not_run"] == {"logistic-0": "not there yet when the report was written"}
    assert "not run: logistic-0: not there yet when" in (tmp_path / "run" / "index.html").read_text()
    tell(STUDIES["main"], found, tmp_path / "run", None, as_json=False)
    assert "not run: logistic-0: not there yet when" in " ".join(capsys.readouterr().out.split())
    later = run_study(*asked, methods=METHODS_HERE, minutes=60, **how)
    assert later.report["not_run"] == {}
    assert set(later.report["methods"]) == set(METHODS_HERE)


def test_a_run_that_only_reports_leaves_the_work_to_one_that_began_before_it(asked, tmp_path):
    out, told = tmp_path / "run", []

    def meanwhile():
        how = {"seeds": [0], "out": out, "device": "cpu", "commit": "c"}
        found = run_study(*asked, methods=METHODS_HERE, minutes=0, **how)  # does not wait for who has logistic
        assert found.report["not_run"] == {"logistic-0": "not there yet when the report was written"}

    assert set(beside(asked, out, told, meanwhile).report["methods"]) == set(METHODS_HERE)


def test_what_another_run_has_done_is_not_done_again(asked, tmp_path, monkeypatch):
    study(asked, tmp_path / "other")
    out, told = tmp_path / "run", []
    monkeypatch.setitem(METHODS, "logistic", lambda job: pytest.fail("it is there"))

    def meanwhile():
        for file in (tmp_path / "other" / "cells").glob("logistic-0.*"):
            shutil.copy(file, out / "cells" / file.name)

    found = beside(asked, out, told, meanwhile)
    assert found.failed == {}
    assert set(found.report["methods"]) == set(METHODS_HERE)


def test_what_failed_here_and_was_filled_by_another_run_has_not_failed(asked, tmp_path, monkeypatch):
    study(asked, tmp_path / "other")
    out = tmp_path / "run"

    def fails(job):
        for file in (tmp_path / "other" / "cells").glob("logistic-0.*"):  # the other run, at the same time
            shutil.copy(file, out / "cells" / file.name)
        raise RuntimeError("out of memory")

    monkeypatch.setitem(METHODS, "logistic", fails)
    found = study(asked, out)
    assert found.failed == {}
    assert found.report["failed"] == {}
    assert set(found.report["methods"]) == set(METHODS_HERE)


def test_what_another_run_tried_in_vain_is_tried_again_by_a_later_run_only(asked, tmp_path, monkeypatch):
    out, why, logistic = tmp_path / "run", "RuntimeError: out of memory", METHODS["logistic"]
    monkeypatch.setitem(METHODS, "logistic", lambda job: pytest.fail("it was tried"))
    found = beside(asked, out, [], lambda: Cells(out, asked[0]).write_failure("logistic", 0, why))
    assert found.failed == {"logistic-0": why} == found.report["failed"]
    monkeypatch.setitem(METHODS, "logistic", logistic)
    assert study(asked, out).failed == {}


def test_so_is_what_another_run_could_not_run(asked, tmp_path, monkeypatch):
    out, logistic = tmp_path / "run", METHODS["logistic"]
    monkeypatch.setitem(METHODS, "logistic", lambda job: pytest.fail("it was tried"))
    found = beside(asked, out, [], lambda: Cells(out, asked[0]).write("logistic", 0, {"not_run": "get it so"}))
    assert (found.failed, found.report["not_run"]) == ({}, {"logistic-0": "get it so"})
    monkeypatch.setitem(METHODS, "logistic", logistic)
    assert set(study(asked, out).report["methods"]) == set(METHODS_HERE)


def test_what_fails_is_told_to_other_runs(asked, tmp_path, monkeypatch):
    began = time.time() - 1
    monkeypatch.setitem(METHODS, "logistic", lambda job: 1 / 0)
    why = study(asked, tmp_path).failed["logistic-0"]
    assert Cells(tmp_path, asked[0]).failure("logistic", 0, began) == why == "ZeroDivisionError: division by zero"
    assert Cells(tmp_path, asked[0]).failure("logistic", 0, time.time() + 1) is None


@pytest.fixture
def written(monkeypatch):
    """Methods of the reports that are written."""
    found, write = [], engine.write_report
    monkeypatch.setattr(
        engine, "write_report", lambda report, *how: found.append([*report["methods"]]) or write(report, *how)
    )
    return found


def test_of_runs_that_fill_a_folder_together_one_writes_the_report(asked, tmp_path, written, capsys):
    study(asked, tmp_path / "other")
    out, first = tmp_path / "run", []

    def meanwhile():
        for file in (tmp_path / "other" / "cells").glob("logistic-0.*"):
            shutil.copy(file, out / "cells" / file.name)
        first.append(study(asked, out))

    written.clear()
    found = beside(asked, out, [], meanwhile)
    assert (first[0].written, found.written, written) == (True, False, [METHODS_HERE])
    tell(STUDIES["main"], found, out, tmp_path / "saved.json", as_json=False)
    assert (tmp_path / "saved.json").read_bytes() == (out / "report.json").read_bytes()
    assert capsys.readouterr().out == f"another run wrote the report: all numbers are in {out / 'report.json'}\n"
    assert study(asked, out).written  # alone, it writes again


def test_a_report_that_lacks_what_was_filled_since_is_written_again(asked, tmp_path, written):
    out = tmp_path / "run"
    found = beside(asked, out, [], lambda: study(asked, out, methods=METHODS_HERE[:1]))
    assert written == [METHODS_HERE[:1], METHODS_HERE]
    assert found.written
    assert set(json.loads((out / "report.json").read_text())["methods"]) == set(METHODS_HERE)


def test_who_waits_for_the_report_of_a_run_that_dies_writes_it(asked, tmp_path, written):
    out, told, found = tmp_path / "run", [], []
    study(asked, out)
    runs = threading.Thread(target=lambda: found.append(study(asked, out, told)))
    with claimed(out / CLAIMS / "report"):
        runs.start()
        soon(lambda: not runs.is_alive() or "waiting for another run, which writes the report" in told)
        assert len(written) == 1
    runs.join()
    assert found[0].written
    assert len(written) == 2


def test_methods_that_share_a_fit_are_of_one_part():
    parts = {name: Asked(name, PLAIN_POINT, 3).part for name in METHODS}
    assert parts["attention"] == parts["uniform+tta"] == parts["attention-isotonic"] == "seed-3-ours"
    assert parts["hgb"] == parts["hgb-uncalibrated"] == parts["hgb+prior-correction"] == "seed-3-hgb"
    assert parts["cnn"] == parts["cnn+tta"] == parts["cnn-uncalibrated"]
    alone = [name for name in METHODS if fit_of(name) == name]
    assert {name for name, each in METHODS.items() if isinstance(each, FunctionType)} <= set(alone)
    assert {"attention+ensemble", "attention-resnet50", "distance+raw"} <= set(alone)
    wrong = noise_points((0.3,))[1]
    assert Asked("attention", wrong, 3).part != parts["attention"]

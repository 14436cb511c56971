"""Cells that are missing, and runs that share them."""

from __future__ import annotations

import shutil
import threading
import time
from types import FunctionType

import pytest
from mixed import mixed

from attnknn.study.cells import Cells
from attnknn.study.claims import claimed
from attnknn.study.engine import run_study
from attnknn.study.filling import CLAIMS, Asked
from attnknn.study.methods import METHODS, fit_of
from attnknn.study.points import PLAIN_POINT, noise_points
from attnknn.study.splits import recipe_for, task_of

METHODS_HERE = ["sklearn-knn", "logistic"]


@pytest.fixture(scope="module")
def asked():
    """A recipe and its rows."""
    frame, labels = mixed()
    recipe = recipe_for(frame, labels, data="mixed", target="y", named=False, study="main", quick=True)
    return recipe, task_of(frame, labels, recipe)


def study(asked, out, said=None):
    say = (lambda _: None) if said is None else said.append
    return run_study(*asked, methods=METHODS_HERE, seeds=[0], out=out, device="cpu", commit="c", say=say)


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

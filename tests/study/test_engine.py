"""A study resumes to the same bytes, loses no cell to another's failure, and asks the test rows once."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from attnknn import metrics
from attnknn.errors import InvalidInput, MissingDevice, MissingExtra
from attnknn.estimator import AttnKNNClassifier
from attnknn.study import engine, record
from attnknn.study.cells import Cells
from attnknn.study.job import Fitted, Predictions
from attnknn.study.methods import METHODS
from attnknn.study.ours import uncalibrated
from attnknn.study.recipe import OURS, STUDIES

QUICK = ["sklearn-knn", "distance+raw"]


def study(recipe, task, out, methods=QUICK, seeds=(0, 1), **how):
    return engine.run_study(recipe, task, methods=methods, seeds=seeds, out=out, device="cpu", commit="c", **how)


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name != "seconds"}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def content(folder):
    """Every file but for the times it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            found[path.relative_to(folder)] = json.dumps(without_times(json.loads(path.read_text())))
        elif path.is_file() and path.name != "reported":  # which tells times alone
            found[path.relative_to(folder)] = path.read_bytes()
    return found


def stamps(folder):
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (folder / "cells").iterdir()}


@pytest.mark.parametrize("official", [False, True])
def test_a_killed_and_resumed_study_equals_an_uninterrupted_one(recipe, task, tmp_path, untrained, official):
    if official:
        recipe = replace(recipe, train_rows=100, test_share=None)
    methods = ["sklearn-knn", "mlp", "distance", "attention"]
    study(recipe, task, tmp_path / "whole", methods)

    def dying(text):
        if "seed 1: cell 7" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(recipe, task, tmp_path / "killed", methods, say=dying)
    assert not (tmp_path / "killed/report.json").exists()
    assert len(list((tmp_path / "killed/cells").glob("*.json"))) == 6
    (tmp_path / "killed/cells/mlp-0.json").unlink()  # as if killed between the two files of a cell
    study(recipe, task, tmp_path / "killed", methods)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_a_complete_cell_is_never_written_again(recipe, task, tmp_path):
    study(recipe, task, tmp_path)
    before, report = stamps(tmp_path), content(tmp_path)
    study(recipe, task, tmp_path)
    assert stamps(tmp_path) == before
    assert content(tmp_path) == report


def test_more_seeds_and_methods_only_add_cells(recipe, task, tmp_path):
    study(recipe, task, tmp_path, ["sklearn-knn"], [0])
    before = stamps(tmp_path)
    found = study(recipe, task, tmp_path, ["distance+raw"], [0, 1, 2]).report
    assert {path: each for path, each in stamps(tmp_path).items() if path in before} == before
    assert found["seeds"] == [0, 1, 2]
    assert list(found["methods"]) == ["sklearn-knn", "distance+raw"]
    values = found["methods"]["sklearn-knn"]["accuracy"]["values"]
    assert values[0] is not None
    assert values[1:] == [None, None]
    assert found["differences"]["distance+raw"]["sklearn-knn"]["accuracy"]["seeds"] == [0]


def test_the_report_has_the_schema_of_results_files_and_its_numbers_are_those_of_the_predictions(
    recipe, task, tmp_path
):
    found = study(recipe, task, tmp_path, seeds=range(3)).report
    assert json.loads((tmp_path / "report.json").read_text()).keys() == found.keys()
    assert list(found)[:4] == ["command", "commit", "source_hash", "environment"]
    assert found["config"] == recipe.config()
    for method in QUICK:
        for seed in range(3):
            arrays = np.load(tmp_path / f"cells/{method}-{seed}.npz")
            p, y = arrays["probabilities"].astype(float), arrays["labels"]
            p /= p.sum(axis=1, keepdims=True)  # they are kept in float32
            assert y.tolist() == task.codes[arrays["rows"]].tolist()
            for name in ("accuracy", "f1_macro", "nll", "ece", "brier", "aurc"):
                value = found["methods"][method][name]["values"][seed]
                assert value == pytest.approx(getattr(metrics, name)(p, y), rel=1e-4, abs=1e-6)
                assert found["uncalibrated"][method][name]["values"][seed] is not None
        assert found["seconds"][method]["fit"]["mean"] == pytest.approx(
            np.mean(found["seconds"][method]["fit"]["values"])
        )
        assert "auc" not in found["methods"][method]
        assert 0 < found["methods"][method]["ece_floor"]["mean"] < 1


def test_a_failed_cell_loses_no_other_and_is_tried_again(recipe, task, tmp_path, monkeypatch):
    def broken(job):
        raise RuntimeError("out of luck")

    plain = METHODS["sklearn-knn"]
    monkeypatch.setitem(METHODS, "sklearn-knn", lambda job: broken(job) if job.seed == 0 else plain(job))
    found = study(recipe, task, tmp_path)
    assert found.failed == {"sklearn-knn-0": "RuntimeError: out of luck"} == found.report["failed"]
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    monkeypatch.setitem(METHODS, "sklearn-knn", plain)
    before = stamps(tmp_path)
    mended = study(recipe, task, tmp_path)
    assert (mended.failed, mended.report["failed"]) == ({}, {})
    assert {path: each for path, each in stamps(tmp_path).items() if path in before} == before


def test_what_lacks_an_extra_is_a_cell_that_was_not_run(recipe, task, tmp_path, monkeypatch):
    def absent(job):
        raise MissingExtra("get it so")

    monkeypatch.setitem(METHODS, "lightgbm", absent)
    found = study(recipe, task, tmp_path, ["lightgbm", "distance+raw"])
    assert found.failed == {}
    assert found.report["not_run"] == {"lightgbm-0": "get it so", "lightgbm-1": "get it so"}
    assert list(found.report["methods"]) == ["distance+raw"]
    assert not (tmp_path / "cells/lightgbm-0.npz").exists()


def test_the_test_rows_are_asked_for_once_after_all_settings_are_fixed(recipe, task, tmp_path, monkeypatch):
    asked = []

    def method(job):
        def predict(rows):
            asked.append((job.seed, rows.tolist() == job.parts.test.tolist()))
            even = np.full((len(rows), 3), 1 / 3)
            return Predictions(even, even, 0.0)

        return Fitted({}, 0.0, predict)

    monkeypatch.setitem(METHODS, "mlp", method)
    for _ in range(2):
        study(recipe, task, tmp_path, ["mlp"])
    assert asked == [(0, True), (1, True)]


def test_one_training_serves_all_weights_of_a_seed_and_each_can_run_alone(recipe, task, tmp_path, untrained):
    shared = ["uniform", "distance", "reliability", "attention"]
    study(recipe, task, tmp_path / "together", shared, [0, 1])
    assert untrained == [(0, "attention"), (1, "attention")]
    for method in shared:
        study(recipe, task, tmp_path / "alone", [method], [1])
        alone, together = (tmp_path / f"{name}/cells/{method}-1.npz" for name in ("alone", "together"))
        assert alone.read_bytes() == together.read_bytes(), method


def test_a_shared_training_that_fails_fails_once_for_all_that_share_it(recipe, task, tmp_path, monkeypatch):
    tried = []

    def broken(job, how):
        tried.append(job.seed)
        raise RuntimeError("out of luck")

    monkeypatch.setattr("attnknn.study.ours.trained", broken)
    found = study(recipe, task, tmp_path, ["uniform", "distance", "attention"], [0, 1])
    assert tried == [0, 1]
    assert len(found.failed) == 6
    assert set(found.failed.values()) == {"RuntimeError: out of luck"}


def test_our_votes_are_uncalibrated_with_a_prior_mass_of_one_over_k(recipe, task, tmp_path):
    study(recipe, task, tmp_path, ["distance+raw"], [0])
    cell = json.loads((tmp_path / "cells/distance+raw-0.json").read_text())
    assert cell["uncalibrated"]["nll"] != cell["metrics"]["nll"]
    X, y = np.repeat([[0.0], [9.0], [99.0]], 20, axis=0), np.repeat([0, 1, 2], 20)
    model = AttnKNNClassifier(8, weights="softmax", embedder="identity").fit(X, y)
    least = uncalibrated(model).predict_proba([[0.0]]).min() * (1 + 1 / 8) * 8
    assert least == pytest.approx(1 / 3)  # a class without votes has its prior
    assert cell["settings"]["calibrator"]["kind"] == "temperature"


def test_cells_of_another_machine_may_be_copied_in_and_are_told_apart(recipe, task, tmp_path, monkeypatch):
    with monkeypatch.context() as there:
        there.setattr(record, "environment", lambda device=None: {"machine": "elsewhere", "device": device})
        study(recipe, task, tmp_path / "there", ["distance+raw"], [0, 1])
    study(recipe, task, tmp_path / "here", ["sklearn-knn"], [0, 1])
    for file in (tmp_path / "there/cells").iterdir():
        shutil.copy(file, tmp_path / "here/cells")
    found = study(recipe, task, tmp_path / "here").report
    machines = {tuple(each["cells"]): each["environment"]["machine"] for each in found["environments"]}
    assert machines[("distance+raw-0", "distance+raw-1")] == "elsewhere"
    assert machines[("sklearn-knn-0", "sklearn-knn-1")] != "elsewhere"


def test_one_model_under_two_names_is_told_and_never_called_no_difference(recipe, task, tmp_path, untrained):
    found = study(recipe, task, tmp_path, ["distance+raw", "distance", "uniform", "attention"]).report
    assert {"attention-0", "distance+raw-0", "distance-0"} in map(set, found["identical"])
    said = [each for each in found["verdicts"] if "attention" in each and "uniform" not in each]
    assert said
    assert all(each.endswith("they gave identical predictions") for each in said)
    assert not any("identical" in each for each in found["verdicts"] if "uniform" in each)


@pytest.mark.parametrize("official", [False, True])
def test_rows_are_drawn_with_and_without_an_official_test(recipe, task, tmp_path, official):
    if official:
        recipe = replace(recipe, train_rows=100, test_share=None)
    found = study(recipe, task, tmp_path).report
    gap = found["differences"]["distance+raw"]["sklearn-knn"]["nll"]
    for kind in ("over_seeds", "over_rows"):
        assert gap["low"] <= gap[kind]["low"] <= gap[kind]["high"] <= gap["high"]
    assert gap["over_rows"]["draws"] == recipe.draws
    assert all("their test rows" in each for each in found["verdicts"] if "cannot be" not in each)


def test_seeds_that_differ_by_the_same_row_find_no_difference(recipe, task, tmp_path, monkeypatch):
    def right_but_for(wrong):
        def method(job):
            def predict(rows):
                said = np.full((len(rows), 3), 0.05)
                said[np.arange(len(rows)), job.task.codes[rows]] = 0.9
                said[:wrong] = np.roll(said[:wrong], 1, axis=1)
                return Predictions(said, said, 0.0)

            return Fitted({}, 0.0, predict)

        return method

    monkeypatch.setitem(METHODS, "hgb", right_but_for(3))
    monkeypatch.setitem(METHODS, "distance+raw", right_but_for(2))
    found = study(recipe, task, tmp_path, ["hgb", "distance+raw"]).report
    gap = found["differences"]["distance+raw"]["hgb"]["accuracy"]
    assert gap["values"] == pytest.approx([1 / 30, 1 / 30])
    assert gap["over_seeds"]["high"] - gap["over_seeds"]["low"] < 1e-9
    assert found["verdicts"][0].startswith(
        "no difference found between distance+raw and hgb in accuracy: +.0333 [-"
    )


def test_a_folder_of_an_older_version_goes_on_without_what_its_cells_lack(recipe, task, tmp_path):
    study(recipe, task, tmp_path)
    cells = Cells.open(tmp_path, recipe)
    old, arrays = cells.read("sklearn-knn", 0), cells.predictions("sklearn-knn", 0)
    for kind in ("metrics", "uncalibrated"):
        old[kind] = {name: value for name, value in old[kind].items() if "smooth" not in name}
    kept = {name: each for name, each in arrays.items() if not name.startswith("drawn_")}
    cells.write("sklearn-knn", 0, {name: each for name, each in old.items() if name != "predictions"}, kept)
    found = study(recipe, task, tmp_path).report
    gap = found["differences"]["distance+raw"]["sklearn-knn"]["nll"]
    assert "over_rows" not in gap
    assert all(each.endswith("over 2 seeds") for each in found["verdicts"] if "cannot be" not in each)
    first, second = found["methods"]["sklearn-knn"]["ece_smooth"]["values"]
    assert first is None
    assert second is not None


@pytest.mark.parametrize("again", [QUICK, ["distance+raw"]])
def test_a_cell_whose_predictions_are_lost_is_made_again_or_missing(recipe, task, tmp_path, again):
    whole = study(recipe, task, tmp_path).report
    (tmp_path / "cells/sklearn-knn-0.npz").unlink()
    found = study(recipe, task, tmp_path, again).report
    lost = "sklearn-knn" not in again
    assert found["missing"] == (["sklearn-knn-0"] if lost else [])
    assert (found["methods"]["sklearn-knn"]["nll"]["values"][0] is None) == lost
    assert found["methods"]["distance+raw"] == whole["methods"]["distance+raw"]


def test_what_no_cell_could_mend_is_refused_before_anything_is_written(recipe, task, tmp_path):
    with pytest.raises(InvalidInput, match="no method is called 'magic'"):
        study(recipe, task, tmp_path / "x", ["magic"])
    with pytest.raises(MissingDevice):
        engine.run_study(recipe, task, methods=QUICK, seeds=[0], out=tmp_path / "x", device="toaster")
    assert not (tmp_path / "x").exists()


def test_time_left_is_judged_by_what_was_done(recipe, task, tmp_path):
    said = []
    study(recipe, task, tmp_path, say=said.append)
    assert [each.split(",")[0] for each in said[:-1]] == QUICK * 2
    assert "left" not in said[0]
    assert all(each.endswith("s left") for each in said[1:-1])


def test_every_method_of_a_study_exists():
    assert set(OURS) <= set(METHODS)
    for each in STUDIES.values():
        assert set(each.methods) | set(each.leads) <= set(METHODS)

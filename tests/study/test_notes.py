"""What a reader of the numbers should know is told: tiny classes, k beyond the bank, choices on other rows."""

from __future__ import annotations

import html
from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed, small

from attnknn.errors import InvalidInput
from attnknn.study import engine
from attnknn.study.notes import notes_of
from attnknn.study.points import Scope, k_points, tail_points
from attnknn.study.recipe import Noise, Validation
from attnknn.study.splits import recipe_for, task_of

RAW = "distance+raw"


def rare(count=1):
    """The small task with ``count`` rows of a fourth class."""
    frame, labels = mixed()
    labels = labels.astype("U8")
    labels[:count] = "rare"
    recipe = small(recipe_for(frame, labels, data="rare.csv", target="y", named=False))
    return recipe, task_of(frame, labels, recipe)


def run(recipe, task, out, methods=(RAW,), **how):
    return engine.run_study(recipe, task, methods=methods, seeds=[0, 1], out=out, device="cpu", commit="c", **how)


def test_a_class_of_one_row_is_learned_from_and_the_page_says_so(tmp_path):
    recipe, task = rare()
    found = run(recipe, task, tmp_path, ["sklearn-knn", "mlp", "hgb", RAW])
    assert found.failed == {}
    assert found.report["recalls"][RAW][0][-1] is None
    untested, alone = found.report["notes"]
    assert untested == "'rare' (1 row): never tested, as too few rows are theirs: their recall is unknown"
    assert alone.startswith("'rare' (1 row): learned from one row, which stays there: none of theirs")
    page = (tmp_path / "index.html").read_text()
    assert "<h2>Notes</h2>" in page
    assert "never tested, as too few rows are theirs" in page


def test_columns_that_are_the_same_in_every_row_are_named(tmp_path):
    frame, labels = mixed()
    frame = frame.assign(one=1.5, word="x", nothing=np.nan, seldom=2.0)
    frame.loc[3, "seldom"] = np.nan  # which tells that row apart
    recipe = small(recipe_for(frame, labels, data="d", target="y", named=False))
    found = run(recipe, task_of(frame, labels, recipe), tmp_path).report["notes"]
    named = "'one' (always 1.5), 'word' (always 'x'), 'nothing' (no value): the same in every row"
    assert found[0].startswith(named)
    assert "'one' (always 1.5)" in html.unescape((tmp_path / "index.html").read_text())


def test_with_constant_columns_only_the_error_names_them():
    frame, labels = mixed()
    alike = frame[[]].assign(one=1, word="x")
    recipe = recipe_for(alike, labels, data="alike.csv", target="y", named=False)
    with pytest.raises(InvalidInput, match=r"no column of alike.csv tells rows apart: 'one' \(always 1\), 'word'"):
        task_of(alike, labels, recipe)


def test_where_every_class_can_be_tested_and_held_out_nothing_is_noted(recipe, task, tmp_path):
    assert run(recipe, task, tmp_path).report["notes"] == []
    assert "Notes" not in (tmp_path / "index.html").read_text()


def test_the_cnn_is_told_to_revise_no_labels():
    images, labels = np.zeros((60, 8, 8, 1), np.uint8), np.arange(60) % 2
    images[:, 0, 0, 0] = np.arange(60)
    recipe = recipe_for(images, labels, data="d", target="y", named=False, noise=Noise(0.2))
    told = {"settings": {}, "methods": {}, "config": recipe.config(), "points": {}}
    for methods, alone in ((["cnn", "attention"], True), (["attention"], False)):
        note = notes_of(told, recipe, task_of(images, labels, recipe), Scope(methods), [0])[-1]
        assert "epochs 120, mix cutmix" in note
        assert ("the CNN has the same but relabel" in note) == alone


def test_a_class_that_an_official_split_only_tests_is_told(recipe, task, tmp_path):
    order = np.argsort(task.codes, kind="stable")
    sorted_task = task_of(task.X.iloc[order], task.classes[task.codes[order]], recipe)
    official = replace(recipe, train_rows=100, test_share=None)
    told = {"settings": {}, "methods": {}, "config": official.config(), "points": {}}
    notes = notes_of(told, official, sorted_task, Scope([RAW]), [0])
    assert notes[-1] == "'c' (50 rows): tested but never learned from: every answer to them is wrong"
    assert notes[0].startswith("'a' (50 rows), 'b' (50 rows): never tested")


def test_a_tail_that_leaves_one_row_of_a_class_is_told(recipe, task, tmp_path):
    points = tail_points([0.02])
    notes = run(replace(recipe, study="imbalance"), task, tmp_path, points=points).report["notes"]
    assert notes == ["'c' (50 rows): learned from one row at tail-0.02: none of theirs calibrates"]


def test_k_beyond_the_bank_is_told_with_the_k_that_was_used(recipe, task, tmp_path):
    many = replace(recipe, ours=replace(recipe.ours, n_neighbors=500))
    assert run(many, task, tmp_path).report["notes"] == [
        "k 500 is more than the bank of distance+raw holds: all of its rows vote (k 120)"
    ]


def test_k_of_a_sweep_beyond_the_bank_is_told(recipe, task, tmp_path, untrained):
    sweep, points = replace(recipe, study="k-sweep"), k_points([5, 500])
    assert run(sweep, task, tmp_path, ["uniform", "distance"], points=points).report["notes"] == [
        "k 500 is more than the bank of uniform@k-500, distance@k-500 holds: all of its rows vote (k 120)"
    ]


@pytest.mark.parametrize(
    ("methods", "below", "noted"),
    [(["hgb", RAW], 0, True), (["hgb", RAW], 2000, False), (["hgb"], 0, False), ([RAW], 0, False)],
)
def test_baselines_that_chose_on_other_rows_than_ours_are_named(recipe, task, tmp_path, methods, below, noted):
    recipe = replace(recipe, validation=Validation(folds_below=below))
    notes = run(recipe, task, tmp_path, methods).report["notes"]
    said = "hgb: to be quick, settings and temperature were chosen on 10% of the training rows; our methods chose"
    assert [note.startswith(said) for note in notes] == [True] * noted


@pytest.mark.parametrize(
    ("methods", "below", "noted"),
    [(["logistic", "cnn"], 2000, True), (["logistic", "cnn"], 0, False), (["cnn", "attention"], 2000, False)],
)
def test_few_images_on_which_baselines_chose_by_folds_and_networks_did_not_are_told(methods, below, noted):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    recipe = recipe_for(images, labels, data="d", target="y", named=False)
    recipe = replace(recipe, validation=Validation(folds_below=below))
    told = {"settings": {}, "methods": dict.fromkeys(methods), "config": recipe.config(), "points": {}}
    notes = notes_of(told, recipe, task_of(images, labels, recipe), Scope(methods), [0])
    said = "logistic: settings and temperature were chosen on all training rows, by folds"
    assert [note.startswith(said) for note in notes] == [True] * noted
    told["methods"].pop("logistic", None)  # which has no numbers then
    assert notes_of(told, recipe, task_of(images, labels, recipe), Scope(methods), [0]) == []


def test_many_classes_are_counted_not_listed():
    frame, labels = mixed()
    labels = np.array([*(f"r{at}" for at in range(9)), *labels[9:]])
    recipe = small(recipe_for(frame, labels, data="rare.csv", target="y", named=False))
    task = task_of(frame, labels, recipe)
    report = {"settings": {}, "methods": {}, "config": recipe.config(), "points": {}}
    assert (
        "'r4' (1 row) and 4 more classes: never tested" in notes_of(report, recipe, task, Scope([RAW]), [0, 1])[0]
    )

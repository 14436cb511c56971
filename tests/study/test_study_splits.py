"""Which rows a study learns from, chooses on and tests on."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from mixed import mixed

from attnknn.data import load_named
from attnknn.errors import InvalidInput
from attnknn.study.recipe import Noise, Validation
from attnknn.study.splits import RULES, Rule, parts, recipe_for, task_of


def sides(found):
    return [set(rows.tolist()) for rows in (found.train, found.test)]


@pytest.mark.parametrize("below", [0, 10_000])
def test_validation_rows_are_training_rows_and_duplicates_never_straddle(recipe, below):
    frame, labels = mixed(120)
    frame, labels = frame.iloc[np.arange(240) % 120].reset_index(drop=True), labels[np.arange(240) % 120]
    recipe = replace(recipe, validation=Validation(folds_below=below))
    task = task_of(frame, labels, recipe)
    for seed in range(3):
        found = parts(task, recipe, seed)
        train, test = sides(found)
        assert train | test == set(range(240))
        assert not train & test
        assert not set(task.groups[found.train]) & set(task.groups[found.test])
        assert len(found.checks) == (5 if below else 1)
        for fit, held in found.checks:
            assert set(fit) | set(held) == train
            assert not set(task.groups[fit]) & set(task.groups[held])
            assert set(task.codes[fit]) == {0, 1, 2}


def test_an_official_split_is_the_same_for_every_seed_but_its_validation_is_not(recipe, task):
    recipe = replace(recipe, train_rows=100, test_share=None)
    first, second = (parts(task, recipe, seed) for seed in (0, 1))
    assert first.train.tolist() == second.train.tolist() == list(range(100))
    assert first.test.tolist() == second.test.tolist() == list(range(100, 150))
    assert any((a[1].tolist() != b[1].tolist()) for a, b in zip(first.checks, second.checks, strict=True))


def test_seeds_differ_and_a_seed_gives_the_same_rows_again(recipe, task):
    found = [parts(task, recipe, seed).test.tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_noise_is_in_what_is_learned_from_and_never_in_the_test_rows(recipe, task):
    found = parts(task, replace(recipe, noise=Noise(0.3, "asymmetric")), 0)
    flipped = found.labels != task.codes
    assert not flipped[found.test].any()
    assert flipped[found.train].sum() == round(0.3 * len(found.train))


def test_rows_that_repeat_in_every_column_count_once_where_the_rule_says_so(recipe):
    frame, labels = mixed(30)
    at = np.array([*range(30), 0, 0, 1])
    again = labels[at].copy()
    again[-1] = "a" if again[-1] != "a" else "b"  # the same measures with another label are another row
    kept = task_of(frame.iloc[at], again, replace(recipe, drop_duplicates=True))
    assert len(kept) == 31
    assert kept.groups[30] == kept.groups[1]
    assert len(task_of(frame.iloc[at], again, recipe)) == 33


def test_the_hash_of_the_data_follows_every_cell_and_label_and_not_the_file(recipe):
    def hash_of(frame, labels):
        return recipe_for(frame, labels, data="f.csv", target="y", named=False).data_hash

    frame, labels = mixed(40)
    base = hash_of(frame, labels)
    assert base == hash_of(frame.copy(), labels.copy())
    changed = frame.copy()
    changed.loc[3, "color"] = "white"
    assert hash_of(changed, labels) != base
    changed = frame.copy()
    changed.loc[3, "size"] += 1e-12
    assert hash_of(changed, labels) != base
    assert hash_of(frame, labels[::-1]) != base
    assert hash_of(frame.rename(columns={"size": "length"}), labels) != base


def test_a_share_for_testing_is_refused_where_the_split_is_official():
    frame, labels = mixed(30)
    with pytest.raises(InvalidInput, match="official"):
        recipe_for(frame, labels, data="adult", target="y", named=True, test_share=0.5)
    assert recipe_for(frame, labels, data="adult", target="y", named=False, test_share=0.5).train_rows is None
    assert recipe_for(frame, labels, data="digits", target="y", named=True).test_share == 0.3


def test_one_class_cannot_be_studied(recipe):
    frame, _ = mixed(30)
    with pytest.raises(InvalidInput, match="two classes"):
        task_of(frame, np.full(30, "a"), recipe)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="ATTNKNN_DATA is not set")
def test_named_sets_are_split_as_their_reports_split_them():
    assert RULES["letter"] == Rule(train_rows=16_000)
    adult, wine = load_named("adult"), load_named("wine-quality-red")
    official = recipe_for(adult.X, adult.y, data="adult", target=adult.target, named=True)
    assert official.train_rows == len(adult.train_rows)
    assert official.test_share is None
    recipe = recipe_for(wine.X, wine.y, data=wine.name, target=wine.target, named=True)
    task = task_of(wine.X, wine.y, recipe)
    assert (len(task), len(task.classes)) == (1359, 6)
    assert len(task) == len(wine.X.assign(y=wine.y).drop_duplicates())


def test_sets_of_images_keep_their_official_split():
    images, labels = np.zeros((30, 8, 8, 1), np.uint8), np.arange(30) % 3
    recipe = recipe_for(images, labels, data="mnist", target="digit", named=True)
    assert (recipe.train_rows, recipe.test_share) == (60_000, None)
    assert recipe.ours.images["augmentation"] == "digits"
    folder = recipe_for(images, labels, data="mnist", target="folder", named=False)
    assert (folder.train_rows, folder.test_share) == (None, 0.2)
    assert folder.ours.images["augmentation"] == "photos"


def test_numbers_that_are_no_classes_are_refused():
    frame, labels = mixed()
    recipe = recipe_for(frame, labels, data="mixed.csv", target="y", named=False)
    with pytest.raises(InvalidInput, match=r"'y' must hold classes; it holds numbers such as 1\.5"):
        task_of(frame, np.where(np.arange(len(frame)) % 2, 1.5, 3.0), recipe)
    assert task_of(frame, np.where(np.arange(len(frame)) % 2, 1.0, 3.0), recipe).classes.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(("rows", "trains"), [(600, False), (700, True)])
def test_a_first_look_trains_nothing_where_the_study_itself_would_not(rows, trains):
    frame, labels = mixed(rows)
    made = recipe_for(frame, labels, data="mixed.csv", target="y", named=False, quick=True, test_share=0.25)
    assert (made.ours.table is not None) == trains

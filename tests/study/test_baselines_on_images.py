"""On images scikit-learn's kNN and logistic regression are what they would be on flattened pixels."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from attnknn import study
from attnknn.errors import InvalidInput
from attnknn.study.differences import image_pairs
from attnknn.study.job import Job
from attnknn.study.learners import as_pixels
from attnknn.study.methods import METHODS
from attnknn.study.recipe import BASELINES, ON_IMAGES, PLAIN, STUDIES, KNNGrid, LogisticGrid, Validation
from attnknn.study.scopes import scope_of
from attnknn.study.splits import parts, recipe_for, task_of

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = [name for name in ON_IMAGES if name in BASELINES]


def pictures(count=240):
    """Digits under noise, so that no two distances are equal."""
    draw, digits = np.random.default_rng(0), load_digits()
    kept = np.flatnonzero(digits.target < 4)[:count]
    noise = draw.integers(0, 96, (len(kept), 8, 8))
    return np.clip(digits.images[kept] * 10 + noise, 0, 255).astype(np.uint8)[..., None], digits.target[kept]


@pytest.fixture(scope="module")
def recipe():
    found = recipe_for(
        *pictures(), data="digits/", target="folder", named=False, images={"augmentation": "digits"}
    )
    return replace(found, draws=20, validation=Validation(folds_below=0))


@pytest.fixture(scope="module")
def task(recipe):
    return task_of(*pictures(), recipe)


def job_of(recipe, task, seed=0):
    return Job(recipe, task, parts(task, recipe, seed), seed)


def flat(task, rows):
    """Pixels from 0 to 1 in 64 bits, as anyone would write it."""
    return task.X[rows].reshape(len(rows), -1) / 255.0


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_knn_votes_as_scikit_learn_on_flattened_pixels(weights, recipe, task):
    job = job_of(replace(recipe, knn=KNNGrid(k=(5,), weights=(weights,))), task)
    train, test = job.parts.train, job.parts.test
    model = KNeighborsClassifier(5, weights=weights).fit(flat(task, train), task.codes[train])
    prior = np.bincount(task.codes[train]) / len(train)
    said = METHODS["sklearn-knn"](job).predict(test).uncalibrated * (1 + 1 / 5) - prior / 5
    np.testing.assert_allclose(said, model.predict_proba(flat(task, test)), atol=1e-5)


def test_logistic_regression_says_what_scikit_learns_says_of_flattened_pixels(recipe, task):
    job = job_of(replace(recipe, logistic=LogisticGrid(C=(0.1,))), task)
    train, test = job.parts.train, job.parts.test
    model = LogisticRegression(C=0.1, tol=1e-8, max_iter=5000).fit(flat(task, train), task.codes[train])
    said = METHODS["logistic"](job).predict(test).uncalibrated
    np.testing.assert_allclose(said, model.predict_proba(flat(task, test)), atol=1e-3)


@pytest.mark.parametrize("name", HERE)
def test_nothing_about_test_images_changes_what_is_chosen(name, recipe, task):
    plain = job_of(recipe, task)
    images, codes = task.X.copy(), task.codes.copy()
    images[plain.parts.test] = 255 - images[plain.parts.test]
    codes[plain.parts.test] = 0
    changed = replace(plain, task=replace(task, X=images, codes=codes), parts=replace(plain.parts, labels=codes))
    first, second = METHODS[name](plain), METHODS[name](changed)
    assert first.settings == second.settings
    rows = plain.parts.train
    np.testing.assert_array_equal(first.predict(rows).calibrated, second.predict(rows).calibrated)


@pytest.mark.parametrize("name", HERE)
def test_probabilities_of_images_are_those_of_64_bits_and_better_than_chance(name, recipe, task):
    job = job_of(recipe, task)
    said = METHODS[name](job).predict(job.parts.test)
    for each in (said.calibrated, said.uncalibrated):
        np.testing.assert_allclose(each.sum(axis=1), 1, rtol=0, atol=1e-12)
        assert (each > 0).all()
        assert (each.argmax(axis=1) == task.codes[job.parts.test]).mean() > 0.8


def test_pixels_lie_as_far_apart_as_they_are_and_around_their_mean():
    images, _ = pictures(40)
    found = as_pixels(images)(images)
    plain = images.reshape(40, -1) / 255.0
    np.testing.assert_allclose(cdist(found, found), cdist(plain, plain), atol=1e-5)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)


def test_pixels_take_four_bytes_and_no_copy_of_eight():
    images = np.random.default_rng(0).integers(0, 256, (1500, 32, 32, 3), dtype=np.uint8)
    tracemalloc.start()
    found = as_pixels(images)(images)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.dtype == np.float32
    assert most < 1.2 * found.nbytes


@pytest.mark.parametrize("name", ["hgb", "mlp-trunk"])
def test_what_knows_columns_alone_refuses_images(name, recipe, task):
    with pytest.raises(InvalidInput, match="learns from tables"):
        METHODS[name](job_of(recipe, task))


@pytest.mark.parametrize("quick", [False, True])
def test_main_begins_with_both_on_images_as_on_tables_though_quick(quick):
    for images in (False, True):
        assert scope_of(STUDIES["main"], images=images, quick=quick).methods[:2] == ["sklearn-knn", "logistic"]


def test_each_of_our_methods_is_compared_with_every_baseline_of_images_and_no_baseline_with_another():
    compared = image_pairs(ON_IMAGES)
    theirs = {*HERE, "cnn", "cnn+tta"}
    for name in ON_IMAGES:
        others = {other for mine, other in compared if mine == name}
        assert (others == set()) if name in theirs else (theirs <= others), name
    assert {mine.partition("+")[0] for mine, _ in compared} == {*PLAIN}


def test_arrays_of_images_are_studied_from_python():
    images, labels = pictures()
    recipe = study.recipe_of("main", "few digits", images, labels, target="digit", quick=True)
    found = study.run(recipe, images, labels, methods=HERE, seeds=1, device="cpu")
    assert found.failed == {}
    assert [*found.report["methods"]] == HERE
    assert min(found.report["methods"][name]["accuracy"]["mean"] for name in HERE) > 0.8

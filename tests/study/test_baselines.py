"""Baselines choose on validation rows alone, and are what scikit-learn and LightGBM would be."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from mixed import mixed
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from attnknn.data import as_table
from attnknn.errors import MissingExtra
from attnknn.study import baselines, learners
from attnknn.study.baselines import knn_votes
from attnknn.study.job import Job
from attnknn.study.learners import HGB, Encoded, as_codes, vectors_of
from attnknn.study.methods import METHODS
from attnknn.study.recipe import BASELINES, LogisticGrid
from attnknn.study.splits import parts, task_of

HERE = [name for name in BASELINES if name != "lightgbm" or importlib.util.find_spec("lightgbm")]


def job_of(recipe, task, seed=0):
    return Job(recipe, task, parts(task, recipe, seed), seed)


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_votes_of_one_search_are_those_of_scikit_learn_at_every_k(weights):
    draw = np.random.default_rng(0)
    X, y, queries = draw.normal(size=(80, 3)), draw.integers(0, 3, 80), draw.normal(size=(20, 3))
    queries[:3] = X[:3]  # distance 0
    found = knn_votes(KNeighborsClassifier().fit(X, y), y, queries, (1, 4, 80), 3)
    for k in (1, 4, 80):
        expected = KNeighborsClassifier(k, weights=weights).fit(X, y).predict_proba(queries)
        np.testing.assert_allclose(found[k, weights], expected, atol=1e-12)


@pytest.mark.parametrize("name", HERE)
def test_nothing_about_test_rows_changes_what_is_chosen(name, recipe, task):
    plain = job_of(recipe, task)
    frame, _ = mixed()
    frame.loc[plain.parts.test, ["size", "weight"]] = 1e6
    frame.loc[plain.parts.test, "color"] = "never seen"
    codes = task.codes.copy()
    codes[plain.parts.test] = 0
    other = replace(task, X=frame, columns=as_table(frame), codes=codes)
    changed = replace(plain, task=other, parts=replace(plain.parts, labels=codes))
    first, second = METHODS[name](plain), METHODS[name](changed)
    assert first.settings == second.settings
    assert (
        first.predict(plain.parts.train).calibrated.tolist()
        == second.predict(plain.parts.train).calibrated.tolist()
    )


@pytest.mark.parametrize("name", HERE)
def test_probabilities_are_possible_and_better_than_chance(name, recipe, task):
    job = job_of(recipe, task, seed=3)
    said = METHODS[name](job).predict(job.parts.test)
    truth = task.codes[job.parts.test]
    for each in (said.calibrated, said.uncalibrated):
        assert each.shape == (len(truth), 3)
        np.testing.assert_allclose(each.sum(axis=1), 1, atol=1e-9)
        assert (each > 0).all()
        assert (each.argmax(axis=1) == truth).mean() > 0.45


def test_votes_are_uncalibrated_with_a_prior_mass_of_one_over_k(recipe, task):
    job = job_of(recipe, task)
    fitted = METHODS["sklearn-knn"](job)
    k = fitted.settings["k"]
    votes = fitted.predict(job.parts.test).uncalibrated * (1 + 1 / k)
    prior = np.bincount(task.codes[job.parts.train]) / len(job.parts.train)
    np.testing.assert_allclose((votes - prior / k).sum(axis=1), 1)
    assert (np.abs(votes - prior / k).min(axis=1) < 1e-12).any()  # some class had no vote at all


def test_trees_grown_in_steps_are_those_grown_at_once(recipe, task):
    job = job_of(recipe, task)
    learner = HGB(job, job.parts.train, {"learning_rate": 0.1, "leaves": 7})
    for _ in range(3):
        learner.grow(4)
    once = HistGradientBoostingClassifier(
        learning_rate=0.1, max_leaf_nodes=7, max_iter=12, early_stopping=False, categorical_features=[2]
    )
    numbers = Encoded(task.table.take, job.parts.train, as_codes)
    once.fit(numbers(job.parts.train), task.codes[job.parts.train])
    np.testing.assert_allclose(
        learner.predict(job.parts.test), once.predict_proba(numbers(job.parts.test)), atol=1e-9
    )


def test_rounds_are_those_of_least_validation_nll_and_the_search_stops_there(recipe, task, monkeypatch):
    losses = [3.0, 2.0, 1.0, 1.5, 1.2, 0.1]  # a better one comes too late
    asked = []

    class Scripted:
        def __init__(self, job, fit, settings):
            self.rounds = 0

        def grow(self, rounds):
            self.rounds += rounds

        def predict(self, rows):
            asked.append(self.rounds)
            right = np.exp(-losses[self.rounds - 1])
            each = np.full((len(rows), 3), (1 - right) / 2)
            each[np.arange(len(rows)), task.codes[rows]] = right
            return each

    job = job_of(recipe, task)
    fitted = baselines.grown(job, Scripted, [{}], recipe.mlp.rounds)
    assert fitted.settings["rounds"] == 3
    assert max(asked) == 5


def held_nll(job, C):
    """What scikit-learn's own logistic regression costs on each held-out row."""
    each = []
    for fit, held in job.parts.checks:
        vectors, labels = vectors_of(job.task, fit), job.parts.labels
        model = LogisticRegression(C=C, max_iter=1000).fit(vectors(fit), labels[fit])
        each += (-model.predict_log_proba(vectors(held))[np.arange(len(held)), labels[held]]).tolist()
    return np.mean(each)


def test_logistic_regression_is_scikit_learns_at_the_best_of_the_grid(recipe, task):
    job = job_of(replace(recipe, calibration="none", logistic=LogisticGrid(C=(1e-4, 0.3, 1e4))), task)
    fitted = METHODS["logistic"](job)
    assert fitted.settings["C"] == min((1e-4, 0.3, 1e4), key=lambda C: held_nll(job, C))
    vectors, train = vectors_of(task, job.parts.train), job.parts.train
    model = LogisticRegression(C=fitted.settings["C"], max_iter=1000).fit(vectors(train), task.codes[train])
    expected = model.predict_proba(vectors(job.parts.test))
    np.testing.assert_allclose(fitted.predict(job.parts.test).uncalibrated, expected, atol=1e-3)


def test_logistic_regression_says_nothing_where_it_does_not_converge(recipe, task, monkeypatch):
    monkeypatch.setattr(learners, "MOST_ITERATIONS", 1)
    job = job_of(recipe, task)
    said = METHODS["logistic"](job).predict(job.parts.test)  # warnings are errors here
    np.testing.assert_allclose(said.calibrated.sum(axis=1), 1)


def test_columns_with_many_categories_and_unknown_ones_are_codes_or_missing():
    frame = pd.DataFrame({"city": [f"c{at % 300}" for at in range(600)] + ["c0"] * 5, "n": 1.5})
    encode = as_codes(as_table(frame))
    found = encode(as_table(pd.DataFrame({"city": ["c0", "elsewhere", None], "n": [1.0, 2.0, None]})))
    assert found[0].tolist() == [0.0, 1.0]
    assert np.isnan(found[1:, 0]).all()
    assert np.nanmax(encode(as_table(frame))[:, 0]) == 253


def test_without_lightgbm_its_method_says_how_to_get_it(recipe, task, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install"):
        METHODS["lightgbm"](job_of(recipe, task))


def test_a_class_that_noise_wiped_out_still_has_a_column(recipe):
    frame, labels = mixed(60)
    task = task_of(frame, labels, recipe)
    job = job_of(recipe, task)
    codes = np.where(job.parts.labels == 2, 1, job.parts.labels)
    job = replace(job, parts=replace(job.parts, labels=codes))
    for name in HERE:
        said = METHODS[name](job).predict(job.parts.test)
        assert said.calibrated.shape == (len(job.parts.test), 3), name


def test_trees_learn_beside_a_column_without_a_value(recipe, task):
    frame = task.X.assign(nothing=np.nan)
    with_nothing = replace(task, X=frame, columns=as_table(frame))
    at = parts(task, recipe, 0)
    one, two = (METHODS["hgb"](Job(recipe, each, at, 0)).predict(at.test) for each in (task, with_nothing))
    np.testing.assert_allclose(one.calibrated, two.calibrated, atol=1e-6)

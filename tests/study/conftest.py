"""A small task with its recipe, and a classifier that needs no training."""

from __future__ import annotations

import pytest
from mixed import mixed, small

from attnknn.estimator import AttnKNNClassifier
from attnknn.study import ours
from attnknn.study.recipe import Recipe
from attnknn.study.splits import Task, recipe_for, task_of


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    frame, labels = mixed()
    return small(recipe_for(frame, labels, data="mixed.csv", target="y", named=False))


@pytest.fixture(scope="session")
def task(recipe) -> Task:
    return task_of(*mixed(), recipe)


@pytest.fixture
def untrained(monkeypatch):
    """Stands for learned attention, so that these tests are about the study: softmax on standardized rows."""
    fitted = []

    def trained(job, how):
        rows = job.parts.train
        weights = "softmax" if how.weights == "attention" else how.weights
        model = AttnKNNClassifier(
            weights=weights, embedder="standardize", calibration="temperature", random_state=job.seed
        )
        model.fit(job.task.take(rows), job.task.classes[job.parts.labels[rows]])
        model.rows_ = job.task.take(rows), job.task.classes[job.parts.labels[rows]]
        fitted.append((job.seed, how.weights))
        return model

    def reweighed(model, weights, attention=None, prediction=None, k=None):
        given = {**model.get_params(), "weights": weights, "n_neighbors": k or model.n_neighbors}
        return AttnKNNClassifier(**given).fit(*model.rows_)

    monkeypatch.setattr(ours, "trained", trained)
    monkeypatch.setattr(ours, "reweighed", reweighed)
    return fitted

"""A classifier that is edited while it predicts: every answer is that of one moment."""

import threading
import time

import numpy as np
import pytest

from attnknn import AttnKNNClassifier


def clusters(labels, rows=30, seed=0):
    draw = np.random.default_rng(seed)
    y = np.repeat(labels, rows)
    return 10.0 * np.asarray([hash_free(label) for label in y]) + draw.normal(size=(len(y), 2)), y


def hash_free(label):
    """A place on a grid for each integer label."""
    return [label % 7, label // 7]


def together(seconds, *workers):
    """Run workers in threads for a while; what any of them raises is raised here."""
    stop, problems = threading.Event(), []

    def guarded(worker):
        try:
            while not stop.is_set():
                worker()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    if problems:
        raise problems[0]


def test_predictions_stay_right_while_classes_are_added():
    X, y = clusters([20, 25, 30])
    model = AttnKNNClassifier(3, weights="distance", embedder="identity", calibration=None).fit(X, y)
    fresh = iter([label for label in range(49) if label not in (20, 25, 30)])

    def teach():
        label = next(fresh, None)
        if label is not None:
            more, labels = clusters([label], rows=4, seed=label)
            model.add(more, labels, classes=[label])
        time.sleep(0.01)

    def ask():
        np.testing.assert_array_equal(model.predict(X), y)

    together(1.5, teach, ask, ask, ask)
    assert len(model.classes_) > 10


@pytest.mark.parametrize("weights", ["softmax", "reliability"])
def test_predicting_and_explaining_while_rows_come_and_go_and_the_model_is_saved(weights, tmp_path):
    X, y = clusters([1, 8, 17])
    model = AttnKNNClassifier(5, weights=weights, embedder="identity").fit(X, y)

    def edit():
        ids = model.add(X[:20] + 0.1, y[:20])
        model.relabel(ids[:2], y[:2])
        model.remove(ids)

    def ask():
        np.testing.assert_array_equal(model.predict(X), y)
        assert model.explain(X[:2])[0].prediction == y[0]
        model.kneighbors(X[:3])

    together(1.5, edit, ask, ask, lambda: model.save(tmp_path / "model"))
    again = AttnKNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(X), y)

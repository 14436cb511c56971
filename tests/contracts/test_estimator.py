"""The classifier against scikit-learn: its checks, its own kNN, its tools."""

from __future__ import annotations

import copy
import pickle

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attnknn import AttnKNNClassifier

CONFIGURATIONS = [
    AttnKNNClassifier(),
    AttnKNNClassifier(5, weights="uniform", embedder="identity", calibration=None, index="flat"),
    AttnKNNClassifier(5, weights="distance", calibration="temperature", index="hnsw"),
    AttnKNNClassifier(5, weights="reliability", calibration="isotonic", index="ivf"),
]


@parametrize_with_checks(
    CONFIGURATIONS,
    expected_failed_checks=lambda model: {
        "check_sample_weight_equivalence_on_dense_data": "repeated rows use up k slots"
    },
)
def test_passes_every_check_of_scikit_learn(estimator, check):
    check(estimator)


def bare(k, weights):
    return AttnKNNClassifier(k, weights=weights, embedder="identity", metric="l2", calibration=None)


def untied(X, queries, k, leave_out_self=False):
    """Queries whose first k + 1 distances all differ, by subtraction in float64; and those distances."""
    gaps = np.sqrt(((queries[:, None, :].astype(float) - X[None, :, :].astype(float)) ** 2).sum(axis=2))
    if leave_out_self:
        np.fill_diagonal(gaps, np.inf)
    first = np.sort(gaps, axis=1)[:, : k + 1]
    finite = np.where(np.isfinite(first), first, 2 * first[:, :1] + 1e300)
    return (np.diff(finite, axis=1) > 1e-12 * finite[:, 1:]).all(axis=1)


def drawn(seed, rows=120, width=4, classes=3):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, width))
    return X, np.argmax(X[:, :classes] + draw.normal(scale=0.7, size=(rows, classes)), axis=1)


def bundled(load):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:300]
    return X[order], y[order]


def integers():
    draw = np.random.default_rng(5)
    return draw.integers(0, 1000, size=(150, 3)), draw.integers(0, 2, 150)


DATA = {
    "float64": lambda: drawn(0),
    "float32": lambda: (drawn(1)[0].astype(np.float32), drawn(1)[1]),
    "offset 1e4": lambda: (drawn(2)[0] + 1e4, drawn(2)[1]),
    "float32 offset 1e4": lambda: ((drawn(3)[0] + 1e4).astype(np.float32), drawn(3)[1]),
    "scale 1e-8": lambda: (drawn(4)[0] * 1e-8, drawn(4)[1]),
    "scale 1e-100": lambda: (drawn(4)[0] * 1e-100, drawn(4)[1]),
    "scale 1e15": lambda: (drawn(4)[0] * 1e15, drawn(4)[1]),
    "integers": integers,
    "wide": lambda: drawn(6, rows=90, width=80),
    "one column": lambda: (drawn(7)[0][:, :1], drawn(7)[1]),
    "iris": lambda: bundled(load_iris),
    "wine": lambda: bundled(load_wine),
    "breast cancer": lambda: bundled(load_breast_cancer),
    "digits": lambda: bundled(load_digits),
}


@pytest.mark.parametrize("k", [1, 2, 5, 16])
@pytest.mark.parametrize("name", DATA)
def test_equals_scikit_learn_wherever_distances_do_not_tie(name, k):
    X, y = DATA[name]()
    train, queries = X[: 2 * len(X) // 3], X[len(X) // 2 :]  # some queries are training rows
    clear = untied(train, queries, k)
    assert clear.sum() >= 10, "the data tie too often to say anything"
    for weights in ("uniform", "distance"):
        ours = bare(k, weights).fit(train, y[: len(train)])
        theirs = KNeighborsClassifier(k, weights=weights, algorithm="kd_tree").fit(train, y[: len(train)])
        np.testing.assert_allclose(
            ours.predict_proba(queries)[clear], theirs.predict_proba(queries)[clear], rtol=0, atol=1e-6
        )
        np.testing.assert_array_equal(ours.predict(queries)[clear], theirs.predict(queries)[clear])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 60),
    width=st.integers(1, 8),
    k=st.integers(1, 20),
    weights=st.sampled_from(["uniform", "distance"]),
    shift=st.sampled_from([0.0, 1e3, -1e6]),
)
def test_equals_scikit_learn_on_any_data(seed, rows, width, k, weights, shift):
    draw = np.random.default_rng(seed)
    X, y = draw.normal(size=(rows, width)) + shift, draw.integers(0, 4, rows)
    queries, k = draw.normal(size=(7, width)) + shift, min(k, rows)
    clear = untied(X, queries, k)
    ours = bare(k, weights).fit(X, y).predict_proba(queries)
    theirs = KNeighborsClassifier(k, weights=weights, algorithm="kd_tree").fit(X, y).predict_proba(queries)
    np.testing.assert_allclose(ours[clear], theirs[clear], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["float32", "offset 1e4", "wine"])
def test_kneighbors_equals_scikit_learn(name):
    X, y = DATA[name]()
    ours, theirs = bare(5, "uniform").fit(X, y), KNeighborsClassifier(5, algorithm="kd_tree").fit(X, y)
    for queries, k in [(X[:40] + 0.01, None), (X[:40], 3), (None, None), (None, 7)]:
        asked = X if queries is None else queries
        clear = untied(X, asked, k or 5, leave_out_self=queries is None)
        distances, rows = ours.kneighbors(queries, k)
        expected, expected_rows = theirs.kneighbors(queries, k)
        assert rows.shape == expected_rows.shape
        np.testing.assert_array_equal(rows[clear], expected_rows[clear])
        np.testing.assert_allclose(distances, expected, rtol=1e-9)
        np.testing.assert_array_equal(ours.kneighbors(queries, k, return_distance=False), rows)


def test_kneighbors_of_the_examples_never_names_an_example_itself():
    X = np.zeros((6, 2))  # all duplicates: only the row itself may be left out
    distances, rows = bare(3, "uniform").fit(X, [0, 0, 0, 1, 1, 1]).kneighbors()
    assert rows.shape == (6, 3)
    assert not (rows == np.arange(6)[:, None]).any()
    assert not distances.any()


def test_kneighbors_above_the_number_of_examples_gives_all_that_exist():
    X, y = drawn(0, rows=5)
    model = bare(2, "uniform").fit(X, y)
    assert np.sort(model.kneighbors(X[:2], 50)[1]).tolist() == [list(range(5))] * 2
    assert model.kneighbors(None, 50)[1].shape == (5, 4)


def test_kneighbors_counts_the_rows_that_are_left_after_removal():
    X, y = drawn(0, rows=20)
    model = bare(1, "uniform").fit(X, y)
    model.remove([0, 3, 4])
    left = np.delete(np.arange(20), [0, 3, 4])
    np.testing.assert_array_equal(left[model.kneighbors(X[left])[1][:, 0]], left)


@pytest.fixture(scope="module")
def iris():
    return bundled(load_iris)


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=["default", "bare", "hnsw", "ivf"])
def test_copies_answer_like_the_original(model, iris, tmp_path):
    X, y = iris
    fitted = clone(model).set_params(random_state=0).fit(X, y)
    expected = fitted.predict_proba(X)
    joblib.dump(fitted, tmp_path / "model.joblib")
    twins = {
        "joblib": joblib.load(tmp_path / "model.joblib"),
        "pickle": pickle.loads(pickle.dumps(fitted)),
        "deepcopy": copy.deepcopy(fitted),
        "clone, fitted again": clone(fitted).fit(X, y),
    }
    for name, twin in twins.items():
        np.testing.assert_array_equal(twin.predict_proba(X), expected, err_msg=name)
        assert twin.get_params() == fitted.get_params(), name


def test_a_copy_can_be_edited_without_touching_the_original(iris):
    X, y = iris
    fitted = AttnKNNClassifier(3, random_state=0).fit(X, y)
    before = fitted.predict_proba(X)
    for twin in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        twin.remove(twin.bank_.ids[:100])
        assert len(fitted.bank_) == len(X)
        np.testing.assert_array_equal(fitted.predict_proba(X), before)


def test_clone_forgets_what_was_learned(iris):
    twin = clone(AttnKNNClassifier(7, weights="distance").fit(*iris))
    assert (twin.n_neighbors, twin.weights) == (7, "distance")
    with pytest.raises(NotFittedError):
        twin.predict(iris[0])


@pytest.mark.parametrize("method", ["predict", "predict_proba", "kneighbors", "explain", "save", "remove", "add"])
def test_an_unfitted_model_says_so(method):
    arguments = {"add": ([[0.0]], [0]), "remove": ([0],), "save": ("nowhere",)}.get(method, ([[0.0]],))
    with pytest.raises(NotFittedError):
        getattr(AttnKNNClassifier(), method)(*arguments)


def test_works_in_a_pipeline_and_equals_the_two_steps_by_hand(iris):
    X, y = iris
    piped = make_pipeline(MinMaxScaler(), AttnKNNClassifier(5, random_state=0)).fit(X[:100], y[:100])
    scaler = MinMaxScaler().fit(X[:100])
    alone = AttnKNNClassifier(5, random_state=0).fit(scaler.transform(X[:100]), y[:100])
    np.testing.assert_array_equal(piped.predict_proba(X), alone.predict_proba(scaler.transform(X)))


def test_grid_search_finds_the_better_setting(iris):
    X, y = iris
    grid = {"n_neighbors": [1, 150], "weights": ["uniform"], "calibration": [None]}
    search = GridSearchCV(AttnKNNClassifier(), grid, cv=3).fit(X, y)
    assert search.best_params_["n_neighbors"] == 1  # all 100 neighbors vote for the largest class
    assert search.best_score_ > 0.9
    assert search.score(X, y) > 0.9


def test_cross_validation_works(iris):
    X, y = iris
    model = AttnKNNClassifier(5, random_state=0)
    assert cross_val_score(model, X, y, cv=3).min() > 0.85
    chances = cross_val_predict(model, X, y, cv=3, method="predict_proba")
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-12)
    assert (chances.argmax(axis=1) == y).mean() > 0.85


def test_set_params_takes_effect_at_the_next_fit(iris):
    X, y = iris
    model = AttnKNNClassifier(1, weights="uniform", calibration=None).fit(X, y)
    model.set_params(n_neighbors=9)
    assert model.n_neighbors_ == 1
    assert model.fit(X, y).n_neighbors_ == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_neighbors", 0),
        ("n_neighbors", 2.5),
        ("n_neighbors", True),
        ("n_neighbors", "many"),
        ("weights", "attention?"),
        ("weights", None),
        ("embedder", "resnet"),
        ("metric", "manhattan"),
        ("index", "tree"),
        ("calibration", "platt"),
        ("calibration", False),
        ("device", "abacus"),
        ("n_estimators", 0),
        ("n_estimators", 2.5),
        ("attention", {"heads": 2}),
        ("training", {"epochs": 1}),
        ("validation_fraction", 0.0),
        ("validation_fraction", 1),
        ("class_weight", "unbalanced"),
        ("class_weight", {0: -1.0}),
        ("class_weight", {0: float("nan")}),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_by_name(name, value, iris):
    with pytest.raises(ValueError, match=name):
        AttnKNNClassifier(**{name: value}).fit(*iris)


def test_verbose_tells_what_was_chosen(iris, capsys):
    model = AttnKNNClassifier(verbose=1).fit(*iris)
    assert f"k={model.n_neighbors_}" in capsys.readouterr().out
    AttnKNNClassifier(verbose=0).fit(*iris)
    assert not capsys.readouterr().out

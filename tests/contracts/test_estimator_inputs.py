"""What the classifier takes: frames of two libraries, arrays, labels of every kind, weights."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.datasets import load_iris
from sklearn.neighbors import KNeighborsClassifier

from attnknn import AttnKNNClassifier, InvalidInput

WEIGHTS = ["uniform", "distance", "softmax", "reliability"]


def mixed(rows=90, seed=0):
    """Columns of every kind with gaps, and labels that depend on them."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, rows)

    def gappy(values):
        return [None if draw.random() < 0.1 else value for value in values]

    columns = {
        "size": gappy((draw.normal(size=rows) + y).tolist()),
        "count": [int(value) for value in draw.poisson(3 + 2 * y)],
        "color": gappy([str(draw.choice(["red", "green", "blue"] if label else ["red", "grey"])) for label in y]),
        "kind": gappy([str(draw.choice(["a", "b"])) for _ in y]),
        "open": gappy([bool(draw.random() < 0.3 + 0.4 * label) for label in y]),
        "when": gappy([dt.datetime(2024, 1, 1) + dt.timedelta(hours=int(draw.integers(0, 999))) for _ in y]),
    }
    return columns, np.where(y == 1, "yes", "no")


def as_pandas(columns):
    frame = pd.DataFrame(columns)
    return frame.assign(kind=frame["kind"].astype("category"))


def as_polars(columns):
    return pl.DataFrame(columns).with_columns(pl.col("kind").cast(pl.Categorical))


LIBRARIES = {"pandas": as_pandas, "polars": as_polars}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_pandas_and_polars_give_the_same_probabilities(weights):
    columns, y = mixed()
    each = {}
    for name, frame in LIBRARIES.items():
        model = AttnKNNClassifier(weights=weights, random_state=0).fit(frame(columns), y)
        each[name] = model.predict_proba(frame(columns))
        crossed = model.predict_proba(LIBRARIES["polars" if name == "pandas" else "pandas"](columns))
        np.testing.assert_array_equal(crossed, each[name])
    np.testing.assert_array_equal(each["pandas"], each["polars"])
    assert np.isfinite(each["pandas"]).all()
    np.testing.assert_allclose(each["pandas"].sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_mixed_columns_carry_information(library):
    frame = LIBRARIES[library]
    columns, y = mixed(400)
    fresh, truth = mixed(200, seed=1)
    assert AttnKNNClassifier(random_state=0).fit(frame(columns), y).score(frame(fresh), truth) > 0.75


@pytest.mark.parametrize("library", LIBRARIES)
def test_reordered_renamed_missing_or_extra_columns_are_refused(library):
    frame = LIBRARIES[library]
    columns, y = mixed(30)
    model = AttnKNNClassifier(3).fit(frame(columns), y)
    names = list(columns)
    wrong = {
        "reordered": frame({name: columns[name] for name in names[::-1]}),
        "renamed": frame({("Size" if name == "size" else name): columns[name] for name in names}),
        "missing": frame({name: columns[name] for name in names if name != "size"}),
        "extra": frame({**columns, "more": columns["count"]}),
    }
    for what, X in wrong.items():
        for call in (model.predict, lambda rows: model.add(rows, y)):
            with pytest.raises(ValueError, match=r"feature names|columns|features"):
                call(X)
        assert len(model.bank_) == 30, what


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_category_that_fit_did_not_see_is_no_obstacle(library):
    columns, y = mixed(40)
    model = AttnKNNClassifier(5).fit(LIBRARIES[library](columns), y)
    fresh = {name: values[:3] for name, values in columns.items()}
    fresh["color"] = ["mauve", None, "never seen"]
    fresh["kind"] = ["z", "a", None]
    chances = model.predict_proba(LIBRARIES[library](fresh))
    np.testing.assert_allclose(chances.sum(axis=1), 1)


def test_a_missing_value_in_a_column_that_had_none_is_no_obstacle():
    model = AttnKNNClassifier(3).fit(pd.DataFrame({"a": [0.0, 1.0, 9.0, 10.0], "b": list("xxyy")}), [0, 0, 1, 1])
    assert model.predict(pd.DataFrame({"a": [np.nan, 9.5], "b": ["x", None]})).tolist() == [0, 1]


def test_a_frame_may_number_its_columns_and_be_asked_with_an_array():
    X, y = load_iris(return_X_y=True)
    model = AttnKNNClassifier(5, random_state=0).fit(pd.DataFrame(X), y)
    np.testing.assert_array_equal(model.predict(X), model.predict(pd.DataFrame(X)))


def test_the_same_numbers_in_a_frame_and_an_array_give_the_same_probabilities():
    X, y = load_iris(return_X_y=True)
    by_array = AttnKNNClassifier(random_state=0).fit(X, y).predict_proba(X)
    frame = pd.DataFrame(X, columns=list("abcd"))
    np.testing.assert_array_equal(AttnKNNClassifier(random_state=0).fit(frame, y).predict_proba(frame), by_array)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_and_infinity_in_an_array_are_refused_by_name_wherever_rows_come_in(bad, dtype):
    X, y = load_iris(return_X_y=True)
    dirty = X.astype(dtype)
    dirty[3, 1] = bad
    said = "NaN" if np.isnan(bad) else "infinity"
    with pytest.raises(ValueError, match=said):
        AttnKNNClassifier().fit(dirty, y)
    model = AttnKNNClassifier(3).fit(X, y)
    for call in (model.predict, model.predict_proba, model.explain, model.kneighbors, lambda Z: model.add(Z, y)):
        with pytest.raises(ValueError, match=said):
            call(dirty)
    assert len(model.bank_) == len(X)


@pytest.mark.parametrize("library", LIBRARIES)
def test_infinity_in_a_frame_is_refused_with_its_column_and_row(library):
    columns, y = mixed(20)
    model = AttnKNNClassifier(3).fit(LIBRARIES[library](columns), y)
    columns["size"][7] = float("inf")
    for call in (lambda X: AttnKNNClassifier().fit(X, y), model.predict, lambda X: model.add(X, y)):
        with pytest.raises(InvalidInput, match=r"'size'.*7"):
            call(LIBRARIES[library](columns))


def test_statistics_come_from_training_rows_alone():
    columns, y = mixed(60)
    model = AttnKNNClassifier(3).fit(as_pandas(columns), y)
    learned = model.embedder_.state()
    by_name = {column["name"]: column for column in learned["columns"]}
    assert by_name["count"]["mean"] == pytest.approx(np.mean(columns["count"]))
    assert by_name["count"]["scale"] == pytest.approx(np.std(columns["count"]))
    assert by_name["color"]["categories"] == sorted({color for color in columns["color"] if color})
    extreme = as_pandas({**columns, "count": [10**6] * 60, "color": ["mauve"] * 60})
    model.predict(extreme)
    model.add(extreme, y)
    assert model.embedder_.state() == learned


@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_answer_does_not_depend_on_the_other_rows_of_the_question(weights):
    columns, y = mixed(80)
    model = AttnKNNClassifier(weights=weights, random_state=0).fit(as_pandas(columns)[:50], y[:50])
    together = model.predict_proba(as_pandas(columns)[50:])
    alone = [model.predict_proba(as_pandas(columns)[at : at + 1])[0] for at in range(50, 80)]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-12)


LABELS = {
    "int": [3, 1, 2],
    "negative int": [-5, 0, 7],
    "int8": np.array([-128, 0, 127], np.int8),
    "uint64": np.array([0, 1, 2**63 + 1], np.uint64),
    "bool": [False, True, True],
    "str": ["b", "a", "c"],
    "numpy str": np.array(["long label", "x", "mid"]),
    "object str": np.array(["é", "a", "日本"], object),
    "float integers": [1.0, -2.0, 0.0],
    "pandas str": pd.Series(["u", "v", "w"]),
    "pandas category": pd.Series(["u", "v", "w"], dtype="category"),
    "polars str": pl.Series(["u", "v", "w"]),
    "polars int": pl.Series([4, 2, 9]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_this_kind_come_back_as_they_are(kind):
    three = LABELS[kind]
    y = [list(three)[at % 3] for at in range(30)]
    if isinstance(three, np.ndarray):
        y = np.asarray(y, three.dtype)
    elif not isinstance(three, list):
        y = type(three)(y, dtype=three.dtype)
    X = np.array([[10.0 * list(dict.fromkeys(list(three))).index(label)] for label in list(y)])
    X += np.random.default_rng(0).normal(scale=0.1, size=X.shape)
    model = AttnKNNClassifier(3).fit(X, y)
    predicted = model.predict(X)
    assert predicted.tolist() == list(y)
    assert model.classes_.tolist() == sorted(set(three))
    assert model.score(X, y) == 1.0
    if isinstance(three, np.ndarray):
        assert predicted.dtype == three.dtype


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "y"),
        ([0, None, 1, 1], "missing|mix"),
        (["a", None, "b", "b"], "missing"),
        (np.array(["a", np.nan, "b", "b"], object), "missing"),
        ([0.0, np.nan, 1.0, 1.0], "NaN"),
        ([0.0, np.inf, 1.0, 1.0], "infinity"),
        ([0.1, 0.2, 0.3, 0.4], "continuous"),
        (np.array(["a", 1, "b", 2], object), "mix"),
        (np.array([True, "a", "b", "c"], object), "mix"),
        (pd.Series([1, None, 0, 0], dtype="Int64"), "NaN|missing"),
        (pd.Series(["a", None, "b", "b"]), "missing"),
        (pl.Series(["a", None, "b", "b"]), "missing"),
        (np.array(["2024-01-01"] * 4, "datetime64[D]"), "datetime64"),
        (np.array([1 + 2j] * 4), "[Cc]omplex"),
        ([decimal.Decimal(1)] * 4, "label"),
        ([[0, 1], [1, 0], [0, 1], [1, 1]], "1d array|shape"),
        ([0, 1, 1], "inconsistent|rows"),
    ],
)
def test_labels_that_are_missing_continuous_or_mixed_are_refused_with_a_reason(labels, said):
    X = np.arange(8.0).reshape(4, 2)
    with pytest.raises(ValueError, match=said):
        AttnKNNClassifier().fit(X, labels)
    if labels is None:
        return
    model = AttnKNNClassifier(1).fit(X, [0, 0, 1, 1])
    with pytest.raises(ValueError, match=said):
        model.add(X, labels)
    assert len(model.bank_) == 4


@pytest.mark.parametrize("weights", ["uniform", "distance", "softmax"])
def test_the_label_of_a_row_of_weight_zero_does_not_matter(weights):
    X, y = load_iris(return_X_y=True)
    importance = np.ones(len(y))
    importance[::5] = 0
    other = np.where(importance == 0, (y + 1) % 3, y)
    model = AttnKNNClassifier(weights=weights, random_state=0)
    np.testing.assert_array_equal(
        model.fit(X, y, sample_weight=importance).predict_proba(X),
        model.fit(X, other, sample_weight=importance).predict_proba(X),
    )


@pytest.mark.parametrize("weights", WEIGHTS)
def test_only_the_ratios_of_sample_weights_matter(weights):
    X, y = load_iris(return_X_y=True)
    importance = np.random.default_rng(0).uniform(0.5, 2, len(y))
    model = AttnKNNClassifier(weights=weights, random_state=0)
    once = model.fit(X, y, sample_weight=importance).predict_proba(X)
    scaled = model.fit(X, y, sample_weight=4 * importance).predict_proba(X)
    np.testing.assert_allclose(scaled, once, rtol=1e-9, atol=1e-12)
    ones = model.fit(X, y).predict_proba(X)
    np.testing.assert_allclose(
        model.fit(X, y, sample_weight=np.full(len(y), 2.0)).predict_proba(X), ones, atol=1e-12
    )


def test_sample_weights_multiply_the_votes():
    X, y = [[0.0], [1.0], [2.0]], [0, 1, 1]
    model = AttnKNNClassifier(3, weights="uniform", embedder="identity", calibration=None)
    chances = model.fit(X, y, sample_weight=[5, 1, 2]).predict_proba([[0.5]])
    np.testing.assert_allclose(chances, [[5 / 8, 3 / 8]])


@pytest.mark.parametrize("bad", [[1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1.0, np.nan, 1.0], [1.0, 1.0], [1e308] * 3])
def test_sample_weights_that_make_no_sense_are_refused(bad):
    X, y = [[0.0], [1.0], [2.0]], [0, 1, 1]
    with pytest.raises(ValueError, match=r"[Ss]ample.?weight|sample_weight"):
        AttnKNNClassifier(1).fit(X, y, sample_weight=bad)
    model = AttnKNNClassifier(1).fit(X, y)
    with pytest.raises(ValueError, match=r"[Ss]ample.?weight|sample_weight"):
        model.add(X, y, sample_weight=bad)
    assert len(model.bank_) == 3


def test_class_weights_multiply_the_votes_and_balanced_is_scikit_learns():
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(60, 2)), np.array(["rare"] * 10 + ["often"] * 50)
    queries = draw.normal(size=(20, 2))
    settings = {"weights": "uniform", "embedder": "identity", "calibration": None, "metric": "l2"}
    near = KNeighborsClassifier(7).fit(X, y).kneighbors(queries, return_distance=False)
    rare = (y[near] == "rare").sum(axis=1)
    for given, factors in [
        ("balanced", {"rare": 60 / (2 * 10), "often": 60 / (2 * 50)}),
        ({"rare": 3.0}, {"rare": 3.0, "often": 1.0}),
    ]:
        model = AttnKNNClassifier(7, class_weight=given, **settings).fit(X, y)
        votes = np.column_stack([(7 - rare) * factors["often"], rare * factors["rare"]])
        expected = votes / votes.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(queries), expected, atol=1e-12)


def test_balanced_classes_find_more_of_the_rare_one():
    draw = np.random.default_rng(0)
    y = (draw.random(600) < 0.1).astype(int)
    X = draw.normal(size=(600, 2)) + 1.2 * y[:, None]
    plain = AttnKNNClassifier(random_state=0).fit(X[:400], y[:400])
    balanced = AttnKNNClassifier(random_state=0, class_weight="balanced").fit(X[:400], y[:400])
    rare = X[400:][y[400:] == 1]
    assert balanced.predict(rare).mean() > plain.predict(rare).mean() + 0.1

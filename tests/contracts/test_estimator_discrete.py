"""Tables of few distinct rows, and labels of the wrong kind."""

import numpy as np
import pytest

from attnknn import AttnKNNClassifier, CorruptModel, InvalidInput, MissingDevice
from attnknn.bank.folder import read_folder, write_folder


def binary(columns, rows=500, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (rows, columns)).astype(float)


@pytest.mark.parametrize("weights", ["uniform", "distance", "softmax", "reliability"])
@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        (1, lambda X: X[:, 0]),
        (2, lambda X: X.max(axis=1)),
        (3, lambda X: X.sum(axis=1) > 1),
        (6, lambda X: X[:, 0]),
    ],
    ids=["same", "or", "majority", "first"],
)
def test_a_table_of_few_distinct_rows_is_learned(columns, rule, weights):
    X = binary(columns)
    y = rule(X).astype(int)
    model = AttnKNNClassifier(weights=weights, random_state=0).fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.predict_proba(X).max(axis=1).min() > 0.9


def test_noise_in_a_table_of_few_distinct_rows_gives_the_frequencies_of_its_cells():
    X = binary(2, rows=2000)
    chance = np.where(X[:, 0] == 1, 0.8, 0.3)
    y = (np.random.default_rng(1).random(2000) < chance).astype(int)
    model = AttnKNNClassifier(weights="softmax", random_state=0).fit(X, y)
    cells = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(model.predict_proba(cells)[:, 1], [0.3, 0.3, 0.8, 0.8], atol=0.08)


def test_a_large_group_of_twins_costs_no_quadratic_memory():
    X = np.vstack([np.zeros((4_000, 1)), np.arange(5_000)[:, None] + 1.0])
    y = (np.arange(9_000) % 2).astype(int)
    model = AttnKNNClassifier(8, weights="softmax", calibration="prior", random_state=0).fit(X, y)
    assert model.predict_proba([[0.0]])[0].sum() == pytest.approx(1)


def test_classes_of_another_type_are_refused_and_nothing_changes():
    X = np.arange(20.0)[:, None]
    model = AttnKNNClassifier(3).fit(X, np.arange(20) % 2)
    before = model.predict_proba(X)
    with pytest.raises(InvalidInput, match="another type"):
        model.add([[1.0], [2.0]], ["a", "a"], classes=["a"])
    assert len(model.bank_) == 20
    np.testing.assert_array_equal(model.predict_proba(X), before)
    with pytest.raises(InvalidInput, match="another type"):
        AttnKNNClassifier(3).fit(X, np.arange(20) % 2, classes=["a"])


def test_a_weight_given_for_an_announced_class_counts_once_it_is_taught():
    X = np.array([[0.0], [1.0]])
    model = AttnKNNClassifier(
        2, weights="uniform", embedder="identity", calibration=None, class_weight={0: 1.0, 1: 3.0}
    ).fit(X[:1], [0], classes=[0, 1])
    model.add(X[1:], [1])
    np.testing.assert_allclose(model.predict_proba([[0.5]]), [[0.25, 0.75]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", [{"network": None, "k": -3, "weigher": {"kind": "softmax", "scale": 1.0, "trust": 0.0}}]),
        ("members", [{"network": None, "k": 3, "weigher": {"kind": "nonsense", "scale": 1.0, "trust": 0.0}}]),
        ("class_weight", [1.0]),
        ("prior_mass", -1),
    ],
)
def test_a_model_file_with_numbers_that_no_fit_produces_is_refused(field, value, tmp_path):
    import json

    AttnKNNClassifier(3).fit([[0.0], [1.0], [2.0]], [0, 1, 1]).save(tmp_path / "m")
    files = read_folder(tmp_path / "m", "classifier")
    about = {**json.loads(files["model.json"]), field: value}
    write_folder(tmp_path / "m", "classifier", {**files, "model.json": json.dumps(about).encode()})
    with pytest.raises(CorruptModel, match="m"):
        AttnKNNClassifier.load(tmp_path / "m")


def test_the_tuning_curve_is_saved_and_a_missing_device_is_named(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = AttnKNNClassifier().fit(X, (X[:, 0] > 0).astype(int))
    model.save(tmp_path / "m")
    assert AttnKNNClassifier.load(tmp_path / "m").tuning_.curve == model.tuning_.curve
    with pytest.raises(MissingDevice, match="mps"):
        AttnKNNClassifier.load(tmp_path / "m", device="mps")

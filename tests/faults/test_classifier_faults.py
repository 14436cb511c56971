"""Bad input, case by case: what the classifier promises, also under ``python -O``."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from attnknn import AttnKNNClassifier, InvalidInput

WEIGHTS = ["uniform", "distance", "softmax", "reliability"]
INDEXES = ["exact", "flat", "hnsw", "ivf"]


def blobs(rows=60, width=3, classes=3, seed=0):
    draw = np.random.default_rng(seed)
    y = np.resize(np.arange(classes), rows)
    return draw.normal(size=(rows, width)) + 4 * y[:, None], y


def sound(chances):
    assert np.isfinite(chances).all()
    assert (chances >= 0).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_an_array_raise_and_in_a_frame_infinity_names_row_and_column(bad):
    X, y = blobs()
    model = AttnKNNClassifier(3).fit(X, y)
    X[4, 1] = bad
    for call in (model.predict, lambda rows: AttnKNNClassifier(3).fit(rows, y)):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            call(X)
    if np.isinf(bad):
        with pytest.raises(InvalidInput, match=r"'b'.*4"):
            AttnKNNClassifier(3).fit(pd.DataFrame(X, columns=list("abc")), y)


@pytest.mark.parametrize("huge", [1e19, 1e20, 1e39, 1e200, 1e308, -1e308])
@pytest.mark.parametrize("index", INDEXES)
def test_finite_but_huge_numbers_are_refused_above_a_stated_bound(huge, index):
    X, y = blobs()
    settings = {"embedder": "identity", "metric": "l2", "index": index}
    model = AttnKNNClassifier(3, **settings).fit(X, y)
    X[7, 2] = huge
    for call in (
        model.predict,
        lambda rows: model.add(rows, y),
        lambda rows: AttnKNNClassifier(**settings).fit(rows, y),
    ):
        with pytest.raises(InvalidInput, match=r"row 7.*1e\+18"):
            call(X)
    assert len(model.bank_) == 60


@pytest.mark.parametrize("huge", [1e19, 1e100, 1e300])
def test_standardizing_takes_a_huge_unit_and_refuses_what_lies_a_huge_way_off(huge):
    X, y = blobs()
    sound(AttnKNNClassifier(3).fit(X * huge, y).predict_proba(X * huge))
    with pytest.raises(InvalidInput, match=r"row 0.*1e\+18"):
        AttnKNNClassifier(3).fit(X, y).predict(X[:1] * 1e30)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_more_neighbors_than_rows_uses_all_rows_and_says_so(weights, index):
    X, y = blobs(5, classes=2)
    model = AttnKNNClassifier(1000, weights=weights, index=index).fit(X, y)
    assert model.n_neighbors_ == 5
    sound(model.predict_proba(X))
    distances, rows = model.kneighbors(X, 10**9)
    assert rows.min() >= 0
    assert rows.max() < 5
    assert np.isfinite(distances).all()
    for said in model.explain(X):
        assert sorted(reason.id for reason in said.neighbors) == list(range(5))


def test_no_rows_are_refused():
    for X in (np.empty((0, 3)), pd.DataFrame({"a": []}), []):
        with pytest.raises(ValueError, match=r"0 sample|1D|2D|at least one row"):
            AttnKNNClassifier().fit(X, [])
    with pytest.raises(ValueError, match="0 feature"):
        AttnKNNClassifier().fit(np.empty((3, 0)), [0, 1, 0])


@pytest.mark.parametrize("k", [0, -1, 1.0, 2.5, True, None, 10**26, 2**31, "3", [3]])
def test_a_number_of_neighbors_out_of_range_is_refused_with_the_range(k):
    X, y = blobs()
    with pytest.raises(InvalidInput, match="n_neighbors"):
        AttnKNNClassifier(k).fit(X, y)
    if k is not None:
        with pytest.raises(InvalidInput, match="from 1 to"):
            AttnKNNClassifier(3).fit(X, y).kneighbors(X, k)


@pytest.mark.parametrize("k", [np.int64(4), np.int8(4), np.uint32(4)])
def test_integers_of_numpy_are_integers(k):
    X, y = blobs()
    model = AttnKNNClassifier(k).fit(X, y)
    assert model.n_neighbors_ == 4
    assert model.kneighbors(X, k)[1].shape == (60, 4)


@pytest.mark.parametrize("calibration", ["auto", "density", "temperature", "isotonic", "matrix", "prior", None])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_one_class_has_probability_exactly_one(rows, weights, calibration):
    X, _ = blobs(rows)
    model = AttnKNNClassifier(weights=weights, calibration=calibration).fit(X, ["only"] * rows)
    assert (model.predict_proba(np.vstack([X, X + 1e3])) == 1.0).all()
    assert set(model.predict(X)) == {"only"}


@pytest.mark.parametrize("calibration", ["auto", "density", "isotonic", "matrix", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_class_with_one_sample_stays_in_the_bank_and_can_be_predicted(weights, calibration):
    X, y = blobs(60, classes=2)
    X, y = np.vstack([X, [[50.0, 50.0, 50.0]]]), np.append(y, 9)
    model = AttnKNNClassifier(1, weights=weights, calibration=calibration).fit(X, y)
    assert model.predict([[50.0, 50.0, 50.0]]).tolist() == [9]
    sound(model.predict_proba(X))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_class_with_one_sample_each_still_fits(weights):
    X = np.eye(5) * 10
    model = AttnKNNClassifier(weights=weights).fit(X, list("abcde"))
    assert model.predict(X).tolist() == list("abcde")
    sound(model.predict_proba(X))


def test_a_label_unseen_at_fit_counts_as_wrong_in_score_and_is_refused_in_add():
    X, y = blobs()
    model = AttnKNNClassifier(3).fit(X, y)
    assert model.score(X, np.where(y == 0, 7, y)) == pytest.approx(2 / 3, abs=0.05)
    with pytest.raises(InvalidInput, match=r"\[7\].*classes="):
        model.add(X[:1], [7])


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_duplicates_with_one_label_weigh_the_same_and_in_the_same_order(weights, index):
    X = np.vstack([np.zeros((4, 2)), np.ones((4, 2)) * 5])
    y = [0] * 4 + [1] * 4
    model = AttnKNNClassifier(4, weights=weights, index=index).fit(X, y)
    first, second = model.explain([[0.0, 0.0]])[0], model.explain([[0.0, 0.0]])[0]
    assert [reason.id for reason in first.neighbors] == [0, 1, 2, 3]
    assert [reason.weight for reason in first.neighbors] == [0.25] * 4
    assert first == second


@pytest.mark.parametrize("rows", [2, 10])
@pytest.mark.parametrize("calibration", ["auto", "density", "prior", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_duplicates_with_clashing_labels_share_the_vote(weights, calibration, rows):
    X, y = np.full((rows, 2), 3.0), np.resize([0, 1], rows)
    model = AttnKNNClassifier(rows, weights=weights, calibration=calibration).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X[:1]), [[0.5, 0.5]], rtol=0, atol=1e-12)


def test_zero_distances_take_the_whole_vote_of_inverse_distance():
    model = AttnKNNClassifier(3, weights="distance", calibration=None, embedder="identity")
    model.fit([[0.0], [0.0], [1.0]], [0, 1, 1])
    np.testing.assert_allclose(model.predict_proba([[0.0]]), [[0.5, 0.5]])


@pytest.mark.parametrize("index", INDEXES)
def test_another_width_is_refused_with_both_widths(index):
    X, y = blobs()
    model = AttnKNNClassifier(3, index=index).fit(X, y)
    for width in (1, 2, 4):
        with pytest.raises(ValueError, match=rf"{width} feature.*3 feature"):
            model.predict(np.zeros((2, width)))


def test_reordered_and_renamed_columns_are_refused():
    X, y = blobs()
    model = AttnKNNClassifier(3).fit(pd.DataFrame(X, columns=list("abc")), y)
    for names in ("acb", "abd", "ABC"):
        with pytest.raises(ValueError, match="feature names"):
            model.predict(pd.DataFrame(X, columns=list(names)))


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X.astype(np.float64),
        lambda X: X.astype(np.float32),
        lambda X: X.astype(np.float16),
        lambda X: X.astype(np.int32),
        lambda X: X.astype(np.uint8),
        lambda X: X.astype(object),
        lambda X: X.tolist(),
        lambda X: [tuple(row) for row in X.tolist()],
    ],
)
def test_numbers_of_every_type_convert(convert):
    X = np.arange(40).reshape(20, 2) % 17
    y = (X[:, 0] > 8).astype(int)
    expected = AttnKNNClassifier(3, random_state=0).fit(X.astype(float), y).predict_proba(X.astype(float))
    given = convert(X)
    np.testing.assert_allclose(AttnKNNClassifier(3, random_state=0).fit(given, y).predict_proba(given), expected)


def test_booleans_are_numbers():
    X = np.array([[True, False], [False, True]] * 5)
    assert AttnKNNClassifier(1).fit(X, [0, 1] * 5).predict(X).tolist() == [0, 1] * 5


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csc_matrix, sparse.coo_matrix, sparse.csr_array])
def test_sparse_input_is_refused_with_advice(form):
    X, y = blobs()
    with pytest.raises(TypeError, match=r"toarray|todense|dense"):
        AttnKNNClassifier().fit(form(X), y)
    with pytest.raises(TypeError, match=r"toarray|todense|dense"):
        AttnKNNClassifier(3).fit(X, y).predict(form(X))


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (np.zeros(6), "Expected 2D array"),
        (np.float64(3), "Expected 2D array"),
        (np.zeros((2, 2, 2)), "dim 3"),
        (np.array([["a", "b"], ["c", "d"]]), "could not convert|convert"),
        (np.array([["a", 1], ["c", 2]], object), "could not convert"),
        ([["a"], ["b"]], "could not convert|convert"),
        (np.array([[1 + 2j], [3]]), "[Cc]omplex"),
        ([[1.0, 2.0], [3.0]], "inhomogeneous|sequence"),
        (np.array([[None, 1.0], [2.0, 3.0]], object), "NaN|None|float"),
    ],
)
def test_text_complex_ragged_and_one_dimensional_input_is_refused(X, said):
    with pytest.raises((ValueError, TypeError), match=said):
        AttnKNNClassifier().fit(X, [0, 1])
    with pytest.raises((ValueError, TypeError), match=said):
        AttnKNNClassifier(1).fit([[0.0, 1.0], [1.0, 0.0]], [0, 1]).predict(X)


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("embedder", ["identity", "standardize"])
def test_read_only_fortran_and_memory_mapped_input_works_and_stays_untouched(embedder, index, tmp_path):
    X, y = blobs()
    frozen = X.copy()
    frozen.flags.writeable = False
    np.save(tmp_path / "X.npy", X)
    inputs = {
        "read-only": frozen,
        "fortran": np.asfortranarray(X),
        "memory-mapped": np.load(tmp_path / "X.npy", mmap_mode="r"),
        "strided": np.repeat(X, 2, axis=0)[::2],
        "reversed": X[::-1].copy()[::-1],
    }
    settings = {"embedder": embedder, "index": index, "random_state": 0}
    expected = AttnKNNClassifier(5, **settings).fit(X.copy(), y).predict_proba(X.copy())
    for name, given in inputs.items():
        model = AttnKNNClassifier(5, **settings).fit(given, y)
        np.testing.assert_allclose(model.predict_proba(given), expected, rtol=0, atol=1e-9, err_msg=name)
        model.remove([0, 1])
        model.add(given[:2], y[:2])
        np.testing.assert_array_equal(given, X, err_msg=name)
    assert (tmp_path / "X.npy").read_bytes() != b""
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), X)


def test_the_model_keeps_its_own_copy_of_the_rows():
    X, y = blobs()
    model = AttnKNNClassifier(3, embedder="identity").fit(X, y)
    before = model.predict_proba(X.copy())
    asked = X.copy()
    X[:] = 0
    np.testing.assert_array_equal(model.predict_proba(asked), before)


@pytest.mark.parametrize("calibration", ["auto", "density", "isotonic", "matrix", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_constant_features_fall_back_to_the_class_shares(weights, calibration):
    X, y = np.full((20, 3), 7.0), [0] * 15 + [1] * 5
    model = AttnKNNClassifier(20, weights=weights, calibration=calibration).fit(X, y)
    sound(model.predict_proba(X))
    np.testing.assert_allclose(model.predict_proba(X[:1]), [[0.75, 0.25]], atol=0.1)
    assert all(reason.weight > 0 for reason in model.explain(X[:1])[0].neighbors)
    sound(AttnKNNClassifier(weights=weights, calibration=calibration).fit(X, y).predict_proba(X + 1))


def test_all_distances_zero_weigh_uniformly_without_trust():
    X, y = np.zeros((8, 2)), [0, 1] * 4
    for weights in ("uniform", "distance", "softmax"):
        said = AttnKNNClassifier(8, weights=weights).fit(X, y).explain(X[:1])[0]
        assert [reason.weight for reason in said.neighbors] == [0.125] * 8


def test_one_constant_column_among_others_does_no_harm():
    X, y = blobs()
    flat = np.column_stack([X, np.full(len(X), 1e6)])
    np.testing.assert_allclose(
        AttnKNNClassifier(3, random_state=0).fit(flat, y).predict_proba(flat),
        AttnKNNClassifier(3, random_state=0).fit(X, y).predict_proba(X),
        atol=1e-9,
    )


def test_two_clashing_duplicates_alone_share_the_vote_at_the_default_settings():
    model = AttnKNNClassifier().fit([[1.0, 2.0], [1.0, 2.0]], ["a", "b"])
    np.testing.assert_allclose(model.predict_proba([[1.0, 2.0]]), [[0.5, 0.5]])

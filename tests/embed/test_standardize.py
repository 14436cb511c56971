import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from sklearn.preprocessing import StandardScaler

from attnknn.data import as_table
from attnknn.embed import EMBEDDERS, Standardize, embedder_from_state
from attnknn.errors import InvalidInput

NAN = float("nan")
shapes = array_shapes(min_dims=2, max_dims=2, max_side=12)
number = st.floats(-1e18, 1e18)
row = st.tuples(
    st.none() | st.integers(-(10**6), 10**6),
    st.none() | st.integers(-(10**5), 10**5).map(lambda n: n / 100),
    st.none() | st.booleans(),
    st.none() | st.sampled_from(["red", "green", "blue", "", "(other)"]),
)
rows_of = st.lists(row, min_size=1, max_size=12)


def pandas_frame(rows):
    i, f, b, t = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "i": pd.array(i, "Int64"),
            "f": pd.array(f, "Float64"),
            "b": pd.array(b, "boolean"),
            "t": pd.Series(t, dtype=object if any(t) else "string"),
        }
    )


def polars_frame(rows):
    types = {"i": pl.Int64, "f": pl.Float64, "b": pl.Boolean, "t": pl.String}
    columns = zip(types.items(), zip(*rows, strict=True), strict=True)
    return pl.DataFrame({name: pl.Series(values, dtype=kind) for (name, kind), values in columns})


def fitted(frame):
    table = as_table(frame)
    return Standardize().fit(table), table


@given(arrays(np.float64, shapes, elements=number))
def test_training_columns_have_mean_0_and_deviation_1(rows):
    vectors = Standardize().fit(rows).transform(rows).astype(np.float64)
    for at in range(rows.shape[1]):
        spread = np.ptp(rows[:, at])
        if spread > max(1e-300, 1e-9 * np.abs(rows[:, at]).max()):
            np.testing.assert_allclose(vectors[:, at].mean(), 0, atol=1e-5)
            np.testing.assert_allclose(vectors[:, at].std(), 1, rtol=1e-5)
        elif spread == 0:
            assert not vectors[:, at].any()


@given(arrays(np.float64, shapes, elements=st.integers(-1000, 1000).map(float)))
def test_agrees_with_scikit_learn_on_ordinary_numbers(rows):
    ours, theirs = Standardize().fit(rows).transform(rows), StandardScaler().fit_transform(rows)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@given(rows_of)
def test_describe_gives_training_rows_back(rows):
    embedder, table = fitted(pandas_frame(rows))
    described = embedder.describe(embedder.transform(table))
    assert len(described) == len(rows)
    for (i, f, b, t), found in zip(rows, described, strict=True):
        assert (found["i"], found["b"], found["t"]) == (i, b, t)
        assert type(found["i"]) is (int if i is not None else type(None))
        assert found["f"] == (f if f is None else pytest.approx(f, rel=1e-5, abs=1e-3))
    json.dumps(described, allow_nan=False)


@given(rows_of, rows_of)
def test_state_survives_json_bit_for_bit(train, test):
    embedder, _ = fitted(pandas_frame(train))
    twin = embedder_from_state(json.loads(json.dumps(embedder.state(), allow_nan=False)))
    assert twin.dim == embedder.dim
    vectors = embedder.transform(as_table(pandas_frame(test)))
    np.testing.assert_array_equal(vectors, twin.transform(as_table(pandas_frame(test))))
    assert embedder.describe(vectors) == twin.describe(vectors)


@given(rows_of, rows_of)
def test_pandas_and_polars_give_identical_vectors(train, test):
    ours, _ = fitted(pandas_frame(train))
    theirs, _ = fitted(polars_frame(train))
    assert ours.state() == theirs.state()
    np.testing.assert_array_equal(
        ours.transform(as_table(pandas_frame(test))), theirs.transform(as_table(polars_frame(test)))
    )


@given(rows_of, st.randoms(use_true_random=False))
def test_the_order_of_training_rows_does_not_matter(rows, random):
    mixed = list(rows)
    random.shuffle(mixed)
    assert fitted(pandas_frame(rows))[0].state() == fitted(pandas_frame(mixed))[0].state()


@given(rows_of)
def test_a_row_alone_is_encoded_as_among_others(rows):
    frame = pandas_frame(rows)
    embedder, table = fitted(frame)
    alone = [embedder.transform(as_table(frame.iloc[[at]])) for at in range(len(rows))]
    np.testing.assert_array_equal(np.concatenate(alone), embedder.transform(table))


@example(np.array([[1.7976931348623157e308], [0.5], *[[-1.8e307]] * 10]))
@given(arrays(np.float64, shapes, elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_finite_training_value_overflows_or_warns(rows):
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        embedder = Standardize().fit(rows)
        vectors = embedder.transform(rows)
        described = embedder.describe(vectors)
    assert np.isfinite(vectors).all()
    json.dumps(described, allow_nan=False)


def test_values_near_the_largest_float_still_have_their_order():
    rows = np.array([[-1.7e308], [0.0], [1e300], [1.7e308]])
    vectors = Standardize().fit(rows).transform(rows)
    assert vectors[0] < vectors[1] <= vectors[2] < vectors[3]
    np.testing.assert_allclose(vectors.std(), 1, rtol=1e-5)


def test_a_query_too_remote_for_float32_is_refused_by_row_and_column():
    embedder = Standardize().fit(np.array([[0.0], [1.0]]))
    assert np.isfinite(embedder.transform(np.array([[1e17]]))).all()
    with pytest.raises(InvalidInput, match="column 'x0', row 1: 1e\\+300 lies more than 1e\\+18"):
        embedder.transform(np.array([[0.0], [1e300]]))


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e-320, 1e300, 123456789.123])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_constant_column_is_exactly_zero_and_reads_back(value, count):
    rows = np.full((count, 1), value)
    embedder = Standardize().fit(rows)
    assert not embedder.transform(rows).any()
    assert embedder.describe(embedder.transform(rows))[0]["x0"] == pytest.approx(value, rel=1e-5)
    assert np.isfinite(embedder.transform(rows + 1)).all()


def test_a_spread_of_mere_rounding_is_not_blown_up():
    rows = np.array([[0.1 + 0.2], [0.3], [0.3]])
    assert np.abs(Standardize().fit(rows).transform(rows)).max() < 1e-12


def test_missing_numbers_are_the_mean_with_a_flag_where_fit_saw_some():
    with_gaps, table = fitted(pd.DataFrame({"a": [1.0, NAN, 3.0]}))
    np.testing.assert_array_equal(with_gaps.transform(table), [[-1, 0], [0, 1], [1, 0]])
    without, _ = fitted(pd.DataFrame({"a": [1.0, 3.0]}))
    np.testing.assert_array_equal(without.transform(table), [[-1], [0], [1]])


def test_a_column_of_nothing_fits_and_takes_any_kind_later():
    embedder, table = fitted(pd.DataFrame({"a": [None, None], "b": [1, 2]}))
    assert embedder.describe(embedder.transform(table)) == [{"a": None, "b": 1}, {"a": None, "b": 2}]
    for later in (["x"], [True], [2.5]):
        assert not embedder.transform(as_table(pd.DataFrame({"a": later, "b": [1.5]}))).any()
    text, _ = fitted(pd.DataFrame({"a": ["x", None]}))
    gone = as_table(pd.DataFrame({"a": pd.Series([None], dtype=object)}))
    assert text.describe(text.transform(gone)) == [{"a": None}]


def test_two_categories_lie_at_distance_1_and_missing_is_one_of_them():
    embedder, table = fitted(pd.DataFrame({"c": ["a", "b", None, "c"]}))
    vectors = embedder.transform(table).astype(np.float64)
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    np.testing.assert_allclose(gaps, 1 - np.eye(4), atol=1e-6)


def test_a_category_or_gap_first_seen_at_predict_is_all_zeros():
    embedder, _ = fitted(pd.DataFrame({"c": ["a", "b"], "b": [True, False]}))
    new = as_table(pd.DataFrame({"c": ["z", None], "b": pd.array([True, None], "boolean")}))
    vectors = embedder.transform(new)
    assert not vectors[:, :2].any()
    assert embedder.describe(vectors) == [{"c": None, "b": True}, {"c": None, "b": None}]


def test_a_boolean_seen_on_one_side_only_has_two_places_all_the_same():
    embedder, _ = fitted(pd.DataFrame({"b": [True, True]}))
    vectors = embedder.transform(as_table(pd.DataFrame({"b": [True, False]})))
    np.testing.assert_allclose(np.linalg.norm(vectors[0] - vectors[1]), 1, rtol=1e-6)
    assert embedder.describe(vectors) == [{"b": True}, {"b": False}]


def test_up_to_256_categories_keep_their_places():
    names = [f"c{i}" for i in range(256)]
    embedder, table = fitted(pd.DataFrame({"c": names}))
    assert embedder.dim == 256
    assert [found["c"] for found in embedder.describe(embedder.transform(table))] == names


def test_beyond_256_categories_the_rare_ones_share_a_place():
    names = [f"c{i:03}" for i in range(300)]
    embedder, _ = fitted(pd.DataFrame({"c": names + names[45:] + [None]}))
    assert embedder.dim == 257  # 255 kept, missing, other
    asked = as_table(pd.DataFrame({"c": ["c045", "c299", "c000", "c044", "never", None]}))
    found = [row["c"] for row in embedder.describe(embedder.transform(asked))]
    assert found == ["c045", "c299", "(other)", "(other)", "(other)", None]


def test_numbers_where_categories_were_are_read_as_their_text():
    embedder, _ = fitted(pd.DataFrame({"c": pd.Categorical([1, 2, 3])}))
    plain = as_table(pd.DataFrame({"c": [2, 3]}))
    assert embedder.describe(embedder.transform(plain)) == [{"c": "2"}, {"c": "3"}]


def test_text_where_numbers_were_is_refused():
    embedder, _ = fitted(pd.DataFrame({"n": [1, 2]}))
    with pytest.raises(InvalidInput, match="column 'n' was numeric at fit, got categorical"):
        embedder.transform(as_table(pd.DataFrame({"n": ["1", "x"]})))


def test_wrong_columns_are_named():
    embedder, _ = fitted(pd.DataFrame({"a": [1, 2], "b": [1, 2]}))
    for names, message in [
        (["a"], "2 columns of fit, got 1: missing 'b'"),
        (["a", "b", "c"], "got 3: unknown 'c'"),
        (["a", "B"], "missing 'b'; unknown 'B'"),
        (["b", "a"], "another order than at fit: expected 'a', 'b'"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            embedder.transform(as_table(pd.DataFrame([[1] * len(names)], columns=names)))


def test_wrong_widths_give_both_widths():
    embedder = Standardize().fit(np.eye(3))
    with pytest.raises(InvalidInput, match="expected 3 columns as at fit, got 2"):
        embedder.transform(np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match=r"\(n, 3\), got \(1, 2\)"):
        embedder.describe(np.zeros((1, 2)))


def test_an_array_cannot_stand_for_categories():
    embedder, _ = fitted(pd.DataFrame({"c": ["a", "b"]}))
    with pytest.raises(InvalidInput, match="pass a frame"):
        embedder.transform(np.zeros((1, 1)))


def test_nothing_to_learn_from_is_refused():
    for empty in (np.zeros((0, 2)), np.zeros((2, 0))):
        with pytest.raises(InvalidInput, match="at least one row and one column"):
            Standardize().fit(empty)
    with pytest.raises(InvalidInput, match="fit the embedder first"):
        Standardize().transform(np.zeros((1, 1)))
    assert Standardize().fit(np.eye(2)).transform(np.zeros((0, 2))).shape == (0, 2)


def test_a_fraction_added_later_to_a_column_of_whole_numbers_is_not_rounded():
    embedder = Standardize().fit(np.array([[1.0], [2.0], [3.0]]))
    assert embedder.describe(embedder.transform(np.array([[2.5], [2.0]]))) == [{"x0": 2.5}, {"x0": 2}]


@given(arrays(np.float64, shapes, elements=st.integers(-(10**5), 10**5).map(lambda n: n / 1000)))
def test_input_stays_untouched_read_only_and_in_any_order(rows):
    assume(rows.size)
    kept = rows.copy()
    rows.flags.writeable = False
    vectors = Standardize().fit(rows).transform(rows)
    np.testing.assert_array_equal(rows, kept)
    np.testing.assert_array_equal(vectors, Standardize().fit(rows).transform(np.asfortranarray(rows)))
    assert vectors.dtype == np.float32


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"kind": "pickle"},
        {"kind": []},
        {"kind": "standardize"},
        {"kind": "standardize", "named": True, "columns": [{"kind": "number"}]},
        {"kind": "standardize", "named": True, "columns": [{"kind": "spline", "name": "a"}]},
        {"kind": "standardize", "named": True, "columns": 3},
        {"kind": "identity", "named": True, "columns": [{}]},
    ],
)
def test_a_state_that_is_not_ours_is_refused(state):
    with pytest.raises(InvalidInput):
        embedder_from_state(state)


@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_the_dictionary_names_what_state_names(name):
    embedder = EMBEDDERS[name]().fit(np.eye(2))
    assert embedder.state()["kind"] == name
    assert type(embedder_from_state(embedder.state())) is EMBEDDERS[name]

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attnknn.data import as_table
from attnknn.embed import Identity, embedder_from_state
from attnknn.errors import InvalidInput

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("given_type", "out"), [("f4", "f4"), ("f8", "f8"), ("f2", "f8"), ("i8", "f8"), ("?", "f8"), ("u1", "f8")]
)
def test_numbers_pass_as_they_are(given_type, out):
    rows = np.array([[0, 1], [1, 0]], dtype=given_type)
    vectors = Identity().fit(rows).transform(rows)
    assert vectors.dtype == np.dtype(out)
    np.testing.assert_array_equal(vectors, rows)


@given(arrays(np.float64, (3, 2), elements=finite))
def test_describe_gives_the_very_numbers_back(rows):
    identity = Identity().fit(rows)
    described = identity.describe(identity.transform(rows))
    assert [[row["x0"], row["x1"]] for row in described] == rows.tolist()
    json.dumps(described, allow_nan=False)


def test_float32_is_described_by_its_shortest_decimals():
    rows = np.array([[7.4], [0.1]], dtype=np.float32)
    assert Identity().fit(rows).describe(rows) == [{"x0": 7.4}, {"x0": 0.1}]


def test_tables_of_numbers_and_booleans_work():
    table = as_table(pd.DataFrame({"n": [1, 2], "f": [0.5, 1.5], "b": [True, False]}))
    identity = Identity().fit(table)
    assert identity.dim == 3
    vectors = identity.transform(table)
    assert vectors.dtype == np.float64
    assert identity.describe(vectors) == [{"n": 1, "f": 0.5, "b": True}, {"n": 2, "f": 1.5, "b": False}]
    twin = embedder_from_state(json.loads(json.dumps(identity.state())))
    assert twin.describe(twin.transform(table)) == identity.describe(vectors)


@pytest.mark.parametrize("values", [["a", "b"], [1.0, None]])
def test_text_and_gaps_are_refused_with_advice(values):
    with pytest.raises(InvalidInput, match=r"column 'c' .*standardize"):
        Identity().fit(as_table(pd.DataFrame({"ok": [1, 2], "c": values})))
    fitted = Identity().fit(as_table(pd.DataFrame({"c": [1.0, 2.0]})))
    with pytest.raises(InvalidInput, match=r"column 'c' .*standardize"):
        fitted.transform(as_table(pd.DataFrame({"c": values})))


def test_an_unfitted_identity_and_another_width_are_refused():
    with pytest.raises(InvalidInput, match="fit the embedder first"):
        Identity().transform(np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match="at least one column"):
        Identity().fit(np.zeros((3, 0)))
    with pytest.raises(InvalidInput, match="expected 2 columns as at fit, got 3"):
        Identity().fit(np.zeros((1, 2))).transform(np.zeros((1, 3)))
    with pytest.raises(InvalidInput, match=r"\(n, 2\), got \(1, 3\)"):
        Identity().fit(np.zeros((1, 2))).describe(np.zeros((1, 3)))

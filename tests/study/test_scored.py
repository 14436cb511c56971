"""What a cell keeps of its predictions: in 32 bits they say what they said in 64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnknn import metrics
from attnknn.study.scored import narrowed


@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 60), classes=st.integers(2, 12), power=st.integers(6, 15)
)
def test_winners_and_so_every_score_that_counts_rows_are_those_of_all_digits(seed, rows, classes, power):
    draw = np.random.default_rng(seed)
    tied = draw.integers(1, 3, (rows, classes)) / 2 + draw.random((rows, classes)) * 10.0**-power
    said, labels = tied / tied.sum(axis=1, keepdims=True), draw.integers(classes, size=rows)
    kept = narrowed(said)
    assert kept.dtype == np.float32
    np.testing.assert_array_equal(kept.argmax(axis=1), said.argmax(axis=1))
    np.testing.assert_allclose(kept, said, atol=2e-7)
    read = kept.astype(np.float64) / kept.astype(np.float64).sum(axis=1, keepdims=True)
    assert metrics.accuracy(read, labels) == metrics.accuracy(said, labels)
    assert metrics.f1_macro(read, labels) == metrics.f1_macro(said, labels)


def test_what_ties_in_all_digits_goes_to_the_first():
    assert narrowed(np.full((3, 4), 0.25)).tolist() == [[0.25] * 4] * 3

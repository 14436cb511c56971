"""Noise: as many labels as asked for, each to another class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnknn.data.noise import flip_labels
from attnknn.errors import InvalidInput


@given(
    codes=st.lists(st.integers(0, 4), max_size=80),
    rate=st.floats(0, 1),
    kind=st.sampled_from(["symmetric", "asymmetric"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_asked_share_of_rows_gets_another_class(codes, rate, kind, seed):
    given_codes = np.array(codes, np.int64)
    before = given_codes.copy()
    noisy = flip_labels(given_codes, rate, kind=kind, classes=5, random=np.random.default_rng(seed))
    flipped = noisy != before
    assert abs(flipped.sum() - rate * len(codes)) <= 0.5 + 1e-9
    assert np.isin(noisy, range(5)).all()
    assert (given_codes == before).all()
    if kind == "asymmetric":
        assert (noisy[flipped] == (before[flipped] + 1) % 5).all()


def test_symmetric_noise_reaches_every_other_class_alike():
    noisy = flip_labels(np.full(30_000, 2), 1.0, classes=4, random=np.random.default_rng(0))
    counts = np.bincount(noisy, minlength=4)
    assert counts[2] == 0
    assert np.abs(counts[[0, 1, 3]] / 10_000 - 1).max() < 0.05


def test_a_seed_gives_the_same_noise_again():
    draws = [flip_labels(np.arange(50) % 3, 0.4, classes=3, random=np.random.default_rng(7)) for _ in range(2)]
    assert (draws[0] == draws[1]).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rate": 1.5}, "rate=1.5"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"classes": 1}, "classes=1"),
        ({"classes": 2}, "0 to 2"),
        ({"kind": "odd"}, "'odd'"),
        ({"codes": [0.5, 1.0]}, "float64"),
        ({"codes": [[0, 1]]}, "(1, 2)"),
    ],
)
def test_nonsense_is_refused(change, said):
    arguments = {"codes": [0, 1, 2], "rate": 0.5, "classes": 3, "random": np.random.default_rng(0), **change}
    with pytest.raises(InvalidInput) as caught:
        flip_labels(arguments.pop("codes"), arguments.pop("rate"), **arguments)
    assert said in str(caught.value)

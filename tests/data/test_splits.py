import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from attnknn.data import as_table, duplicate_groups, folds, split
from attnknn.errors import InvalidInput

NAN = float("nan")
labels_of = st.lists(st.sampled_from("abcd"), min_size=1, max_size=60)


@st.composite
def labelled_groups(draw):
    labels = draw(labels_of)
    groups = draw(st.lists(st.integers(0, 20), min_size=len(labels), max_size=len(labels)))
    return labels, groups


def test_rows_with_the_same_content_share_a_number_by_first_appearance():
    rows = np.array([[1.0, NAN], [0.0, 1.0], [1.0, NAN], [-0.0, 1.0], [NAN, 1.0]])
    assert duplicate_groups(rows).tolist() == [0, 1, 0, 1, 2]
    assert duplicate_groups(rows).dtype == np.int64


def test_nan_of_any_bit_pattern_is_one_nan():
    rows = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)[:, None]
    assert duplicate_groups(rows).tolist() == [0, 0]


def test_tables_frames_images_and_read_only_arrays_are_grouped_too():
    frame = pd.DataFrame({"a": [1, 1, 1, None], "b": ["x", "x", None, None]})
    assert duplicate_groups(frame).tolist() == [0, 0, 1, 2]
    assert duplicate_groups(as_table(frame)).tolist() == [0, 0, 1, 2]
    images = np.zeros((3, 4, 4, 3), np.uint8)
    images[1, 0, 0, 0] = 1
    images.flags.writeable = False
    assert duplicate_groups(images).tolist() == [0, 1, 0]
    assert duplicate_groups(np.asfortranarray(np.eye(3, dtype=np.float32)[[0, 1, 0]])).tolist() == [0, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.5, NAN, -0.0])), min_size=1, max_size=30))
def test_groups_agree_with_pandas(rows):
    array = np.array(rows, dtype=np.float64)
    expected = pd.DataFrame(array + 0.0).groupby([0, 1], dropna=False, sort=False).ngroup()
    assert duplicate_groups(array).tolist() == expected.tolist()


def test_what_is_not_rows_of_numbers_is_refused():
    for bad in (np.array(1.0), np.array([[None]], object), np.array([[1j]])):
        with pytest.raises(InvalidInput, match="rows of numbers or text"):
            duplicate_groups(bad)


def test_fifty_thousand_wide_rows_group_within_a_second():
    rows = np.random.default_rng(0).normal(size=(50_000, 256))
    start = time.perf_counter()
    assert len(np.unique(duplicate_groups(rows))) == 50_000
    assert time.perf_counter() - start < 3.0  # three times the promise: the machine is shared


@given(labelled_groups(), st.floats(0.05, 0.95), st.integers(0, 99), st.booleans())
def test_a_split_keeps_its_promises(drawn, share, seed, grouped):
    labels, groups = drawn
    train, test = split(labels, test=share, seed=seed, groups=groups if grouped else None)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert train.tolist() == sorted(train)
    assert test.tolist() == sorted(test)
    assert {labels[i] for i in train} == set(labels)
    if grouped:
        assert not {groups[i] for i in train} & {groups[i] for i in test}
    again = split(labels, test=share, seed=seed, groups=groups if grouped else None)
    np.testing.assert_array_equal(test, again[1])


@given(labels_of, st.floats(0.05, 0.95), st.integers(0, 99))
def test_each_class_and_the_whole_keep_their_share_within_a_row(labels, share, seed):
    _, test = split(labels, test=share, seed=seed)
    for name in set(labels):
        count = labels.count(name)
        held = sum(labels[i] == name for i in test)
        assert abs(held - share * count) <= 1.0 + 1e-9 or held == count - 1


@given(labelled_groups(), st.integers(2, 4), st.integers(0, 99), st.booleans())
def test_folds_keep_their_promises(drawn, n, seed, grouped):
    labels, groups = drawn
    try:
        cuts = folds(labels, n, seed=seed, groups=groups if grouped else None)
    except InvalidInput:
        reject()  # too few groups for so many folds
    assert len(cuts) == n
    held = np.concatenate([test for _, test in cuts])
    assert len(held) == len(set(held.tolist()))
    for train, test in cuts:
        assert len(test)
        assert sorted([*train, *test]) == list(range(len(labels)))
        assert {labels[i] for i in train} == set(labels)
        if grouped:
            assert not {groups[i] for i in train} & {groups[i] for i in test}


@given(st.lists(st.sampled_from("ab"), min_size=8, max_size=60), st.integers(2, 4), st.integers(0, 99))
def test_folds_of_single_rows_are_even_and_cover_every_class_of_two(labels, n, seed):
    labels = [*labels, *"aabb"]
    held = [test for _, test in folds(labels, n, seed=seed)]
    assert sorted(np.concatenate(held).tolist()) == list(range(len(labels)))
    sizes = [len(test) for test in held]
    assert max(sizes) - min(sizes) <= 2
    for name in "ab":
        counts = [sum(labels[i] == name for i in test) for test in held]
        assert max(counts) - min(counts) <= 1


def test_a_class_of_one_row_stays_in_train():
    labels = ["rare"] + ["a"] * 20 + ["b"] * 20
    assert 0 in split(labels, test=0.9)[0]
    assert all(0 in train for train, _ in folds(labels, 5))


def test_another_seed_gives_other_rows():
    labels = [0, 1] * 50
    assert split(labels, seed=1)[1].tolist() != split(labels, seed=2)[1].tolist()


def test_duplicates_never_straddle_a_split_of_many():
    draw = np.random.default_rng(3)
    rows = draw.integers(0, 4, size=(500, 3)).astype(float)
    groups = duplicate_groups(rows)
    train, test = split(draw.integers(0, 3, size=500), test=0.3, groups=groups)
    assert not set(groups[train]) & set(groups[test])
    assert 0.25 < len(test) / 500 < 0.35


@pytest.mark.parametrize("test", [0, 1, -0.1, 1.5, NAN, True, "x", None])
def test_a_share_outside_0_and_1_is_refused(test):
    with pytest.raises(InvalidInput, match="test must lie between 0 and 1"):
        split([0, 1], test=test)


@pytest.mark.parametrize("n", [0, 1, 2.0, True, "3"])
def test_fewer_than_two_folds_are_refused(n):
    with pytest.raises(InvalidInput, match="n must be a whole number"):
        folds([0, 1, 0, 1], n)


def test_labels_and_groups_that_cannot_be_used_are_refused():
    with pytest.raises(InvalidInput, match="empty"):
        split([])
    with pytest.raises(InvalidInput, match="one-dimensional"):
        split([[0, 1]])
    with pytest.raises(InvalidInput, match="NaN"):
        split([0.0, NAN])
    with pytest.raises(InvalidInput, match="mixture"):
        split(np.array([1, "a", None], object))
    with pytest.raises(InvalidInput, match="3 groups for 2 labels"):
        split([0, 1], groups=[0, 1, 2])
    with pytest.raises(InvalidInput, match="seed"):
        split([0, 1], seed=-1)
    with pytest.raises(InvalidInput, match="5 folds need 5 groups"):
        folds([0, 0, 0], 5)
    assert len(split([0, 0, 1, 1], seed=np.int64(3))[0]) > 0

"""A bank may keep what its vectors were made from: row by row, through edits, compaction and the disk."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from attnknn import InvalidInput, MemoryBank


def filled(rows=30, dtype=np.float32, **options):
    draw = np.random.default_rng(0)
    bank = MemoryBank(2, features=3, **options)
    features = draw.normal(size=(rows, 3)).astype(dtype)
    bank.add(draw.normal(size=(rows, 2)), np.arange(rows) % 2, features=features)
    return bank, features


def held(bank, ids):
    return bank.features(bank.rows(ids))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_stay_with_their_ids_through_edits(dtype):
    bank, features = filled(dtype=dtype)
    bank.remove([0, 7, 8])
    bank.add(np.zeros((2, 2)), [0, 1], ids=["a", "b"], features=[[1, 2, 3], [4, 5, 6]])
    kept = [at for at in range(30) if at not in (0, 7, 8)]
    np.testing.assert_array_equal(held(bank, kept), features[kept])
    np.testing.assert_array_equal(held(bank, ["b", "a"]), [[4, 5, 6], [1, 2, 3]])
    bank.to_files()  # compacts
    np.testing.assert_array_equal(held(bank, [*kept, "a"]), np.vstack([features[kept], [1, 2, 3]]))


@pytest.mark.parametrize("way", ["save", "pickle", "copy"])
def test_features_come_back_to_the_bit(way, tmp_path):
    bank, features = filled()
    bank.remove([3])
    if way == "save":
        bank.save(tmp_path)
        back = MemoryBank.load(tmp_path)
    else:
        back = pickle.loads(pickle.dumps(bank)) if way == "pickle" else bank.copy()
    kept = [at for at in range(30) if at != 3]
    np.testing.assert_array_equal(held(back, kept), features[kept])
    back.remove([4])
    assert 4 in bank


def test_a_removed_row_leaves_nothing_of_its_features_behind():
    bank, features = filled()
    secret = features[5].tobytes()
    assert any(secret in content for content in bank.to_files().values())
    bank.remove([5])
    assert not any(secret in content for content in bank.to_files().values())


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (None, r"\(1, 3\)"),
        ([[1.0, 2.0]], r"\(1, 3\).*\(1, 2\)"),
        ([[1.0, 2.0, 3.0]] * 2, r"\(1, 3\).*\(2, 3\)"),
        ([[1.0, np.nan, 3.0]], "NaN"),
        ([["a", "b", "c"]], "numbers"),
    ],
)
def test_features_that_do_not_fit_are_refused_and_nothing_is_added(features, message):
    bank, _ = filled()
    with pytest.raises(InvalidInput, match=message):
        bank.add([[0.0, 0.0]], [0], features=features)
    assert len(bank) == 30


def test_a_bank_that_keeps_none_refuses_some():
    bank = MemoryBank(2)
    with pytest.raises(InvalidInput, match="features"):
        bank.add([[0.0, 0.0]], [0], features=[[1.0]])
    bank.add([[0.0, 0.0]], [0])
    assert bank.features(bank.live).shape == (1, 0)

"""HNSW and IVF still find what lies beyond a region that was removed."""

import numpy as np
import pytest

from attnknn import MemoryBank


@pytest.mark.parametrize("index", ["flat", "hnsw", "ivf"])
def test_recall_holds_around_whole_clusters_that_were_removed(index):
    draw = np.random.default_rng(0)
    centers = 3 * draw.normal(size=(50, 32))
    which = draw.integers(0, 50, 6000)
    vectors = (centers[which] + draw.normal(size=(6000, 32))).astype(np.float32)
    bank, truth = MemoryBank(32, index=index), MemoryBank(32)
    for each in (bank, truth):
        each.add(vectors, which)
        each.remove(np.flatnonzero(which < 20).tolist())
    queries = (centers[:20].repeat(5, axis=0) + draw.normal(size=(100, 32))).astype(np.float32)
    found, right = bank.search(queries, 10), truth.search(queries, 10)
    recall = np.mean(
        [len(set(a) & set(b)) / 10 for a, b in zip(found.ids.tolist(), right.ids.tolist(), strict=True)]
    )
    assert recall >= 0.95


def test_one_remote_row_does_not_slow_or_change_the_search_once_it_is_removed():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(500, 8))
    bank, plain = MemoryBank(8), MemoryBank(8)
    plain.add(vectors, np.zeros(500, int))
    bank.add(vectors, np.zeros(500, int))
    bank.add(np.full((1, 8), 1e9), [0], ids=["remote"])
    bank.remove(["remote"])
    assert bank._index._keys.longest < 100
    near, right = bank.search(vectors[:50], 5), plain.search(vectors[:50], 5)
    np.testing.assert_array_equal(near.rows, right.rows)

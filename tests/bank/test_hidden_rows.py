"""What the exact index does when rows are forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from attnknn.bank import MemoryBank
from attnknn.ops import kernels


@pytest.fixture
def bank():
    vectors = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
    vectors[7] *= 1000  # remote
    bank = MemoryBank(6)
    bank.add(vectors, np.zeros(500, int), ids=range(500))
    return bank


def test_a_row_is_forgotten_without_a_look_at_the_table(bank, monkeypatch):
    monkeypatch.setattr(kernels, "wide_float", lambda device: pytest.fail("it went through all numbers"))
    bank.remove([3])
    bank.remove([7])


def test_a_remote_row_that_is_gone_loosens_no_bound(bank):
    before = bank._index._keys.longest
    bank.remove([7])
    left = np.delete(np.arange(500), 7)
    vectors = bank.vectors(left).astype(np.float64)
    centered = vectors - bank._index._keys.center.numpy()
    longest = np.linalg.norm(centered, axis=1).max()
    assert longest <= bank._index._keys.longest <= 1.001 * longest < before / 10


def test_short_vectors_keep_a_bound_above_them(bank):
    short = MemoryBank(6)
    short.add(bank.vectors(np.arange(500)) * np.float32(1e-26), np.zeros(500, int), ids=range(500))
    short.remove([7])
    left = short.vectors(np.delete(np.arange(500), 7)).astype(np.float64)
    centered = left - short._index._keys.center.numpy()
    assert np.linalg.norm(centered, axis=1).max() <= short._index._keys.longest

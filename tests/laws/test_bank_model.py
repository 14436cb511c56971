"""10,000 random operations: every bank agrees with a plain dictionary."""

import numpy as np
import pytest
from bank_model import run_operations

from attnknn.bank import MemoryBank

SHARES = [
    ("exact", "l2", 3000),
    ("exact", "cosine", 1500),
    ("exact", "ip", 1500),
    ("flat", "l2", 1000),
    ("flat", "cosine", 500),
    ("hnsw", "l2", 1000),
    ("hnsw", "cosine", 500),
    ("ivf", "l2", 1000),
]


@pytest.mark.parametrize(("index", "metric", "operations"), SHARES)
def test_random_operations_agree_with_a_plain_dictionary(index, metric, operations, monkeypatch):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    if index == "ivf":
        from attnknn.bank.faiss import IvfIndex

        monkeypatch.setattr(IvfIndex, "SMALLEST", 40)  # so that a small bank has cells
    counts = run_operations(operations, seed, index, metric)
    print(counts)
    assert set(counts) == {"add", "remove", "relabel", "move", "search", "refuse", "save"}


def test_the_suite_runs_ten_thousand_operations():
    assert sum(operations for _, _, operations in SHARES) == 10_000


def test_a_bank_that_forgets_an_edit_is_found_out(monkeypatch):
    """The comparison itself can fail."""
    monkeypatch.setattr(MemoryBank, "update", lambda *args, **kwargs: None)
    with pytest.raises(AssertionError, match="seed 1, operation"):
        run_operations(2000, seed=1)

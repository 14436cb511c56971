"""Reliability: equal to a naive recomputation after any edits, and no leak of a query's own label."""

import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from attnknn.bank import MemoryBank
from attnknn.bank.reliability import NEIGHBORS
from attnknn.ops import METRICS

seeds = st.integers(0, 2**32 - 1)


def naive(vectors, labels, groups, metric, leaving_out=None):
    """(agreements + 1) / (judges + 2), each row judged by its 10 nearest outside its group."""
    result = []
    for row in range(len(vectors)):
        if metric == "l2":
            gaps = np.sqrt(np.square(vectors - vectors[row]).sum(axis=1))
        else:
            held = vectors
            if metric == "cosine":
                held = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
            gaps = -(held * held[row]).sum(axis=1)
        out = (np.arange(len(vectors)) == row) | ((groups == groups[row]) & (groups[row] >= 0))
        judges = [at for at in np.argsort(gaps, kind="stable") if not out[at]][:NEIGHBORS]
        if leaving_out is not None:
            query = leaving_out[row]
            judges = [
                at for at in judges if at != query and not (groups[at] == groups[query] and groups[query] >= 0)
            ]
        result.append((sum(labels[at] == labels[row] for at in judges) + 1) / (len(judges) + 2))
    return np.array(result)


def drawn(rng, rows, kind):
    if kind == "ints":  # ties everywhere, yet all distances exact
        return rng.integers(-2, 3, (rows, 2)).astype(float)
    vectors = rng.normal(size=(rows, 3))
    return vectors if kind == "normal" else vectors[rng.integers(0, max(1, rows // 3), rows)]


@pytest.mark.parametrize("index", ["exact", "flat"])
@given(
    seed=seeds,
    kind=st.sampled_from(["normal", "ints", "copies"]),
    metric=st.sampled_from(METRICS),
    edits=st.lists(st.sampled_from(["add", "remove", "relabel", "move", "read", "copy"]), max_size=14),
)
@example(  # a tie at the radius that rounding told apart
    seed=302164,
    kind="copies",
    metric="cosine",
    edits=["copy", "relabel", "relabel", "read", "add", "copy", "move"],
)
@settings(max_examples=40)
def test_equals_a_naive_recomputation_after_any_edits(index, seed, kind, metric, edits):
    if kind == "ints" and metric == "cosine":
        kind = "normal"  # parallel vectors tie in truth, not in floating point
    if index == "flat" and kind != "normal":
        kind = "normal"  # more ties than FAISS's candidates
    rng = np.random.default_rng(seed)
    bank, groups = MemoryBank(len(drawn(rng, 1, kind)[0]), index=index, metric=metric), {}

    def add(rows, vectors=None):
        held = rng.integers(-1, 6, rows)
        fresh = drawn(rng, rows, kind) if vectors is None else vectors
        groups.update(zip(bank.add(fresh, rng.integers(0, 3, rows), groups=held), held, strict=True))

    add(rng.integers(1, 40))
    for edit in [*edits, "read"]:
        some = [bank.ids[at] for at in rng.permutation(len(bank))[: rng.integers(1, 4)]]
        if edit == "add" or not len(bank):
            add(rng.integers(1, 6))
        elif edit == "copy":  # rows on top of others: the ties that a radius meets exactly
            add(len(some), bank.vectors(bank.rows(some)))
        elif edit == "remove":
            bank.remove(some)
        elif edit == "relabel":
            bank.update(some, labels=rng.integers(0, 3, len(some)))
        elif edit == "move":
            place = bank.live[rng.integers(0, len(bank), len(some))]
            onto = bank.vectors(place) if rng.random() < 0.5 else drawn(rng, len(some), kind)
            bank.update(some, vectors=onto)
        else:
            live = bank.live
            held = np.array([groups[name] for name in bank.ids])
            vectors, labels = bank.vectors(live).astype(float), bank.labels(live)
            np.testing.assert_allclose(bank.reliability(live), naive(vectors, labels, held, metric))
            out = rng.integers(0, len(live), len(live))
            expected = naive(vectors, labels, held, metric, leaving_out=out)
            np.testing.assert_allclose(bank.reliability(live, leaving_out=live[out]), expected)


@given(seed=seeds)
@settings(max_examples=10)
def test_never_reaches_zero_or_one_so_that_its_logarithm_is_finite(seed):
    rng = np.random.default_rng(seed)
    bank = MemoryBank(2)
    bank.add(rng.normal(size=(30, 2)), rng.integers(0, 2, 30))
    values = bank.reliability(bank.live)
    assert ((values >= 1 / 12) & (values <= 11 / 12)).all()


def test_a_row_that_nobody_judges_is_even():
    bank = MemoryBank(2)
    bank.add([[0.0, 1.0]], [3])
    assert bank.reliability([0]).tolist() == [0.5]
    assert bank.reliability([0], leaving_out=[0]).tolist() == [0.5]


def test_takes_rows_of_any_shape():
    rng = np.random.default_rng(3)
    bank = MemoryBank(2)
    bank.add(rng.normal(size=(30, 2)), rng.integers(0, 2, 30))
    flat = bank.reliability(bank.live)
    rows = rng.integers(0, 30, (4, 5))
    np.testing.assert_array_equal(bank.reliability(rows), flat[rows])
    queries = rng.integers(0, 30, (4, 1))
    pairs = zip(rows, queries, strict=True)
    apart = [[bank.reliability([row], leaving_out=query)[0] for row in line] for line, query in pairs]
    np.testing.assert_array_equal(bank.reliability(rows, leaving_out=queries), apart)
    assert bank.reliability([]).shape == (0,)


def test_random_labels_leak_through_stored_reliability_but_not_once_the_query_is_left_out():
    """The same label is no likelier where r is high, if labels are random; a stored r counts the query's vote."""
    stored, fair, same = [], [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 2, 1500)
        bank = MemoryBank(4)
        bank.add(rng.normal(size=(1500, 4)), labels)
        near = bank.search(bank.vectors(bank.live), 10, exclude=bank.ids)
        same.append((near.labels == labels[:, None]).ravel())
        stored.append(bank.reliability(near.rows).ravel())
        fair.append(bank.reliability(near.rows, leaving_out=bank.live[:, None]).ravel())
    leaky = roc_auc_score(np.concatenate(same), np.concatenate(stored))
    honest = roc_auc_score(np.concatenate(same), np.concatenate(fair))
    assert leaky > 0.55, "the test could not fail"
    assert abs(honest - 0.5) < 0.03


def test_rows_are_checked_under_the_lock_that_keeps_them():
    """Another thread may compact the bank between the check and the look-up; rows are then other rows."""
    bank = MemoryBank(2)
    bank.add(np.random.default_rng(0).normal(size=(4000, 2)), np.zeros(4000, int))
    plain = bank._lock.write
    entered = threading.Event()

    def late(*args):
        if not entered.is_set():
            entered.set()
            bank.remove(list(range(3900)))  # compacts: 100 rows are left
        return plain(*args)

    bank._lock.write = late
    with pytest.raises(ValueError, match="no such row"):
        bank.reliability([3999])


def test_copies_share_what_one_looks_up_until_one_changes(monkeypatch):
    rng = np.random.default_rng(5)
    vectors, labels = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    bank, groups = MemoryBank(3), np.full(60, -1)
    bank.add(vectors, labels)
    copied = bank.copy()
    expected = naive(vectors, labels, groups, "l2")
    np.testing.assert_allclose(copied.reliability(copied.live), expected)
    searched, search = [], MemoryBank._nearest_others
    monkeypatch.setattr(
        MemoryBank, "_nearest_others", lambda self, rows: searched.append(len(rows)) or search(self, rows)
    )
    np.testing.assert_allclose(bank.reliability(bank.live), expected)
    assert not searched
    bank.remove(bank.ids[:20])
    bank.update(bank.ids[:1], vectors=[[9.0, 9.0, 9.0]])
    moved = np.concatenate([[[9.0, 9.0, 9.0]], vectors[21:]])
    np.testing.assert_allclose(bank.reliability(bank.live), naive(moved, labels[20:], groups[20:], "l2"))
    assert searched
    del searched[:]
    np.testing.assert_allclose(copied.reliability(copied.live), expected)
    assert not searched


def test_rows_that_are_asked_for_many_times_are_looked_up_once():
    draw = np.random.default_rng(0)
    bank = MemoryBank(3)
    bank.add(draw.normal(size=(60, 3)), draw.integers(3, size=60))
    bank.remove(bank.ids[::7])
    many = draw.choice(bank.live, (40, 5))
    one_by_one = np.array([[bank.reliability([row])[0] for row in rows] for rows in many])
    assert np.array_equal(bank.reliability(many), one_by_one)

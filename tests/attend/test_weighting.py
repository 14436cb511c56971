"""Each weighting against its formula, written down again in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnknn.attend import KINDS, Weighting, log_reliability, row_weights
from attnknn.bank import MemoryBank

NO_QUERIES = np.empty((0, 0))  # only a learned weighting reads them


def filled(seed, rows=40, metric="l2", weights=None, groups=None):
    draw = np.random.default_rng(seed)
    bank = MemoryBank(3, metric=metric)
    bank.add(draw.normal(size=(rows, 3)), draw.integers(0, 3, rows), weights=weights, groups=groups)
    return bank, draw.normal(size=(6, 3))


def reliability_of(bank, row, without=()):
    """(agreements + 1) / (judges + 2) among the ten nearest, by brute force."""
    live = bank.live
    vectors, labels = bank.vectors(live).astype(float), bank.labels(live)
    gaps = ((vectors - vectors[row]) ** 2).sum(axis=1)
    nearest = [other for other in np.argsort(gaps, kind="stable") if other != row][:10]
    judges = [other for other in nearest if other not in without]
    return (sum(labels[other] == labels[row] for other in judges) + 1) / (len(judges) + 2)


def expected(kind, distances, factor, scale=1.0, trust=0.0, reliability=None):
    """One query's weights, term by term."""
    raw = []
    for at, gap in enumerate(distances):
        if kind == "uniform":
            value = 1.0
        elif kind == "distance":
            value = float(gap == 0) if min(distances) == 0 else 1 / gap
        else:
            value = np.exp(-scale * gap)
            if kind == "reliability":
                value *= reliability[at] ** trust
        raw.append(value * factor[at])
    return np.array(raw) / sum(raw)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 20), trust=st.floats(0, 4), weighted=st.booleans())
def test_weights_follow_their_formulas(seed, scale, trust, weighted):
    draw = np.random.default_rng(seed)
    bank, queries = filled(seed, weights=draw.uniform(0.1, 3, 40) if weighted else None)
    class_weight = draw.uniform(0.5, 2, 3) if weighted else None
    near = bank.search(queries, 7)
    for kind in KINDS:
        weights = Weighting(kind, scale, trust)(near, bank, NO_QUERIES, class_weight=class_weight).numpy()
        for at in range(len(queries)):
            rows = near.rows[at]
            factor = bank.weights(rows) * (class_weight[bank.labels(rows)] if weighted else 1.0)
            trusts = [reliability_of(bank, row) for row in rows]
            right = expected(kind, near.distances[at], factor, scale, trust, trusts)
            np.testing.assert_allclose(weights[at], right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_softmax_takes_cosine_and_inner_product_as_they_are(metric):
    bank, queries = filled(3, metric=metric)
    near = bank.search(queries, 5)
    vectors = bank.vectors(bank.live).astype(float)
    similarity = queries @ vectors.T
    if metric == "cosine":
        similarity /= np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    for at, row in enumerate(Weighting("softmax", 2.5)(near, bank, NO_QUERIES).numpy()):
        raw = np.exp(2.5 * np.sort(similarity[at])[::-1][:5])
        np.testing.assert_allclose(row, raw / raw.sum(), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbor_that_does_not_exist_weighs_nothing(kind):
    bank, _ = filled(0, rows=4)
    near = bank.search(bank.vectors(bank.live), 4, exclude=bank.ids)  # three others each
    weights = Weighting(kind, 1.0, 1.0)(near, bank, NO_QUERIES, leaving_out=bank.live).numpy()
    assert (weights[~near.found] == 0).all()
    assert near.found.sum() == 12
    np.testing.assert_allclose(weights.sum(axis=1), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_neighbor_all_weights_are_zero(kind):
    bank, _ = filled(0, rows=1)
    near = bank.search(bank.vectors(bank.live), 1, exclude=bank.ids)
    assert Weighting(kind, 1.0, 1.0)(near, bank, NO_QUERIES, leaving_out=bank.live).tolist() == [[0.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_beyond_reason_gives_finite_weights(kind):
    bank, queries = filled(0)
    near = bank.search(queries, 5)
    for scale in (0.0, 1e-300, 1e300):
        weights = Weighting(kind, scale, 20.0)(near, bank, NO_QUERIES).numpy()
        assert np.isfinite(weights).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_a_training_query_is_left_out_of_the_reliability_of_its_neighbors():
    bank, _ = filled(4)
    near = bank.search(bank.vectors(bank.live), 5, exclude=bank.ids)
    logs = log_reliability(near, bank, bank.live)
    for query in range(40):
        right = [np.log(reliability_of(bank, row, without=(query,))) for row in near.rows[query]]
        np.testing.assert_allclose(logs[query], right)


def test_a_training_query_is_left_out_together_with_its_group():
    groups = np.arange(40) // 2
    bank, _ = filled(4, groups=groups)
    near = bank.search(bank.vectors(bank.live), 5, exclude=bank.ids)
    before = log_reliability(near, bank, bank.live)
    for query in range(0, 40, 7):  # whatever the group's labels are, the query's neighbors look the same to it
        pair = [row for row in range(40) if groups[row] == groups[query]]
        changed, _ = filled(4, groups=groups)
        changed.update(pair, labels=(changed.labels(pair) + 1) % 3)
        after = log_reliability(
            changed.search(changed.vectors([query]), 5, exclude=[query]), changed, np.array([query])
        )
        np.testing.assert_array_equal(after[0], before[query])


def test_row_weights_are_none_where_every_row_counts_the_same():
    bank, queries = filled(0)
    near = bank.search(queries, 5)
    assert row_weights(near, None) is None
    np.testing.assert_array_equal(row_weights(near, np.array([1.0, 2.0, 4.0])), 2.0**near.labels)


def test_only_the_softmax_kinds_are_fitted_and_state_restores_them():
    assert [Weighting(kind).fitted for kind in KINDS] == [kind in ("softmax", "reliability") for kind in KINDS]
    for kind in KINDS:
        assert Weighting(**Weighting(kind, 2.0, 0.5).state()) == Weighting(kind, 2.0, 0.5)

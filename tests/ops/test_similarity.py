"""Distances against SciPy, and the two ways of computing them against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attnknn.errors import InvalidInput
from attnknn.ops import METRICS, distance_matrix, distances, similarity, unit
from attnknn.ops.similarity import checked_metric

seeds = st.integers(0, 2**32 - 1)


def of_scipy(queries, keys, metric):
    if metric == "ip":
        return -np.einsum("qd,nd->qn", queries, keys)
    return cdist(queries, keys, "euclidean" if metric == "l2" else "cosine")


@pytest.mark.parametrize("metric", METRICS)
@given(seed=seeds, q=st.integers(1, 9), n=st.integers(1, 30), d=st.integers(1, 20))
def test_distances_are_those_of_scipy(metric, seed, q, n, d):
    rng = np.random.default_rng(seed)
    queries, keys = rng.normal(size=(q, d)), rng.normal(size=(n, d))
    expected = of_scipy(queries, keys, metric)
    ours = torch.from_numpy(queries), torch.from_numpy(keys)
    np.testing.assert_allclose(distance_matrix(*ours, metric), expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(distances(ours[0][:, None], ours[1], metric), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_euclidean_distance_survives_a_large_offset(offset):
    rng = np.random.default_rng(1)
    queries, keys = (np.round(rng.normal(size=(30, 8)), 3) + offset for _ in range(2))
    matrix = distance_matrix(torch.from_numpy(queries), torch.from_numpy(keys))
    np.testing.assert_allclose(matrix, cdist(queries, keys), rtol=1e-12)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_a_vector_is_nearest_to_itself(metric):
    vectors = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    matrix = distance_matrix(vectors, vectors, metric)
    assert (matrix.argmin(dim=1) == torch.arange(40)).all()
    torch.testing.assert_close(matrix.diagonal(), torch.zeros(40).double(), rtol=0, atol=1e-15)


def test_a_zero_vector_is_at_cosine_distance_one_from_everything():
    vectors = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    torch.testing.assert_close(distance_matrix(vectors, vectors, "cosine"), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    assert unit(vectors).isfinite().all()


@given(seed=seeds, factor=st.floats(1e-6, 1e6))
def test_cosine_ignores_length(seed, factor):
    rng = np.random.default_rng(seed)
    queries, keys = torch.from_numpy(rng.normal(size=(3, 4))), torch.from_numpy(rng.normal(size=(5, 4)))
    scaled = distance_matrix(queries * factor, keys, "cosine")
    torch.testing.assert_close(scaled, distance_matrix(queries, keys, "cosine"), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("metric", METRICS)
def test_the_smaller_the_distance_the_larger_the_similarity(metric):
    gaps = torch.tensor([-0.5, 0.0, 0.3, 2.0])
    assert (similarity(gaps, metric).diff() < 0).all()


def test_the_similarity_of_cosine_is_the_cosine():
    first, second = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    cosine = similarity(distances(first, second, "cosine"), "cosine")
    torch.testing.assert_close(cosine, torch.nn.functional.cosine_similarity(first, second))


def test_an_unknown_metric_is_refused_with_the_choices():
    with pytest.raises(InvalidInput, match="l2, cosine, ip, got 'manhattan'"):
        checked_metric("manhattan")

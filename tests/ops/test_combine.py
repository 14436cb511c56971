"""Evidence and vote: loops as the reference, and what a probability must be."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnknn.ops import NO_ROW, evidence, softmax, uniform, vote

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, queries=st.integers(0, 6), k=st.integers(0, 9), classes=st.integers(1, 5))
def test_evidence_is_what_two_loops_add_up(seed, queries, k, classes):
    rng = np.random.default_rng(seed)
    weights, labels = rng.random((queries, k)), rng.integers(-1, classes + 2, (queries, k))
    labels[rng.random(labels.shape) < 0.1] = NO_ROW
    expected = np.zeros((queries, classes))
    for query in range(queries):
        for weight, label in zip(weights[query], labels[query], strict=True):
            if 0 <= label < classes:
                expected[query, label] += weight
    np.testing.assert_allclose(evidence(torch.from_numpy(weights), torch.from_numpy(labels), classes), expected)


def test_ten_tenths_in_float32_make_exactly_one_class():
    weights = uniform(torch.ones(1, 10, dtype=torch.float32))
    total = evidence(weights, torch.zeros(1, 10, dtype=torch.int64), 2)
    assert total.dtype == torch.float64
    probability = vote(total, torch.tensor([0.5, 0.5], dtype=torch.float64), 0.0)
    assert probability.tolist() == [[1.0, 0.0]]


@given(seed=seeds, mass=st.floats(0, 100), classes=st.integers(1, 5), own=st.booleans())
def test_a_vote_is_a_probability_between_evidence_and_prior(seed, mass, classes, own):
    rng = np.random.default_rng(seed)
    weighed, prior = rng.dirichlet(np.ones(classes), 4), rng.dirichlet(np.ones(classes), 4)
    prior = prior if own else prior[0]
    result = vote(torch.from_numpy(weighed), torch.from_numpy(prior), mass).numpy()
    np.testing.assert_allclose(result, (weighed + mass * prior) / (1 + mass), rtol=1e-12)
    np.testing.assert_allclose(result.sum(axis=1), 1.0, rtol=1e-12)
    low, high = np.minimum(weighed, prior), np.maximum(weighed, prior)
    assert ((result >= low - 1e-12) & (result <= high + 1e-12)).all()


@given(mass=st.sampled_from([0.0, 1e-9, 1.0, 50.0]))
def test_without_evidence_the_prior_alone_speaks(mass):
    prior = torch.tensor([0.2, 0.3, 0.5]).double()
    torch.testing.assert_close(vote(torch.zeros(2, 3).double(), prior, mass), prior.expand(2, 3))


def test_clashing_twins_share_the_vote():
    weights = uniform(torch.zeros(1, 2).double())
    result = vote(evidence(weights, torch.tensor([[0, 1]]), 2), torch.tensor([0.5, 0.5]).double(), 0.0)
    assert result.tolist() == [[0.5, 0.5]]


def test_gradients_flow_from_the_vote_back_to_similarities_and_scale():
    draw = torch.Generator().manual_seed(2)
    similarities = torch.randn(4, 6, dtype=torch.float64, generator=draw, requires_grad=True)
    scale = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 3, (4, 6), generator=draw)
    labels[0, 0] = NO_ROW
    prior = torch.tensor([0.2, 0.3, 0.5]).double()

    def served(similarities, scale):
        return vote(evidence(softmax(similarities, scale), labels, 3), prior, 0.1)

    assert torch.autograd.gradcheck(served, (similarities, scale))

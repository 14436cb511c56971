"""Weights: scikit-learn's formulas, a softmax in extended precision, and laws that each weighting keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax as scipy_softmax
from sklearn.neighbors import KNeighborsClassifier

from attnknn.ops import inverse_distance, softmax, uniform

gaps = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8)),
    elements=st.one_of(st.just(0.0), st.just(np.inf), st.floats(1e-300, 1e300)),
)


def of_scikit_learn(distances, weighting):
    """Weights as scikit-learn gives them: each neighbor is a class of its own, so probabilities are weights."""
    shares = []
    for row in distances:
        held = row.reshape(-1, 1)
        model = KNeighborsClassifier(len(row), weights=weighting, algorithm="brute").fit(held, np.arange(len(row)))
        shares.append(model.predict_proba([[0.0]])[0])
    return np.array(shares)


@pytest.mark.parametrize(("ours", "theirs"), [(uniform, "uniform"), (inverse_distance, "distance")])
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 9), zeros=st.floats(0, 1))
def test_weights_are_those_of_scikit_learn(ours, theirs, seed, k, zeros):
    rng = np.random.default_rng(seed)
    distances = np.abs(rng.normal(size=(4, k))) * (rng.random((4, k)) >= zeros)
    np.testing.assert_allclose(ours(torch.from_numpy(distances)), of_scikit_learn(distances, theirs), rtol=1e-12)


@pytest.mark.parametrize("weigh", [uniform, inverse_distance, lambda gaps: softmax(-gaps, 0.5)])
@given(distances=gaps)
def test_weights_sum_to_one_and_missing_neighbors_weigh_nothing(weigh, distances):
    weights = weigh(torch.from_numpy(distances)).numpy()
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    assert (weights[np.isinf(distances)] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), np.isfinite(distances).any(axis=1), rtol=1e-12)


@pytest.mark.parametrize("weigh", [uniform, inverse_distance, lambda gaps, **more: softmax(-gaps, **more)])
def test_found_overrules_a_finite_distance(weigh):
    distances, found = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[True, False, True]])
    weights = weigh(distances, found=found)
    assert weights[0, 1] == 0
    torch.testing.assert_close(weights[:, [0, 2]], weigh(distances[:, [0, 2]]))


@given(distances=gaps)
def test_a_nearer_neighbor_never_weighs_less(distances):
    for weigh in (inverse_distance, lambda gaps: softmax(-gaps, 2.0)):
        weights = weigh(torch.from_numpy(distances)).numpy()
        order = np.argsort(distances, axis=1)
        assert (np.diff(np.take_along_axis(weights, order, axis=1), axis=1) <= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nearest", [1e-37, 1e-12, 1.0, 1e30])
def test_one_over_d_neither_overflows_nor_divides_by_zero(dtype, nearest):
    weights = inverse_distance(torch.tensor([[nearest, 3 * nearest], [0.0, nearest]], dtype=dtype))
    torch.testing.assert_close(weights, torch.tensor([[0.75, 0.25], [1.0, 0.0]], dtype=dtype))


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 9),
    scale=st.floats(0.01, 100),
    prior=st.booleans(),
    bias=st.booleans(),
)
def test_softmax_agrees_with_scipy_in_extended_precision(seed, k, scale, prior, bias):
    rng = np.random.default_rng(seed)
    similarities = 30 * rng.normal(size=(6, k))
    shift = rng.normal(size=(6, k)) if bias else np.zeros((6, k))
    times = rng.integers(0, 3, (6, k)).astype(float) if prior else np.ones((6, k))
    times[:, 0] = 1.0
    wide = (scale * similarities + shift).astype(np.longdouble)
    with np.errstate(divide="ignore"):
        expected = scipy_softmax(wide + np.log(times.astype(np.longdouble)), axis=1)
    given = {"bias": (bias, shift), "prior": (prior, times)}
    options = {name: torch.from_numpy(column) for name, (wanted, column) in given.items() if wanted}
    weights = softmax(torch.from_numpy(similarities), scale, **options)
    np.testing.assert_allclose(weights, expected.astype(float), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("weigh", [uniform, inverse_distance, lambda gaps, **more: softmax(-gaps, 1e6, **more)])
@pytest.mark.parametrize("nearest", [0.0, 1.0])
def test_a_neighbor_that_counts_for_nothing_takes_nothing_from_the_others(weigh, nearest):
    distances = torch.tensor([[nearest, 2.0, 2.0]]).double()
    weights = weigh(distances, prior=torch.tensor([[0.0, 1.0, 3.0]]).double())
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.25, 0.75]]).double())


def test_a_row_without_neighbors_weighs_nothing_and_is_no_nan():
    nothing = torch.full((2, 3), torch.inf)
    for weights in (uniform(nothing), inverse_distance(nothing), softmax(-nothing), uniform(torch.empty(2, 0))):
        assert (weights == 0).all()


def test_adding_a_constant_to_every_similarity_changes_no_softmax():
    similarities = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(softmax(similarities + 500.0, 4.0), softmax(similarities, 4.0))


def test_gradients_flow_through_softmax_to_similarity_scale_and_bias():
    draw = torch.Generator().manual_seed(9)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=draw) for shape in ((3, 5), (), (3, 5))]
    found = torch.rand(3, 5, generator=draw) < 0.7
    found[1] = False  # nobody there
    for tensor in inputs:
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda s, scale, bias: softmax(s, scale, bias=bias, found=found), inputs)


def test_a_missing_neighbor_sends_no_gradient_back():
    gaps = torch.tensor([[1.0, torch.inf], [torch.inf, torch.inf]], dtype=torch.float64)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    similarities = (-gaps).requires_grad_()
    softmax(similarities, scale).square().sum().backward()
    assert similarities.grad.isfinite().all()
    assert scale.grad.isfinite()


@pytest.mark.parametrize("row", [[0.5, 1.0, 3.0], [0.0, 1.0, 3.0], [0.5, torch.inf, 3.0]])
def test_gradients_of_one_over_d_are_finite(row):
    gaps = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    inverse_distance(gaps)[0, 0].backward()
    assert gaps.grad.isfinite().all()

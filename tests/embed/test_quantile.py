"""Normal scores by rank: as scikit-learn computes them, and sane where it has ties, gaps and too few rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.preprocessing import QuantileTransformer

from attnknn.embed.quantile import MOST_KNOTS, QuantileNormal

SHAPES = {
    "normal": lambda draw, size: draw.normal(size=size),
    "skewed": lambda draw, size: draw.lognormal(sigma=1.5, size=size),
    "two humps": lambda draw, size: draw.normal(size=size) + 8 * (draw.random(size) < 0.3),
    "outliers": lambda draw, size: draw.standard_cauchy(size=size),
}


def scores(layer, values):
    return layer(torch.from_numpy(np.asarray(values, np.float32))).numpy()


def knots_for(rows):
    return int(np.clip(rows // 30, 10, MOST_KNOTS))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [50, 300, 2000])
def test_agrees_with_scikit_learn_at_training_values_without_ties(shape, rows):
    values = SHAPES[shape](np.random.default_rng(rows), (rows, 3)).astype(np.float32)
    theirs = QuantileTransformer(
        n_quantiles=knots_for(rows), output_distribution="normal", subsample=None
    ).fit_transform(values.astype(np.float64))
    ours = scores(QuantileNormal.learn(values), values)
    # Between knots they interpolate ranks and we interpolate scores: equal at knots, close between them. The two
    # outermost pieces end at a score of 5 that stands for infinity, where the two ways of going there part.
    knots = np.quantile(values, np.linspace(0, 1, knots_for(rows)), axis=0)
    inside = (values > knots[1]) & (values < knots[-2])
    assert inside.mean() > 0.7
    np.testing.assert_allclose(ours[inside], theirs[inside], rtol=0, atol=0.08)


def test_equals_scikit_learn_at_the_knots():
    values = np.random.default_rng(0).normal(size=(400, 2))
    theirs = QuantileTransformer(n_quantiles=13, output_distribution="normal", subsample=None).fit(values)
    layer = QuantileNormal.learn(values)
    at = np.quantile(values, np.linspace(0, 1, 13), axis=0)
    np.testing.assert_allclose(scores(layer, at), theirs.transform(at), rtol=0, atol=2e-5)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 400), distinct=st.integers(1, 50))
def test_is_monotone_and_finite_with_any_number_of_rows_and_ties(seed, rows, distinct):
    draw = np.random.default_rng(seed)
    values = draw.choice(draw.normal(size=distinct) * 10.0 ** draw.integers(-6, 6), size=(rows, 1))
    layer = QuantileNormal.learn(values)
    asked = np.sort(np.concatenate([values[:, 0], draw.normal(size=50) * np.abs(values).max() * 3]))[:, None]
    found = scores(layer, asked)
    assert np.isfinite(found).all()
    assert (np.diff(found[:, 0]) >= 0).all()
    assert np.abs(found).max() < 5.3


def test_values_outside_the_range_are_as_extreme_as_the_most_extreme_value_seen():
    values = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    layer = QuantileNormal.learn(values)
    low, high = values.min(axis=0, keepdims=True), values.max(axis=0, keepdims=True)
    np.testing.assert_array_equal(scores(layer, low - 1e6), scores(layer, low))
    np.testing.assert_array_equal(scores(layer, high + 1e6), scores(layer, high))
    np.testing.assert_array_equal(scores(layer, np.full((1, 2), 3e38)), scores(layer, high))
    assert (scores(layer, high) > 4).all()


def test_outliers_do_not_move_the_others():
    values = np.linspace(0, 1, 301)[:, None]
    spoiled = values.copy()
    spoiled[-1] = 1e9
    inside = values[34:-34]  # between the outermost of the ten knots
    plain, touched = scores(QuantileNormal.learn(values), inside), scores(QuantileNormal.learn(spoiled), inside)
    np.testing.assert_allclose(plain, touched, atol=0.02)


def test_equal_values_share_the_middle_of_their_ranks():
    values = np.array([0.0] * 60 + [1.0] * 20 + [2.0] * 20)[:, None]
    found = scores(QuantileNormal.learn(values), [[0.0], [1.0], [2.0]])[:, 0]
    # 60 % of the ranks are of the first value, so its middle is at 30 %; ten knots place it within a tenth.
    for score, middle in zip(found, (0.3, 0.7, 0.9), strict=True):
        assert abs(norm.cdf(score) - middle) < 0.06


def test_two_equally_common_values_lie_symmetrically():
    values = np.repeat([0.0, 1.0], 50)[:, None]
    low, high = scores(QuantileNormal.learn(values), [[0.0], [1.0]])[:, 0]
    np.testing.assert_allclose(low, -high, atol=0.15)
    assert low < 0 < high


@pytest.mark.parametrize("value", [0.0, -3.3, 1e-30, 1e18])
def test_a_constant_column_is_the_middle_wherever_it_is_asked(value):
    layer = QuantileNormal.learn(np.full((40, 1), value))
    asked = np.array([[value], [value + 1], [value - 1], [0.0], [1e20], [-1e20]])
    np.testing.assert_allclose(scores(layer, asked), 0.0, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 11])
def test_few_rows_keep_their_order(rows):
    values = np.sort(np.random.default_rng(rows).normal(size=(rows, 1)).astype(np.float32), axis=0)
    found = scores(QuantileNormal.learn(values), values)[:, 0]
    assert np.isfinite(found).all()
    assert (np.diff(found) > 0).all()


def test_columns_do_not_look_at_each_other():
    draw = np.random.default_rng(0)
    values = np.column_stack([draw.normal(size=90), np.repeat([0.0, 5.0], 45), np.full(90, 2.0)])
    together = scores(QuantileNormal.learn(values), values)
    for at in range(3):
        alone = scores(QuantileNormal.learn(values[:, [at]]), values[:, [at]])
        np.testing.assert_array_equal(together[:, [at]], alone)


def test_no_columns_and_no_rows_to_ask_for_are_no_problem():
    assert QuantileNormal.learn(np.empty((20, 0))).knots.shape[0] == 0
    assert scores(QuantileNormal.learn(np.zeros((20, 2))), np.empty((0, 2))).shape == (0, 2)


def test_the_state_makes_the_same_map_again():
    values = np.random.default_rng(0).lognormal(size=(500, 4))
    layer = QuantileNormal.learn(values)
    twin = QuantileNormal(4, layer.knots.shape[1])
    twin.load_state_dict(layer.state_dict())
    assert not list(layer.parameters())
    np.testing.assert_array_equal(scores(twin, values), scores(layer, values))

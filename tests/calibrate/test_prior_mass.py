"""The prior's mass: the best there is, within its bounds, and unmoved by rows that cannot tell."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnknn.calibrate import fit_prior_mass
from attnknn.errors import InvalidInput
from attnknn.metrics import nll

seeds = st.integers(0, 2**32 - 1)
unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure


def voted(seed, rows=200, classes=3, k=5):
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet(np.full(classes, 0.5), size=rows)
    votes = np.stack([rng.multinomial(k, row) for row in truth]) / k
    labels = (rng.random((rows, 1)) > truth.cumsum(axis=1)).sum(axis=1).clip(0, classes - 1)
    return votes, labels, rng.dirichlet(np.full(classes, 3.0))


def mixed(votes, prior, a):
    return (votes + a * np.asarray(prior)) / (1 + a)


@unhurried
@given(seed=seeds, rows=st.integers(1, 60))
def test_no_mass_on_a_grid_is_better(seed, rows):
    votes, labels, prior = voted(seed, rows)
    found = fit_prior_mass(votes, labels, prior)
    grid = np.exp(np.linspace(np.log(1e-6), np.log(1e3), 200))
    best = min(nll(mixed(votes, prior, a), labels) for a in grid)
    assert 1e-6 <= found <= 1e3
    assert nll(mixed(votes, prior, found), labels) <= best + 1e-9


def test_mass_is_recovered_from_labels_drawn_with_it():
    rng = np.random.default_rng(0)
    votes, _, prior = voted(0, rows=40_000)
    chance = mixed(votes, prior, 0.3)
    labels = (rng.random((len(votes), 1)) > chance.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    assert fit_prior_mass(votes, labels, prior) == pytest.approx(0.3, rel=0.1)


@unhurried
@given(seed=seeds)
def test_a_prior_per_row_is_the_shared_one_when_rows_agree(seed):
    votes, labels, prior = voted(seed, 30)
    assert fit_prior_mass(votes, labels, np.tile(prior, (30, 1))) == fit_prior_mass(votes, labels, prior)


@unhurried
@given(seed=seeds)
def test_a_whole_weight_is_a_repeated_row(seed):
    votes, labels, prior = voted(seed, 30)
    weight = np.random.default_rng(seed).integers(0, 3, 30)
    repeated = fit_prior_mass(np.repeat(votes, weight, 0), np.repeat(labels, weight), prior) if weight.any() else 1
    assert fit_prior_mass(votes, labels, prior, weight) == pytest.approx(repeated, rel=1e-6)


def test_rows_that_cannot_tell_are_left_out():
    votes, labels, _ = voted(1, 50, classes=2)
    votes = np.column_stack([votes, np.zeros(50)])
    prior = [0.5, 0.5, 0.0]
    silent = np.vstack([votes, np.zeros((9, 3)), np.tile([1.0, 0.0, 0.0], (2, 1))])
    unknown = np.concatenate([labels, np.zeros(9, int), [2, 7]])
    assert fit_prior_mass(silent, unknown, prior) == pytest.approx(fit_prior_mass(votes, labels, prior), rel=1e-9)
    assert fit_prior_mass(np.zeros((3, 2)), [0, 1, 0], [0.5, 0.5]) == 1.0
    assert fit_prior_mass([[1.0, 0.0]], [0], [0.5, 0.5], [0.0]) == 1.0


def test_the_bounds_hold_when_votes_are_perfect_or_worthless():
    assert fit_prior_mass(np.eye(2), [0, 1], [0.5, 0.5]) == 1e-6
    assert fit_prior_mass(np.eye(2), [1, 0], [0.5, 0.5]) == 1e3
    assert fit_prior_mass(np.ones((4, 1)), [0] * 4, [1.0]) == 1e-6


@pytest.mark.parametrize(
    ("votes", "labels", "prior", "message"),
    [
        ([[0.5, 0.6]], [0], [0.5, 0.5], "row 0 sums to 1.1"),
        ([[1.5, -0.5]], [0], [0.5, 0.5], "must not be negative, got -0.5"),
        ([[1.0, 0.0]], [0, 1], [0.5, 0.5], r"labels must have shape \(1,\)"),
        ([[1.0, 0.0]], [0], [0.5, 0.4], "each row of prior must sum to 1"),
        ([[1.0, 0.0]], [0], [0.5, 0.25, 0.25], r"prior must have shape \(2,\) or \(1, 2\), got \(3,\)"),
        ([[1.0, 0.0]], [0], ["a", "b"], "prior must be numbers"),
        ([[np.nan, 0.0]], [0], [0.5, 0.5], "votes must be finite, got nan"),
    ],
)
def test_bad_input_is_refused_with_the_value_that_came(votes, labels, prior, message):
    with pytest.raises(InvalidInput, match=message):
        fit_prior_mass(votes, labels, prior)

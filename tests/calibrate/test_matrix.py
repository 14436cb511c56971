"""Matrix scaling: what it recovers, what it falls back to, and what it refuses."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from test_calibrators import hard_rows, outcomes, overconfident, seeds, softmax, unhurried

from attnknn.calibrate import Matrix, calibrator_from_state, fit_calibrator
from attnknn.calibrate.calibrator import Validation
from attnknn.calibrate.matrix import _Problem
from attnknn.errors import InvalidInput
from attnknn.metrics import nll

EYE = Matrix(((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0), (0.0, 0.0))


def planted(rows, classes=4, spread=0.2, seed=0):
    """Stated probabilities whose labels follow ``softmax(W log p + b)``, and that W and b."""
    rng = np.random.default_rng(seed)
    weights = np.eye(classes) / 1.7 + spread * rng.normal(size=(classes, classes))
    bias = spread * rng.normal(size=classes)
    stated = softmax(2 * rng.normal(size=(rows, classes)))
    return stated, outcomes(softmax(np.log(stated) @ weights.T + bias), rng), weights, bias


def problem_of(p, y):
    return _Problem.of(Validation(p, y, np.ones(len(y))), 0.7)[0]


def gauged(weights):
    """What is left of weights or bias once what all classes share, which softmax ignores, is taken out."""
    return np.asarray(weights) - np.mean(weights, axis=0)


def test_planted_weights_and_bias_are_recovered():
    p, y, weights, bias = planted(40_000)
    fitted = fit_calibrator("matrix", p, y)
    assert isinstance(fitted, Matrix)
    np.testing.assert_allclose(gauged(fitted.weights), gauged(weights), atol=0.08)
    np.testing.assert_allclose(gauged(fitted.bias), gauged(bias), atol=0.15)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_fresh_rows_are_predicted_better_than_by_one_temperature(classes):
    p, y, _, _ = planted(1500 if classes < 100 else 2500, classes, 0.6 if classes == 2 else 0.1)
    half = len(y) // 2
    loss = {
        kind: nll(fit_calibrator(kind, p[:half], y[:half]).transform(p[half:]), y[half:])
        for kind in ("temperature", "matrix")
    }
    assert loss["matrix"] < loss["temperature"]


def test_it_is_the_least_of_its_own_penalized_loss_as_another_solver_finds_it():
    p, y, _, _ = planted(300, 3)
    problem = problem_of(p, y)
    mine = problem.solved(0.5, problem.none, near=1e-14)
    truth = np.arange(300), y

    def loss(flat):
        chances = softmax(problem.base + problem.features @ flat.reshape(mine.shape).T)
        return -np.log(chances[truth]).mean() + flat @ flat / (2 * 300 * 0.5**2)

    peer = minimize(loss, np.zeros(mine.size), method="BFGS")
    np.testing.assert_allclose(mine.ravel(), peer.x, atol=1e-3)


def test_a_wider_reach_fits_its_own_rows_better():
    p, y, _, _ = planted(300, 3)
    problem = problem_of(p, y)
    losses = [problem.losses(problem.solved(reach, problem.none)).mean() for reach in (1e-6, 0.1, 1.0)]
    assert losses[0] == pytest.approx(problem.losses(problem.none).mean(), abs=1e-6)
    assert all(after < before for before, after in pairwise(losses))


@unhurried
@given(seed=seeds, classes=st.integers(2, 4), rows=st.integers(5, 120), zeros=st.booleans())
def test_its_own_rows_are_never_fitted_worse_than_by_one_temperature(seed, classes, rows, zeros):
    p, y, _ = hard_rows(seed, rows, classes)
    if not zeros:
        p = (p + 0.1 / classes) / 1.1
    y = np.where(p[np.arange(rows), y.clip(0, classes - 1)] > 0, y.clip(0, classes - 1), p.argmax(axis=1))
    weight = np.random.default_rng(seed).random(rows)
    each = [
        nll(fit_calibrator(kind, p, y, sample_weight=weight).transform(p), y, sample_weight=weight)
        for kind in ("temperature", "matrix")
    ]
    assert each[1] <= each[0] + 1e-9


@pytest.mark.parametrize(("rows", "classes"), [(10, 2), (49, 2), (99, 10)])
def test_few_rows_are_given_the_plain_temperature(rows, classes):
    p, y, _, _ = planted(rows, classes, 0.5)
    plain = fit_calibrator("temperature", p, y)
    fitted = fit_calibrator("matrix", p, y)
    assert fitted == Matrix.of(np.eye(classes) / plain.value, np.zeros(classes), np.zeros(classes))
    np.testing.assert_allclose(fitted.transform(p), plain.transform(p), rtol=1e-12)


def test_rows_that_need_no_more_than_a_temperature_get_no_more():
    p, y = overconfident(2.0, rows=2000)
    fitted, plain = fit_calibrator("matrix", p, y), fit_calibrator("temperature", p, y)
    np.testing.assert_allclose(fitted.weights, np.eye(4) / plain.value, atol=0.05)


def test_the_same_rows_give_the_same_weights_bit_for_bit():
    p, y, _, _ = planted(600)
    weight = np.random.default_rng(3).random(600)
    first, second = (fit_calibrator("matrix", p, y, sample_weight=weight) for _ in range(2))
    assert first == second


def test_only_the_ratio_of_weights_counts_and_heavy_rows_count_more():
    p, y, _, _ = planted(800)
    q, z, _, _ = planted(800, seed=9)
    both, truth = np.vstack([p, q]), np.append(y, z)
    heavy = np.repeat([1.0, 1e-6], 800)
    alone = fit_calibrator("matrix", p, y).transform(p)
    np.testing.assert_allclose(
        fit_calibrator("matrix", both, truth, sample_weight=heavy).transform(p), alone, atol=0.02
    )
    one, other = (fit_calibrator("matrix", p, y, sample_weight=np.full(800, each)) for each in (1.0, 7.0))
    np.testing.assert_allclose(one.transform(p), other.transform(p), atol=1e-6)


def test_an_impossible_class_says_nothing_of_the_others():
    p, y, _, _ = planted(900, 3)
    wide = np.insert(p, 1, 0.0, axis=1)
    fitted, narrow = fit_calibrator("matrix", wide, y + (y > 0)), fit_calibrator("matrix", p, y)
    assert np.abs(np.asarray(narrow.weights) - np.diag(np.diag(narrow.weights))).max() > 0.05  # there is a turn
    np.testing.assert_allclose(np.delete(fitted.transform(wide), 1, axis=1), narrow.transform(p), atol=1e-4)
    assert (fitted.transform(wide)[:, 1] == 0).all()


def test_the_largest_numbers_of_a_state_overflow_nothing():
    fitted = Matrix.of(np.array([[1e6, -1e6, 0.0]] * 2 + [[1e6, 0.0, 1e6]]), np.full(3, 1e6), np.full(3, -1e6))
    given = np.array([[1.0, 1e-300, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    out = fitted.transform(given)
    np.testing.assert_array_equal(out > 0, given > 0)
    np.testing.assert_allclose(out.sum(axis=1), 1)


def test_more_classes_leave_the_old_ones_as_they_were():
    p, y, _, _ = planted(900, 3)
    fitted = fit_calibrator("matrix", p, y)
    wide = fitted.extended(np.array([0, 2, 3]), 4)
    out = wide.transform(np.insert(p, 1, 0.0, axis=1))
    np.testing.assert_allclose(np.delete(out, 1, axis=1), fitted.transform(p), rtol=1e-12)
    even = wide.transform(np.full((1, 4), 0.25))
    assert 0 < even[0, 1] < 1


def test_another_number_of_classes_is_refused():
    with pytest.raises(InvalidInput, match="fitted for 2 classes, got 3"):
        EYE.transform([[0.5, 0.3, 0.2]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "weights"),
        ({"weights": []}, r"2-dimensional numbers 'weights', got shape \(0,\)"),
        ({"weights": [[1, 0], [0]]}, "'weights' must be numbers"),
        ({"weights": [[1, 0, 0], [0, 1, 0]]}, r"weights of shape \(2, 2\).*got shapes \(2, 3\)"),
        ({"weights": [[1, "x"], [0, 1]]}, "'weights' must be numbers"),
        ({"weights": [[1, float("nan")], [0, 1]]}, "'weights' must be finite, got nan"),
        ({"weights": [[1, 0], [0, 1e7]]}, r"'weights' must lie in \[-1e\+06, 1e\+06\]"),
        ({"bias": 0.0}, "1-dimensional numbers 'bias'"),
        ({"bias": [0.0]}, "a matrix of 1 classes"),
        ({"absent": [0.0, 0.0, 0.0]}, "2 numbers in absent"),
        ({"absent": [0.0, float("inf")]}, "'absent' must be finite"),
    ],
)
def test_a_state_that_no_matrix_wrote_is_refused(changes, message):
    good = json.loads(json.dumps(EYE.state()))
    assert calibrator_from_state(good) == EYE
    with pytest.raises(InvalidInput, match=message):
        calibrator_from_state({**good, **changes})
    for key in ("weights", "bias", "absent"):
        with pytest.raises(InvalidInput, match=key):
            calibrator_from_state({name: value for name, value in good.items() if name != key})

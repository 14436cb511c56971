"""Every kind of calibrator: the contract they share, then what each must recover."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from attnknn.calibrate import (
    CALIBRATORS,
    DensityTemperature,
    Identity,
    Isotonic,
    Temperature,
    calibrator_from_state,
    fit_calibrator,
)
from attnknn.errors import InvalidInput
from attnknn.metrics import accuracy, ece, nll

KINDS = sorted(CALIBRATORS)
FITTED = sorted(set(CALIBRATORS) - {"none"})
seeds = st.integers(0, 2**32 - 1)
unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure


def softmax(logits):
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return mass / mass.sum(axis=1, keepdims=True)


def outcomes(probabilities, rng):
    below = rng.random((len(probabilities), 1)) > probabilities.cumsum(axis=1)
    return below.sum(axis=1).clip(0, probabilities.shape[1] - 1)


def overconfident(temperature, rows=20_000, classes=4, seed=0):
    """Stated probabilities whose labels were drawn after ``p^(1 / temperature)``."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(rows, classes))
    return softmax(logits), outcomes(softmax(logits / np.reshape(temperature, (-1, 1))), rng)


def hard_rows(seed, rows, classes):
    """Rows as votes give them: coarse shares, exact zeros, ties, and labels of any kind."""
    rng = np.random.default_rng(seed)
    votes = rng.multinomial(rng.integers(1, 6), np.full(classes, 1 / classes), size=rows)
    return (
        votes / votes.sum(axis=1, keepdims=True),
        rng.integers(-1, classes + 1, rows),
        rng.normal(size=rows),
    )


# --- the contract


@pytest.mark.parametrize("kind", KINDS)
@unhurried
@given(seed=seeds, rows=st.integers(1, 40), classes=st.integers(1, 5), one_label=st.booleans())
def test_probabilities_stay_probabilities(kind, seed, rows, classes, one_label):
    p, y, density = hard_rows(seed, rows, classes)
    y = np.zeros_like(y) if one_label else y
    weight = np.random.default_rng(seed).integers(0, 3, rows)
    calibrator = fit_calibrator(kind, p, y, density=density, sample_weight=weight)
    fresh, _, density = hard_rows(seed + 1, 20, classes)
    out = calibrator.transform(fresh, 100 * density)
    assert out.dtype == np.float64
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(out == 0, fresh == 0)
    np.testing.assert_array_equal(out[fresh == 1], 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_stays_exactly_one(kind):
    one = np.ones((12, 1))
    calibrator = fit_calibrator(kind, one, np.zeros(12, int), density=np.arange(12.0))
    np.testing.assert_array_equal(calibrator.transform(one, np.arange(12.0)), one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_survives_json_bit_for_bit(kind):
    p, y = overconfident(2.0, rows=400)
    density = np.random.default_rng(1).normal(size=400)
    fitted = fit_calibrator(kind, p, y, density=density)
    restored = calibrator_from_state(json.loads(json.dumps(fitted.state(), allow_nan=False)))
    assert restored == fitted
    assert restored.kind == kind
    np.testing.assert_array_equal(restored.transform(p, density), fitted.transform(p, density))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4])
def test_fewer_than_five_rows_change_nothing(kind, rows):
    p, y = overconfident(3.0, rows=rows)
    assert fit_calibrator(kind, p, y, density=np.zeros(rows)) == Identity()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_weight_zero_do_not_count(kind):
    p, y = overconfident(2.0, rows=300)
    density = np.random.default_rng(2).normal(size=300)
    weight = np.random.default_rng(3).integers(0, 2, 300)
    kept = weight > 0
    ignored = fit_calibrator(kind, p, y, density=density, sample_weight=weight)
    absent = fit_calibrator(kind, p[kept], y[kept], density=density[kept])
    np.testing.assert_allclose(ignored.transform(p, density), absent.transform(p, density), rtol=1e-12)
    assert fit_calibrator(kind, p, y, density=density, sample_weight=np.zeros(300)) == Identity()


@pytest.mark.parametrize("kind", KINDS)
def test_constant_probabilities_survive(kind):
    p, y = np.full((30, 3), 1 / 3), np.arange(30) % 3
    out = fit_calibrator(kind, p, y, density=np.full(30, 0.7)).transform(p, np.full(30, 0.7))
    np.testing.assert_allclose(out, p, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_are_left_untouched(kind):
    p, y = overconfident(2.0, rows=50)
    density = np.linspace(-1, 1, 50)
    before = p.copy()
    for array in (p, y, density):
        array.flags.writeable = False
    fit_calibrator(kind, p, y, density=density).transform(p, density)
    np.testing.assert_array_equal(p, before)


@pytest.mark.parametrize("kind", FITTED)
def test_calibration_lowers_the_error_on_fresh_rows(kind):
    p, y = overconfident(2.5, seed=0)
    fresh, truth = overconfident(2.5, seed=1)
    flat = np.zeros(len(y))
    calibrated = fit_calibrator(kind, p, y, density=flat).transform(fresh, flat)
    assert ece(calibrated, truth) < 0.2 * ece(fresh, truth)
    assert nll(calibrated, truth) < nll(fresh, truth)


# --- temperature


@pytest.mark.parametrize("true", [0.4, 1.0, 2.5])
def test_temperature_is_recovered(true):
    p, y = overconfident(true)
    fitted = fit_calibrator("temperature", p, y)
    assert isinstance(fitted, Temperature)
    assert fitted.value == pytest.approx(true, rel=0.05)


def test_temperature_is_the_best_of_a_fine_grid():
    p, y = overconfident(1.7, rows=500)
    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 400))
    best = min(nll(Temperature(t).transform(p), y) for t in grid)
    assert nll(fit_calibrator("temperature", p, y).transform(p), y) <= best + 1e-12


def test_temperature_ignores_rows_that_no_temperature_can_mend():
    p, y = overconfident(2.0, rows=300)
    impossible = np.tile([1.0, 0.0, 0.0, 0.0], (50, 1))
    more = fit_calibrator("temperature", np.vstack([p, impossible]), np.append(y, np.full(50, 1)))
    unknown = fit_calibrator("temperature", np.vstack([p, impossible]), np.append(y, np.full(50, 9)))
    alone = fit_calibrator("temperature", p, y)
    assert more.state() == unknown.state() == alone.state()


@pytest.mark.parametrize("kind", ["temperature", "density"])
@unhurried
@given(seed=seeds, classes=st.integers(2, 5))
def test_temperature_keeps_the_answer_and_never_fits_worse(kind, seed, classes):
    p, y, density = hard_rows(seed, 40, classes)
    p = (p + 0.1 / classes) / 1.1
    y = y.clip(0, classes - 1)
    out = fit_calibrator(kind, p, y, density=density).transform(p, density)
    np.testing.assert_array_equal(out.argmax(axis=1), p.argmax(axis=1))
    assert accuracy(out, y) == accuracy(p, y)
    assert nll(out, y) <= nll(p, y) + 1e-9


@pytest.mark.parametrize("temperature", [0.05, 20.0])
def test_a_small_probability_never_becomes_impossible(temperature):
    out = Temperature(temperature).transform([[1.0, 1e-300, 0.0], [0.5, 0.5, 0.0]])
    assert (out[0] > 0).tolist() == [True, True, False]
    np.testing.assert_array_equal(out[1], [0.5, 0.5, 0.0])


def test_perfect_answers_stop_at_the_coldest_temperature():
    p = np.tile([[0.6, 0.4], [0.4, 0.6]], (10, 1))
    fitted = fit_calibrator("temperature", p, [0, 1] * 10)
    assert fitted.value == pytest.approx(0.05, rel=1e-4)


# --- density


def test_density_weights_are_recovered():
    rng = np.random.default_rng(5)
    density = 0.6 + 0.1 * rng.normal(size=40_000)
    z = (density - density.mean()) / density.std()
    p, y = overconfident(np.exp(0.5 - 0.4 * z), rows=40_000)
    fitted = fit_calibrator("density", p, y, density=density)
    assert isinstance(fitted, DensityTemperature)
    assert fitted.w0 == pytest.approx(0.5, abs=0.05)
    assert fitted.w1 == pytest.approx(-0.4, abs=0.05)
    usual = np.abs(z) < 3.9
    np.testing.assert_allclose(
        fitted.temperature(density)[usual], np.exp(fitted.w0 + fitted.w1 * z[usual]), rtol=1e-9
    )


@pytest.mark.parametrize("cold", [0.05, 0.2])
def test_however_cold_what_is_possible_stays_possible_and_nothing_is_certain(cold):
    given = np.array([[0.9999, 0.0001, 0.0], [1e-9, 1 - 1e-9, 0.0]])
    for found in (
        Temperature(cold).transform(given),
        DensityTemperature(np.log(cold), 0.0, 0.0, 1.0).transform(given, [0.0, 0.0]),
    ):
        assert (found[:, 2] == 0).all()
        assert ((found[:, :2] > 0) & (found[:, :2] < 1)).all()
        np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)


def test_the_temperature_of_a_remote_row_is_that_of_the_edge_of_what_was_fitted():
    fitted = DensityTemperature(w0=0.0, w1=0.5, mean=-3.0, std=1.0)
    edge, remote, beyond = fitted.temperature([-7.0, -100.0, -1e9])
    assert edge == remote == beyond


@unhurried
@given(seed=seeds, rows=st.integers(5, 60))
def test_density_never_fits_worse_than_one_temperature(seed, rows):
    p, y, density = hard_rows(seed, rows, 3)
    p, y = (p + 1 / 30) / 1.1, y.clip(0, 2)
    plain = fit_calibrator("temperature", p, y).transform(p)
    own = fit_calibrator("density", p, y, density=density).transform(p, density)
    assert nll(own, y) <= nll(plain, y) + 1e-9


def test_constant_density_is_one_temperature():
    p, y = overconfident(2.0, rows=300)
    fitted = fit_calibrator("density", p, y, density=np.full(300, 0.1))
    assert fitted.w1 == 0
    plain = fit_calibrator("temperature", p, y)
    np.testing.assert_allclose(fitted.transform(p, np.full(300, 9.0)), plain.transform(p), rtol=1e-12)


def test_temperature_far_from_the_data_stays_in_its_range():
    calibrator = DensityTemperature(w0=0.0, w1=1.0, mean=0.0, std=1e-9)
    np.testing.assert_allclose(calibrator.temperature([-1e300, 0.0, 1e308]), [0.05, 1.0, 20.0])


def test_density_is_asked_for():
    p, y = overconfident(2.0, rows=10)
    with pytest.raises(InvalidInput, match="needs density"):
        fit_calibrator("density", p, y)
    fitted = fit_calibrator("density", p, y, density=np.arange(10.0))
    with pytest.raises(InvalidInput, match="needs density"):
        fitted.transform(p)
    with pytest.raises(InvalidInput, match=r"shape \(10,\) like the rows, got \(3,\)"):
        fitted.transform(p, [1.0, 2.0, 3.0])
    with pytest.raises(InvalidInput, match="density must be finite, got nan"):
        fitted.transform(p, [np.nan] * 10)


# --- isotonic


def test_isotonic_of_two_classes_is_that_of_scikit_learn():
    p, y = overconfident(3.0, rows=500, classes=2)
    weight = np.random.default_rng(0).random(500)
    peer = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p[:, 1], y, sample_weight=weight)
    fitted = fit_calibrator("isotonic", p, y, sample_weight=weight)
    assert isinstance(fitted, Isotonic)
    fresh, _ = overconfident(3.0, rows=200, classes=2, seed=9)
    expected = (1 - 1 / 501) * peer.predict(fresh[:, 1]) + fresh[:, 1] / 501
    np.testing.assert_allclose(fitted.transform(fresh)[:, 1], expected, atol=1e-9)


def test_isotonic_keeps_the_input_where_every_step_is_zero():
    flat = ((0.0, 1.0), (0.0, 0.0))
    p = [[0.3, 0.7]]
    np.testing.assert_allclose(Isotonic((flat, flat), 0.1).transform(p), p)


def test_isotonic_refuses_another_number_of_classes():
    p, y = overconfident(2.0, rows=50, classes=3)
    with pytest.raises(InvalidInput, match="fitted for 3 classes, got 2"):
        fit_calibrator("isotonic", p, y).transform([[0.5, 0.5]])


# --- refusals


@pytest.mark.parametrize("kind", ["platt", "", None, 3, ["none"]])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(InvalidInput, match="one of none, temperature, density, isotonic"):
        fit_calibrator(kind, [[0.5, 0.5]] * 6, [0] * 6)
    with pytest.raises(InvalidInput, match="one of none, temperature, density, isotonic"):
        calibrator_from_state({"kind": kind})


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        {"kind": "temperature"},
        {"kind": "temperature", "temperature": "2"},
        {"kind": "temperature", "temperature": True},
        {"kind": "temperature", "temperature": float("nan")},
        {"kind": "temperature", "temperature": 0.0},
        {"kind": "temperature", "temperature": 10**400},
        {"kind": "density", "w0": 0, "w1": 0, "mean": 0, "std": 0},
        {"kind": "density", "w0": 0, "w1": float("inf"), "mean": 0, "std": 1},
        {"kind": "isotonic", "share": 0.1},
        {"kind": "isotonic", "share": 0.1, "curves": []},
        {"kind": "isotonic", "share": 0.1, "curves": [[[0, 1]]]},
        {"kind": "isotonic", "share": 0.1, "curves": [[[0, 1], [0]]]},
        {"kind": "isotonic", "share": 0.1, "curves": [[[], []]]},
        {"kind": "isotonic", "share": 0.1, "curves": [[[1, 0], [0, 1]]]},
        {"kind": "isotonic", "share": 0.1, "curves": [[[0, 1], [0, 2]]]},
        {"kind": "isotonic", "share": 0.1, "curves": [[[0, 1], ["a", "b"]]]},
        {"kind": "isotonic", "share": 2.0, "curves": [[[0, 1], [0, 1]]]},
    ],
)
def test_a_state_that_no_calibrator_wrote_is_refused(state):
    with pytest.raises(InvalidInput):
        calibrator_from_state(state)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_predictions_are_refused_at_fit_and_at_use(kind):
    p, y = overconfident(2.0, rows=20)
    with pytest.raises(InvalidInput, match="sums to 2"):
        fit_calibrator(kind, 2 * p, y, density=np.zeros(20))
    with pytest.raises(InvalidInput, match="must be finite, got nan"):
        fit_calibrator(kind, p, y, density=np.zeros(20)).transform(p * np.nan, np.zeros(20))


def test_labels_of_which_many_are_wrong_still_tell_the_temperature_of_the_right_ones():
    random = np.random.default_rng(0)
    sharp = random.dirichlet(np.full(10, 0.08), 4000)
    truth = np.array([random.choice(10, p=row) for row in sharp])
    wrong = random.random(4000) < 0.4
    given = np.where(wrong, (truth + random.integers(1, 10, 4000)) % 10, truth)
    hot = sharp**0.5 / (sharp**0.5).sum(axis=1, keepdims=True)  # right at T = 0.5
    found = Temperature.through_noise(hot, given, np.ones(4000), 0.4)
    assert found.value == pytest.approx(0.5, rel=0.15)
    naive = fit_calibrator("temperature", hot, given)
    assert naive.value > 1.5 * found.value  # hedges for what is wrong with the labels


def unanimous(seed, rows=5000, wrong=0.4):
    """Votes of 8 neighbors, 95 in 100 unanimous and 96 in 100 of these right; truth; what was given."""
    random = np.random.default_rng(seed)
    truth, every = random.integers(10, size=rows), np.arange(rows)
    other, mixed = (truth + random.integers(1, 10, rows)) % 10, random.random(rows) < 0.05
    right = random.random(rows) < np.where(mixed, 0.55, 0.96)
    share = mixed * random.integers(1, 4, rows) / 8
    votes = np.full((rows, 10), 1e-4)
    votes[every, np.where(right, truth, other)] += 1 - share
    votes[every, np.where(right, other, truth)] += share
    given = np.where(random.random(rows) < wrong, (truth + random.integers(1, 10, rows)) % 10, truth)
    return votes / votes.sum(axis=1, keepdims=True), truth, given


def fitted_with_the_share(votes, given):
    """Temperature and share of wrong labels of least NLL together."""
    rates, tried = np.linspace(0, 0.9, 46)[:, None], np.geomspace(0.5, 8, 60)
    own = [Temperature(t).transform(votes)[np.arange(len(votes)), given] for t in tried]
    losses = [-np.log((1 - rates) * each + rates * (1 - each) / 9).mean(axis=1).min() for each in own]
    return Temperature(tried[int(np.argmin(losses))])


@pytest.mark.parametrize("seed", range(4))
def test_votes_that_are_nearly_all_alike_need_the_share_of_wrong_labels(seed):
    votes, truth, given = unanimous(seed)
    found = Temperature.through_noise(votes, given, np.ones(5000), 0.4)
    assert ece(found.transform(votes), truth) < 0.05
    # Alone, the votes cannot tell wrong labels from wrong votes.
    assert ece(fitted_with_the_share(votes, given).transform(votes), truth) > 0.3


def test_labels_that_are_never_wrong_give_the_plain_temperature():
    votes, truth, _ = unanimous(0)
    plain = fit_calibrator("temperature", votes, truth)
    found = Temperature.through_noise(votes, truth, np.ones(5000), 0.0)
    assert found.value == pytest.approx(plain.value, rel=0.005)


def test_a_weight_of_two_is_a_row_given_twice_wrong_labels_or_not():
    votes, _, given = unanimous(1, rows=600)
    weights = np.random.default_rng(1).integers(3, size=600)
    weighed = Temperature.through_noise(votes, given, weights.astype(float), 0.4)
    assert weighed == Temperature.through_noise(
        votes.repeat(weights, 0), given.repeat(weights), np.ones(weights.sum()), 0.4
    )
    wrong = np.full(600, 0.4)
    wrong[weights == 0] = 0.0  # of a row that does not count
    assert weighed == Temperature.through_noise(votes, given, weights.astype(float), wrong)

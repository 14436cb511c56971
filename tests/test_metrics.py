"""Metrics against scikit-learn, torchmetrics and brute force, and the laws that they keep."""

import itertools
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.fft import dct
from scipy.optimize import brentq
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, log_loss, roc_auc_score
from torchmetrics.classification import MulticlassCalibrationError

from attnknn.errors import InvalidInput
from attnknn.metrics import (
    Estimate,
    accuracy,
    auc,
    aurc,
    bootstrap_interval,
    brier,
    ece,
    ece_floor,
    evaluate,
    f1_macro,
    nll,
    reliability_curve,
    seed_interval,
)
from attnknn.metrics.floors import ece_floors
from attnknn.metrics.smooth import GRID, _bisected, _fixed_point

KINDS = ["equal-width", "equal-mass", "smooth", "classwise"]
METRICS = {"accuracy": accuracy, "f1_macro": f1_macro, "nll": nll, "brier": brier, "auc": auc, "aurc": aurc}
METRICS |= {f"ece {kind}": partial(ece, kind=kind) for kind in KINDS}
WEIGHTED = sorted(set(METRICS) - {"aurc"})
seeds = st.integers(0, 2**32 - 1)
unhurried = settings(deadline=None, max_examples=50)  # a busy machine is no failure


def drawn(seed, rows=300, classes=4, *, ties=False):
    """Predictions and labels drawn from them with some noise; every class occurs."""
    rng = np.random.default_rng(seed)
    mass = (
        rng.integers(1, 5, (rows, classes)).astype(float) if ties else rng.gamma(0.4, size=(rows, classes)) + 1e-9
    )
    probabilities = mass / mass.sum(axis=1, keepdims=True)
    labels = (rng.random((rows, 1)) > probabilities.cumsum(axis=1)).sum(axis=1).clip(0, classes - 1)
    labels[:classes] = np.arange(classes)
    return probabilities, labels


# --- against other libraries


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("ties", [False, True])
def test_scores_equal_those_of_scikit_learn(classes, ties):
    p, y = drawn(classes, classes=classes, ties=ties)
    weight = np.random.default_rng(1).random(len(y))
    for w in (None, weight):
        top = p.argmax(axis=1)
        assert accuracy(p, y, sample_weight=w) == pytest.approx(accuracy_score(y, top, sample_weight=w))
        assert f1_macro(p, y, sample_weight=w) == pytest.approx(f1_score(y, top, average="macro", sample_weight=w))
        assert nll(p, y, sample_weight=w) == pytest.approx(log_loss(y, p, sample_weight=w))
        one_hot = brier_score_loss(y, p, sample_weight=w, scale_by_half=False, labels=np.arange(classes))
        assert brier(p, y, sample_weight=w) == pytest.approx(one_hot)


@pytest.mark.parametrize("ties", [False, True])
def test_auc_equals_that_of_scikit_learn(ties):
    p, y = drawn(0, classes=2, ties=ties)
    weight = np.random.default_rng(1).random(len(y))
    assert auc(p, y) == pytest.approx(roc_auc_score(y, p[:, 1]))
    assert auc(p, y, sample_weight=weight) == pytest.approx(roc_auc_score(y, p[:, 1], sample_weight=weight))
    p, y = drawn(0, classes=5, ties=ties)
    assert auc(p, y) == pytest.approx(roc_auc_score(y, p, multi_class="ovr", average="macro"))


@unhurried
@given(seed=seeds, rows=st.integers(4, 60), classes=st.integers(2, 4))
def test_macro_f1_equals_that_of_scikit_learn_when_classes_are_absent(seed, rows, classes):
    p, y = drawn(seed, rows, classes)
    y = y % max(1, classes - 1)
    assert f1_macro(p, y) == pytest.approx(f1_score(y, p.argmax(axis=1), average="macro"))


@pytest.mark.parametrize("classes", [2, 10])
def test_ece_equals_that_of_torchmetrics(classes):
    p, y = drawn(7, rows=2000, classes=classes)
    peer = MulticlassCalibrationError(num_classes=classes, n_bins=15, norm="l1")
    theirs = peer(torch.tensor(p), torch.tensor(y)).item()
    assert ece(p, y) == pytest.approx(theirs, abs=1e-6)


# --- against brute force


def all_orders_area(confidence, wrong):
    """Risk-coverage area averaged over every order that sorts the confidences downwards."""
    areas = []
    for order in itertools.permutations(range(len(wrong))):
        if np.all(np.diff(confidence[list(order)]) <= 0):
            risk = np.cumsum(wrong[list(order)]) / np.arange(1, len(wrong) + 1)
            areas.append(risk.mean())
    return np.mean(areas)


@unhurried
@given(seed=seeds, rows=st.integers(1, 6))
def test_aurc_is_the_mean_area_over_all_orders_of_tied_rows(seed, rows):
    rng = np.random.default_rng(seed)
    top = rng.choice([0.5, 0.75, 1.0], rows)
    p, y = np.stack([top, 1 - top], axis=1), rng.integers(0, 2, rows)
    assert aurc(p, y) == pytest.approx(all_orders_area(top, y != 0))


def binned_error(stated, outcome, bin_of):
    """ECE by definition, one bin after another."""
    total = 0.0
    for b in set(bin_of.tolist()):
        inside = bin_of == b
        total += inside.mean() * abs(stated[inside].mean() - outcome[inside].mean())
    return total


@unhurried
@given(seed=seeds, bins=st.integers(1, 20))
def test_binned_kinds_follow_their_definition(seed, bins):
    p, y = drawn(seed, rows=bins * 6, classes=3)
    stated, hit = p.max(axis=1), p.argmax(axis=1) == y
    widths = np.ceil(stated * bins)
    assert ece(p, y, bins=bins) == pytest.approx(binned_error(stated, hit, widths))
    masses = np.empty(len(y), dtype=int)
    masses[np.argsort(stated)] = np.arange(len(y)) // 6
    assert ece(p, y, bins=bins, kind="equal-mass") == pytest.approx(binned_error(stated, hit, masses))
    each = [binned_error(p[:, c], y == c, np.ceil(p[:, c] * bins)) for c in range(3)]
    assert ece(p, y, bins=bins, kind="classwise") == pytest.approx(np.mean(each))


def smooth_error(stated, outcome):
    """Smooth ECE by quadrature, the reflection written as mirror images."""
    t = (np.arange(4000) + 0.5) / 4000
    images = np.concatenate([stated + 2 * m for m in range(-3, 4)] + [2 * m - stated for m in range(-3, 4)])
    gaps = np.tile(stated - outcome, 14)

    def smoothed(sigma):
        density = stats.norm.pdf(t[:, None], images[None, :], sigma)
        return np.abs(density @ gaps / len(stated)).mean()

    return brentq(lambda sigma: smoothed(sigma) - sigma, 1e-3, 1)


@pytest.mark.parametrize("seed", range(2))
def test_smooth_ece_equals_its_integral(seed):
    p, y = drawn(seed, rows=80, classes=3)
    expected = smooth_error(p.max(axis=1), p.argmax(axis=1) == y)
    assert ece(p, y, kind="smooth") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_floor_is_the_mean_error_of_labels_drawn_from_the_predictions(kind):
    p, _ = drawn(3, rows=200, classes=3)
    rng = np.random.default_rng(4)
    errors = []
    for _ in range(400):
        labels = (rng.random((200, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(0, 2)
        errors.append(ece(p, labels, kind=kind))
    slack = 5 * np.std(errors) / np.sqrt(400)
    assert ece_floor(p, kind=kind, draws=2000) == pytest.approx(np.mean(errors), abs=slack)


@pytest.mark.parametrize(("rows", "floor"), [(10_000, 0.0042), (540, 0.017)])
def test_floor_is_what_the_specification_measured(rows, floor):
    # 95 % mean confidence; its spread was not recorded, other shapes of it give .0036 to .0049
    top = np.random.default_rng(0).beta(8, 8 / 19, size=rows).clip(0.1, 1)
    p = np.column_stack([top, *[(1 - top) / 9] * 9])
    assert ece_floor(p) == pytest.approx(floor, rel=0.1)


# --- laws


@pytest.mark.parametrize("name", sorted(METRICS))
@unhurried
@given(seed=seeds, ties=st.booleans())
def test_the_order_of_rows_changes_nothing(name, seed, ties):
    p, y = drawn(seed, rows=40, classes=3, ties=ties)
    order = np.random.default_rng(seed).permutation(40)
    assert METRICS[name](p[order], y[order]) == pytest.approx(METRICS[name](p, y), abs=1e-7)


@pytest.mark.parametrize("name", WEIGHTED)
@unhurried
@given(seed=seeds, ties=st.booleans())
def test_a_whole_weight_is_a_repeated_row(name, seed, ties):
    p, y = drawn(seed, rows=30, classes=3, ties=ties)
    weight = np.random.default_rng(seed).integers(0, 4, 30)
    weight[:3] = 1
    repeated = METRICS[name](np.repeat(p, weight, axis=0), np.repeat(y, weight))
    assert METRICS[name](p, y, sample_weight=weight) == pytest.approx(repeated, abs=1e-7)


@unhurried
@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_perfect_predictions_have_perfect_scores(labels):
    p = np.eye(4)[labels]
    assert (accuracy(p, labels), f1_macro(p, labels)) == (1, 1)
    assert (nll(p, labels), brier(p, labels), aurc(p, labels)) == (0, 0, 0)
    assert [ece(p, labels, kind=kind) for kind in KINDS] == [0, 0, 0, 0]
    assert str(nll(p, labels)) == "0.0"


@unhurried
@given(seed=seeds, rows=st.integers(3, 50), ties=st.booleans())
def test_scores_stay_within_their_bounds(seed, rows, ties):
    p, _ = drawn(seed, rows, 3, ties=ties)
    y = np.random.default_rng(seed).integers(-1, 4, rows)
    for name, metric in METRICS.items():
        value = metric(p, y)
        assert np.isnan(value) or 0 <= value <= {"brier": 2, "nll": np.inf}.get(name, 1 + 1e-9)


def test_a_class_the_model_does_not_know_is_wrong_and_impossible():
    p, unknown = [[0.75, 0.25], [0.5, 0.5]], [2, -1]
    assert accuracy(p, unknown) == 0
    assert nll(p, unknown) == np.inf
    assert brier(p, unknown) == pytest.approx((0.75**2 + 0.25**2 + 1 + 0.5 + 1) / 2)
    assert f1_macro(p, unknown) == 0
    assert ece(p, unknown) == pytest.approx(0.625)
    assert np.isnan(auc(p, unknown))


def test_nll_is_infinite_only_where_the_impossible_happened():
    p = [[1.0, 0.0], [0.5, 0.5]]
    assert nll(p, [1, 0]) == np.inf
    assert nll(p, [0, 0]) == pytest.approx(np.log(2) / 2)
    assert nll(p, [1, 0], sample_weight=[0, 1]) == pytest.approx(np.log(2))


@pytest.mark.parametrize("top", [0.9999999, sum([0.1] * 10), 1.0, 1.0000000002])
def test_a_probability_of_one_up_to_rounding_falls_in_the_last_bin(top):
    curve = reliability_curve([[top, 0.0]], [0])
    assert curve.count.tolist() == [0] * 14 + [1]
    assert ece([[top, 0.0]], [0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("votes", range(1, 15))
def test_votes_of_one_fifteenth_fall_in_the_bin_they_close(votes):
    top = sum([1 / 15] * votes)
    for stated in (top, votes / 15, 1 - (15 - votes) / 15):
        curve = reliability_curve([[stated, *[(1 - stated) / 40] * 40]], [0])
        assert curve.count[votes - 1] == 1


def test_probability_zero_falls_in_the_first_bin():
    assert ece([[0.0, 1.0]] * 2, [0, 1], kind="classwise") == pytest.approx(0.5)


def test_reliability_curve_adds_up_to_ece():
    p, y = drawn(5)
    curve = reliability_curve(p, y, bins=10)
    filled = curve.count > 0
    gaps = np.abs(curve.confidence - curve.accuracy)[filled]
    assert curve.count.sum() == len(y)
    assert np.isnan(curve.accuracy[~filled]).all()
    assert ece(p, y, bins=10) == pytest.approx(gaps @ curve.count[filled] / len(y))
    np.testing.assert_allclose(curve.edges, np.linspace(0, 1, 11))


def test_one_class_is_certain_and_has_no_ranking():
    assert (accuracy([[1.0]], [0]), nll([[1.0]], [0]), aurc([[1.0]], [0])) == (1, 0, 0)
    assert np.isnan(auc([[1.0]], [0]))


# --- intervals


@pytest.mark.parametrize("classes", [2, 3])
def test_evaluate_reports_what_each_metric_and_a_plain_bootstrap_say(classes):
    p, y = drawn(11, rows=120, classes=classes, ties=True)
    named = {"accuracy": accuracy, "f1_macro": f1_macro, "nll": nll, "brier": brier, "aurc": aurc}
    named |= {"ece": ece, "ece_equal_mass": partial(ece, kind="equal-mass")}
    named |= {"ece_smooth": partial(ece, kind="smooth"), "ece_classwise": partial(ece, kind="classwise")}
    named |= {"auc": auc} if classes == 2 else {}
    report = evaluate(p, y, draws=40, seed=3)
    assert set(report) == set(named) | {"ece_floor"}
    for name, metric in named.items():
        low, high = bootstrap_interval(metric, p, y, draws=40, seed=3)
        assert report[name].value == pytest.approx(metric(p, y))
        assert (report[name].low, report[name].high) == (
            pytest.approx(low, abs=1e-7),
            pytest.approx(high, abs=1e-7),
        )
    assert report["ece_floor"].value == pytest.approx(ece_floor(p, draws=40, seed=3))


def test_bootstrap_interval_of_a_mean_matches_the_normal_one():
    p, y = drawn(2, rows=2000, classes=2)
    low, high = bootstrap_interval(accuracy, p, y, level=0.9, draws=2000)
    share = accuracy(p, y)
    reach = stats.norm.ppf(0.95) * np.sqrt(share * (1 - share) / 2000)
    assert (low, high) == (pytest.approx(share - reach, abs=0.002), pytest.approx(share + reach, abs=0.002))


def test_infinite_and_missing_draws_leak_no_warning():
    p, y = [[1.0, 0.0]] * 3 + [[0.5, 0.5]] * 3, [1, 0, 0, 0, 0, 0]
    report = evaluate(p, y, draws=50)
    assert report["nll"].value == report["nll"].high == np.inf
    assert np.isfinite(report["nll"].low)
    alone = evaluate([[0.5, 0.5]], [0], draws=5)
    assert np.isnan(alone["auc"].value)
    assert np.isnan(alone["auc"].low)


def test_seed_interval_is_the_t_interval_of_scipy():
    values = np.random.default_rng(0).normal(size=5)
    low, high = stats.t.interval(0.9, 4, values.mean(), stats.sem(values))
    ours = seed_interval(values, level=0.9)
    np.testing.assert_allclose([ours.value, ours.low, ours.high], [values.mean(), low, high])


def test_seed_interval_is_unknown_for_one_value_or_an_infinite_one():
    assert seed_interval([0.5]).value == 0.5
    assert np.isnan(seed_interval([0.5]).low)
    assert seed_interval([0.5, np.inf]).value == np.inf
    assert np.isnan(seed_interval([0.5, np.inf]).high)


def test_same_seed_same_numbers():
    p, y = drawn(1, rows=50)
    assert evaluate(p, y, draws=20, seed=5) == evaluate(p, y, draws=20, seed=5)
    assert bootstrap_interval(nll, p, y, draws=20, seed=5) != bootstrap_interval(nll, p, y, draws=20, seed=6)


def test_an_estimate_prints_its_interval():
    assert str(Estimate(0.123456, 0.1, 0.2)) == "0.1235 [0.1000, 0.2000]"


# --- refusals


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([], [], r"got \(0,\)"),
        (np.empty((0, 2)), [], r"got \(0, 2\)"),
        ([0.5, 0.5], [0, 1], r"got \(2,\)"),
        ([[0.5, 0.6]], [0], "row 0 sums to 1.1"),
        ([[1.5, -0.5]], [0], "got -0.5 at row 0, column 1"),
        ([[0.5, np.nan]], [0], r"got nan at index \(0, 1\)"),
        ([[0.5, np.inf]], [0], "got inf"),
        ([["a", "b"]], [0], "must be numbers"),
        ([[0.5, 0.5], [1.0]], [0, 0], "must be numbers"),
        ([[0.5, 0.5]], [0, 1], r"shape \(1,\) like the rows, got \(2,\)"),
        ([[0.5, 0.5]], [0.5], "dtype float64"),
        ([[0.5, 0.5]], ["a"], "dtype <U1"),
    ],
)
@pytest.mark.parametrize("metric", [accuracy, nll, ece, aurc, evaluate, reliability_curve])
def test_bad_input_is_refused_with_the_value_that_came(metric, probabilities, labels, message):
    with pytest.raises(InvalidInput, match=message):
        metric(probabilities, labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, y: ece(p, y, bins=0), "bins.*got 0"),
        (lambda p, y: ece(p, y, bins=True), "bins.*got True"),
        (lambda p, y: ece(p, y, kind="round"), "got 'round'"),
        (lambda p, y: ece_floor(p, draws=0), "draws.*got 0"),
        (lambda p, y: accuracy(p, y, sample_weight=[0, 0]), "all zero"),
        (lambda p, y: accuracy(p, y, sample_weight=[-1, 2]), "got -1"),
        (lambda p, y: accuracy(p, y, sample_weight=[1]), r"got \(1,\)"),
        (lambda p, y: bootstrap_interval(nll, p, y, level=1.0), "got 1.0"),
        (lambda p, y: seed_interval([]), "at least one"),
        (lambda p, y: seed_interval([1.0], level=np.nan), "level must be finite, got nan"),
    ],
)
def test_bad_options_are_refused_with_the_value_that_came(call, message):
    with pytest.raises(InvalidInput, match=message):
        call([[0.5, 0.5], [0.25, 0.75]], [0, 1])


def test_inputs_are_left_untouched():
    p, y = drawn(0, rows=20)
    p.flags.writeable = y.flags.writeable = False
    before = p.copy(), y.copy()
    evaluate(np.asfortranarray(p), y, draws=3)
    evaluate(p, y, draws=3)
    np.testing.assert_array_equal(p, before[0])
    np.testing.assert_array_equal(y, before[1])


def test_importing_metrics_alone_loads_neither_torch_nor_scikit_learn():
    code = (
        "import sys, types, json; root = types.ModuleType('attnknn'); root.__path__ = sys.argv[1:];"
        "sys.modules['attnknn'] = root; import attnknn.metrics;"
        "print(json.dumps([m for m in ('torch', 'sklearn') if m in sys.modules]))"
    )
    import attnknn

    told = subprocess.run(
        [sys.executable, "-c", code, *attnknn.__path__], capture_output=True, text=True, check=True
    )
    assert json.loads(told.stdout) == []


@pytest.mark.parametrize("classes", [2, 3, 60])
def test_floors_of_all_kinds_at_once_are_those_of_each_kind_alone(classes):
    draw = np.random.default_rng(classes)
    several = [draw.dirichlet(np.ones(classes), 311), np.eye(classes)[draw.integers(classes, size=311)]]
    several.append(several[0].round(1) + 1e-3)  # with ties
    several[2] /= several[2].sum(axis=1, keepdims=True)
    draws = {"equal-width": 900, "equal-mass": 900, "smooth": 33, "classwise": 21}
    for p, found in zip(several, ece_floors(several, draws), strict=True):
        alone = {kind: ece_floor(p, kind=kind, draws=count) for kind, count in draws.items()}
        assert found == pytest.approx(alone, rel=0, abs=1e-12)


def test_secants_find_the_sigma_that_halving_finds():
    draw = np.random.default_rng(0)
    sizes = 10.0 ** draw.uniform(-9, 0, (40, 1))
    mass = np.concatenate([draw.normal(size=(40, GRID)) / GRID * sizes, np.full((1, GRID), 1 / GRID)])
    mass = np.concatenate([mass, np.abs(mass), np.zeros((2, GRID))])
    np.testing.assert_array_equal(_fixed_point(mass), _bisected(dct(mass, axis=1, norm="ortho")))

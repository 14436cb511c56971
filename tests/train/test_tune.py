"""Leave-one-out really leaves out, and the rule for k is the rule."""

from __future__ import annotations

import numpy as np
import pytest

from attnknn.attend import KINDS, Weighting
from attnknn.bank import MemoryBank
from attnknn.train import Hearing, Judges, choose_judges, tune


def bank_of(X, y, **columns):
    bank = MemoryBank(np.shape(X)[1])
    bank.add(X, y, **columns)
    return bank


def tuned(bank, kind="softmax", k=None, classes=None, calibrated=True, class_weight=None):
    classes = classes or int(bank.labels(bank.live).max()) + 1
    weight = np.ones(classes) if class_weight is None else class_weight
    hearing = Hearing(bank, Judges.of(bank, bank.live).able(bank, weight))
    return tune([hearing], Weighting(kind), k=k, class_weight=weight, calibrated=calibrated)


def best_loss(tuning):
    return min(mean for _, mean, _ in tuning.curve)


def test_no_row_sees_itself_or_its_group():
    draw = np.random.default_rng(0)
    groups = draw.integers(0, 8, 40)
    bank = bank_of(draw.normal(size=(40, 2)), draw.integers(0, 2, 40), groups=groups)
    near = Judges.of(bank, bank.live).neighbors(bank, 40)
    for judge in range(40):
        seen = near.rows[judge][near.found[judge]]
        assert sorted(seen) == [row for row in range(40) if groups[row] != groups[judge]]


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_random_labels_tune_to_chance(kind, classes):
    draw = np.random.default_rng(classes)
    y = np.resize(np.arange(classes), 400)
    tuning = tuned(bank_of(draw.normal(size=(400, 3)), y), kind)
    assert best_loss(tuning) == pytest.approx(np.log(classes), abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_duplicates_of_a_judge_do_not_leak_its_label(kind):
    """Each row twice with one random label: whoever sees its twin predicts perfectly."""
    draw = np.random.default_rng(0)
    X = np.repeat(draw.normal(size=(150, 3)), 2, axis=0)
    y = np.repeat(np.resize([0, 1, 2], 150), 2)
    twins = np.repeat(np.arange(150), 2)
    leaking, sealed = tuned(bank_of(X, y), kind), tuned(bank_of(X, y, groups=twins), kind)
    assert best_loss(leaking) < 0.2
    # Pairs vote as one here, so that chance is a little harder to hit than with single rows.
    assert np.log(3) - 0.03 < best_loss(sealed) < np.log(3) + 0.1


def test_a_wrong_twin_in_the_same_group_is_not_believed():
    draw = np.random.default_rng(0)
    X = np.repeat(draw.normal(size=(100, 2)), 2, axis=0)
    truth = (X[:, 0] > 0).astype(int)
    y = np.where(np.arange(200) % 2, 1 - truth, truth)  # every twin contradicts
    sealed = tuned(bank_of(X, y, groups=np.repeat(np.arange(100), 2)), "distance")
    open_ = tuned(bank_of(X, y), "distance")
    assert best_loss(sealed) == pytest.approx(np.log(2), abs=0.05)  # what is left is a coin
    assert best_loss(open_) > best_loss(sealed) + 0.01  # the twin at distance 0 misleads


def test_the_prior_leaves_the_judge_out():
    y = np.array([0, 0, 0, 1, 2])
    bank = bank_of(np.eye(5), y, weights=[1.0, 2.0, 1.0, 3.0, 1.0])
    factor = np.array([1.0, 0.5, 4.0])
    prior = Judges.of(bank, bank.live).prior(bank, factor)
    for judge in range(5):
        others = [row for row in range(5) if row != judge]
        mass = [sum([1, 2, 1, 3, 1][row] * factor[c] for row in others if y[row] == c) for c in range(3)]
        np.testing.assert_allclose(prior[judge], np.array(mass) / sum(mass), atol=1e-12)


def able(bank, class_weight):
    return Judges.of(bank, bank.live).able(bank, class_weight).rows.tolist()


def test_judges_that_nothing_could_predict_are_skipped():
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(12, 2)), np.array([0] * 6 + [1] * 4 + [2, 3])
    weights = np.array([0.0] + [1.0] * 9 + [1.0, 1.0])
    bank = bank_of(X, y, weights=weights)
    assert able(bank, np.ones(4)) == list(range(1, 10))  # not the weightless one, not the lonely ones
    assert able(bank_of(X, y), np.array([1.0, 0.0, 1.0, 1.0])) == list(range(6))
    outside = Judges(X, y, np.ones(12))
    few = bank_of(X[:8], y[:8])
    assert outside.able(few, np.ones(4)).labels.tolist() == [0] * 6 + [1] * 4  # whoever has a class there
    lonely = tuned(bank_of(np.eye(3), [0, 1, 2]), "softmax")
    assert lonely.curve == ()
    assert lonely.k == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_chosen_k_is_the_smallest_within_one_error_of_the_best(kind):
    draw = np.random.default_rng(3)
    X = draw.normal(size=(300, 2))
    y = (X[:, 0] + draw.normal(size=300) > 0).astype(int)
    tuning = tuned(bank_of(X, y), kind)
    ks, means, errors = map(np.array, zip(*tuning.curve, strict=True))
    assert errors[means.argmin()] == 0
    assert (errors >= 0).all()
    fine = means <= means.min() + errors
    assert tuning.k == ks[fine].min()
    assert ks.tolist() == [*(2**power for power in range(9) if 2**power < ks[-1]), ks[-1]]


def test_the_error_is_that_of_the_paired_difference():
    """The curve's error for k = 1, recomputed row by row from the definition."""
    draw = np.random.default_rng(1)
    X, y = draw.normal(size=(50, 2)), draw.integers(0, 2, 50)
    bank = bank_of(X, y)
    tuning = tuned(bank, "uniform")
    near = Judges.of(bank, bank.live).neighbors(bank, 50)
    prior = Judges.of(bank, bank.live).prior(bank, np.ones(2))[np.arange(50), y]
    masses = np.geomspace(1e-4, 10, 26)

    def losses(k):
        found = near.found[:, :k]
        share = ((near.labels[:, :k] == y[:, None]) & found).sum(axis=1) / found.sum(axis=1)
        each = -np.log((share[:, None] + masses * prior[:, None]) / (1 + masses))
        surprise = -np.log(masses * prior.mean() / (1 + masses))
        return each[:, (each.sum(axis=0) + surprise).argmin()]

    ks, means, errors = map(np.array, zip(*tuning.curve, strict=True))
    each = np.column_stack([losses(k) for k in ks])
    np.testing.assert_allclose(means, each.mean(axis=0), rtol=1e-9)
    gap = each - each[:, [means.argmin()]]
    np.testing.assert_allclose(errors, gap.std(axis=0) / np.sqrt(50), rtol=1e-9, atol=1e-12)


def test_a_given_k_is_kept_and_the_mass_is_zero_without_calibration():
    draw = np.random.default_rng(0)
    bank = bank_of(draw.normal(size=(30, 2)), draw.integers(0, 2, 30))
    for k in (1, 7, 1000):
        tuning = tuned(bank, k=k, calibrated=False)
        assert (tuning.k, tuning.mass) == (k, 0.0)
    assert tuned(bank, k=7).mass > 0


def test_perfect_answers_still_leave_a_prior_mass():
    X = np.repeat([[0.0], [100.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    tuning = tuned(bank_of(X, np.repeat([0, 1], 20)))
    assert tuning.mass > 1e-3  # 40 of 40 do not prove that the 41st comes out


def test_two_distance_judges_without_neighbors_raise_no_warning():
    bank = bank_of(np.zeros((6, 2)), [0, 1] * 3, groups=np.zeros(6, int))
    for kind in KINDS:
        assert np.isfinite(tuned(bank, kind).mass)


def test_judges_are_all_rows_or_a_fair_sample_of_them():
    draw = np.random.default_rng(0)
    small = bank_of(np.zeros((50, 1)), np.zeros(50, int))
    assert choose_judges(small, 0.1, draw).tolist() == list(range(50))
    y = np.repeat(np.arange(4), 2000)  # sorted by label, as files often are
    large = bank_of(draw.normal(size=(8000, 1)), y)
    judges = choose_judges(large, 0.5, draw)
    assert len(np.unique(judges)) == len(judges) == 4000
    assert len(choose_judges(large, 0.1, draw)) == 2000
    first = np.bincount(y[judges[:400]], minlength=4)  # with many neighbors only the first judges are heard
    assert first.min() > 60


def test_labels_that_are_noise_leave_nearly_all_to_the_prior():
    random = np.random.default_rng(1)
    bank = bank_of(random.normal(size=(1500, 4)), random.integers(2, size=1500))
    assert tuned(bank, "uniform", k=7).mass > 100  # far beyond the grid that the search starts from

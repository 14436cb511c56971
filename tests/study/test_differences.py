"""Intervals against SciPy and a plain bootstrap; verdicts follow the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnknn.metrics import accuracy, auc, nll
from attnknn.study.differences import Draws, difference, interval_of, one_row, pairs, under_draws
from attnknn.study.recipe import OURS
from attnknn.study.verdicts import of_leads, short, verdict, verdicts

ends = st.floats(-2, 2, allow_nan=False)


@given(st.lists(st.tuples(ends, ends), min_size=2, max_size=12))
def test_the_interval_over_seeds_is_that_of_a_paired_t_test(values):
    mine, other = ({seed: pair[at] for seed, pair in enumerate(values)} for at in (0, 1))
    found = difference(mine, other)
    gaps = np.array([a - b for a, b in values])
    assert found["mean"] == pytest.approx(gaps.mean())
    spread = stats.sem(gaps)
    if spread > 1e-12:
        low, high = stats.t.interval(0.95, len(gaps) - 1, loc=gaps.mean(), scale=spread)
        assert (found["low"], found["high"]) == pytest.approx((low, high))


def test_only_seeds_that_both_have_are_compared():
    found = difference({0: 1.0, 1: 2.0, 5: 9.0}, {1: 1.0, 0: 0.5, 7: 3.0})
    assert (found["seeds"], found["values"]) == ([0, 1], [0.5, 1.0])
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_draws_of_rows_are_what_taking_the_rows_would_give():
    draw = np.random.default_rng(1)
    p = draw.uniform(0.01, 0.99, 60)
    probabilities, labels = np.column_stack([1 - p, p]), draw.integers(0, 2, 60)
    found = under_draws(probabilities, labels, 5)
    again = np.random.default_rng(0)
    for at in range(5):
        rows = again.integers(60, size=60)
        for name, metric in {"accuracy": accuracy, "nll": nll, "auc": auc}.items():
            assert found[name][at] == pytest.approx(metric(probabilities[rows], labels[rows]))


def test_draws_of_a_table_are_those_of_a_part_of_it_and_never_empty():
    draw = np.random.default_rng(4)
    probabilities, labels = draw.dirichlet(np.ones(3), 40), draw.integers(0, 3, 40)
    rows = np.array([3, 8, 21])
    found = under_draws(probabilities[rows], labels[rows], 300, rows, 40)["nll"]
    again, missed = np.random.default_rng(0), 0
    for value in found:
        drawn = again.integers(40, size=40)
        part = drawn[np.isin(drawn, rows)]
        missed += not len(part)
        some = part if len(part) else rows
        assert value == pytest.approx(nll(probabilities[some], labels[some]))
    assert missed  # else the last line was not needed


def test_an_interval_reaches_as_far_as_seeds_and_rows_do_and_one_row_further():
    drawn = np.random.default_rng(3).normal(0.1, 0.05, 1000)
    low, high = np.percentile(drawn, [2.5, 97.5])
    steady = interval_of([0.1, 0.1], drawn, step=0.01)
    assert (steady["low"], steady["high"]) == pytest.approx((low - 0.01, high + 0.01))
    shaken = interval_of([0.0, 0.2], drawn, step=0.01)
    assert (shaken["low"], shaken["high"]) == (shaken["over_seeds"]["low"], shaken["over_seeds"]["high"])
    assert shaken["over_rows"] == steady["over_rows"]
    shared = interval_of([0.0, 0.2], drawn, step=0.01, shared=True)
    for end in ("low", "high"):
        squares = [(shaken[kind][end] - shaken["mean"]) ** 2 for kind in ("over_seeds", "over_rows")]
        assert (shared[end] - shaken["mean"]) ** 2 == pytest.approx(sum(squares))
    assert np.isnan(interval_of([0.1], drawn)["low"])
    holes = interval_of([0.1, 0.1], np.where(np.arange(1000) % 2, np.nan, drawn))
    assert holes["low"] == pytest.approx(np.percentile(drawn[::2], 2.5))
    assert np.isnan(interval_of([0.1, 0.1], np.array([0.1, np.inf]))["high"])


@pytest.mark.parametrize("differing", [1, 2, 3, 4, 6, 7, 8])  # five of five are on the edge: p is .0625
def test_rows_that_all_speak_for_one_method_are_a_difference_where_a_sign_test_says_so(differing):
    """Two seeds that agree to the row: only the rows can tell whether that is chance."""
    tested = [np.arange(30), np.arange(30, 60)]
    right = [np.arange(30) < (differing + at) // 2 for at in range(2)]
    drawn = [
        {
            seed: under_draws(answers(each), np.zeros(30, np.int64), 2000, tested[seed], 60)["accuracy"]
            for seed, each in enumerate(some)
        }
        for some in (right, [np.zeros(30, bool)] * 2)
    ]
    gaps = [float(each.mean()) for each in right]
    drawn_gap = np.mean([drawn[0][seed] - drawn[1][seed] for seed in range(2)], axis=0)
    rows = interval_of(gaps, drawn_gap, one_row("accuracy", tested))["over_rows"]
    assert (rows["low"] > 0) == (stats.binomtest(differing, differing).pvalue < 0.05)


def answers(right: np.ndarray) -> np.ndarray:
    return np.where(right[:, None], [[0.8, 0.2]], [[0.2, 0.8]])


@pytest.mark.parametrize("gain", [0.0, 0.02])
def test_a_planted_effect_is_found_and_a_planted_zero_is_not(gain):
    rows, labels = 4000, np.zeros(4000, np.int64)
    draw = np.random.default_rng(2)
    drawn: tuple[dict, dict] = {}, {}
    values: tuple[dict, dict] = {}, {}
    for seed in range(5):
        base = draw.random(rows)
        for at, rate in enumerate((0.8 + gain, 0.8)):
            shaken = np.where(draw.random(rows) < 0.1, draw.random(rows), base)
            right = shaken < rate
            values[at][seed] = float(right.mean())
            drawn[at][seed] = under_draws(answers(right), labels, 80)["accuracy"]
    found = difference(*values, Draws(*drawn))
    said = verdict("mine", "other", "accuracy", found)
    assert said.startswith(
        "mine has higher accuracy than other: +.0" if gain else "no difference found between mine"
    )
    assert found["over_rows"]["low"] < found["mean"] < found["over_rows"]["high"]


def gap(low, high, rows=None):
    found = {"mean": (low + high) / 2, "low": low, "high": high, "seeds": [0, 1, 2]}
    return found if rows is None else {**found, "over_rows": {"low": rows[0], "high": rows[1]}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (gap(0.01, 0.02), "a has higher NLL than b: +.0150 [.0100, .0200] over 3 seeds"),
        (gap(-0.02, -0.01), "a has lower NLL than b: -.0150 [-.0200, -.0100] over 3 seeds"),
        (gap(-0.01, 0.02), "no difference found between a and b in NLL: +.0050 [-.0100, .0200] over 3 seeds"),
        (gap(0.0, 0.0), "no difference found between a and b in NLL: +.0000 [.0000, .0000] over 3 seeds"),
        (
            gap(0.01, 0.02, rows=(-0.01, 0.04)),
            "no difference found between a and b in NLL: +.0150 [-.0100, .0400] over 3 seeds and their test rows",
        ),
        (
            gap(0.01, 0.02, rows=(0.005, 0.04)),
            "a has higher NLL than b: +.0150 [.0050, .0400] over 3 seeds and their test rows",
        ),
        (gap(0.1, 0.1), "a and b cannot be compared in NLL: seeds that agree by chance have no interval"),
        ({**gap(np.nan, np.nan), "seeds": [0]}, "a and b cannot be compared in NLL: one seed has no interval"),
        ({**gap(0, 0), "low": None}, "a and b cannot be compared in NLL: a value is not finite"),
    ],
)  # fmt: skip
def test_a_verdict_says_what_all_its_intervals_allow(found, said):
    assert verdict("a", "b", "NLL", found) == said


@given(low=ends, width=st.floats(1e-6, 1))
def test_a_verdict_flips_when_the_numbers_flip(low, width):
    high = low + width
    there, back = verdict("a", "b", "ECE", gap(low, high)), verdict("a", "b", "ECE", gap(-high, -low))
    turned = {"a has higher": "a has lower", "a has lower": "a has higher", "no difference": "no difference"}
    first, second = (next(start for start in turned if said.startswith(start)) for said in (there, back))
    assert second == turned[first]


def test_each_of_ours_meets_every_other_method_once():
    methods = ["sklearn-knn", "hgb", *OURS]
    found = pairs(methods, OURS)
    assert len(set(map(frozenset, found))) == len(found) == 6 * 2 + 6 * 5 // 2
    assert ("attention", "uniform") in found
    assert ("attention", "hgb") in found
    assert ("uniform", "attention") not in found
    assert all(mine in OURS for mine, _ in found)


def test_sentences_of_leads_are_picked_by_whole_names():
    differences = {
        mine: {"hgb": {"accuracy": gap(0.1, 0.2), "nll": gap(-1, 1), "brier": gap(0.1, 0.2)}}
        for mine in ("attention", "attention+ensemble", "uniform")
    }
    said = verdicts(differences)
    assert len(said) == 6
    picked = of_leads(said, ["attention"])
    assert [each.split(" in ")[0].split(": ")[0] for each in picked] == [
        "attention has higher accuracy than hgb", "no difference found between attention and hgb"
    ]  # fmt: skip
    assert of_leads(said, ["nobody"]) == said


@given(ends)
def test_short_numbers_read_back(value):
    assert float(short(value)) == pytest.approx(value, abs=5.1e-5)
    assert short(value, sign=True)[0] in "+-"

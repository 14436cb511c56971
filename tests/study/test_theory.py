"""Every check holds on honest data and fails on a planted fault."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from attnknn.attend import Weighting
from attnknn.bank import MemoryBank
from attnknn.errors import InvalidInput
from attnknn.predict.adaptive import ByCertificate
from attnknn.study import beyond
from attnknn.study.beyond import (
    certificate,
    chi_square,
    gumbel_above,
    lazy_winner,
    missing_mass,
    pooled,
    sample,
    tail_errors,
    truncation_gaps,
)
from attnknn.study.theory import (
    Searched,
    check_certificate,
    check_gumbel,
    check_hnsw,
    check_k,
    check_metrics_agree,
    check_norms,
    check_tail,
    check_theory,
    check_truncation,
    recall_curve,
    searched,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SCALES = {"l2": 1.0, "cosine": 5.0, "ip": 0.3}
NAMES = ["truncation", "certificate", "gumbel", "tail", "metrics agree", "hnsw recall", "k", "norms"]


def blobs(n=600, queries=40, dim=8, seed=0):
    """Keys, queries and their labels: three classes that overlap."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, n + queries)
    vectors = draw.normal(size=(n + queries, dim)) + draw.normal(size=(3, dim))[labels]
    return vectors[:n], vectors[n:], labels[:n], labels[n:]


def seen_by(metric="l2", k=64, **how):
    keys, queries, *_ = blobs(**how)
    return searched(keys, queries, SCALES[metric], metric, k)


def by_name(checks):
    return {each.name: each for each in checks}


@pytest.mark.parametrize("metric", SCALES)
def test_every_check_holds_on_honest_data(metric):
    checks = check_theory(*blobs(), scale=SCALES[metric], metric=metric, k=16, classes=3, ks=(1, 64, 1024))
    assert [each.name for each in checks] == NAMES
    assert [each.verdict for each in checks] == ["pass"] * 5 + ["reported"] * 3
    for each in checks:
        assert each.claim.endswith(".")
        assert each.found.endswith(".")
        json.dumps(each.numbers, allow_nan=False)


def test_logits_are_scale_times_similarity_and_rows_the_nearest():
    keys, queries, *_ = blobs(n=50, queries=4)
    gaps = np.linalg.norm(queries[:, None] - keys, axis=2)
    cosines = (queries @ keys.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(keys, axis=1)
    for metric, similarity in {"l2": -gaps, "cosine": cosines, "ip": queries @ keys.T}.items():
        seen = searched(keys, queries, 3.0, metric, 7)
        np.testing.assert_allclose(seen.logits, 3 * similarity, rtol=1e-12)
        np.testing.assert_array_equal(seen.rows, np.argsort(-similarity, axis=1)[:, :7])


# Truncation and its certificate


def test_a_row_that_is_found_twice_breaks_truncation():
    seen = seen_by()
    assert check_truncation(seen, [4, 64]).verdict == "pass"
    twice = seen.rows.copy()
    twice[7, 1] = twice[7, 0]
    check = check_truncation(Searched(seen.logits, twice), [4, 64])
    assert (check.verdict, check.numbers["violations"]) == ("fail", 2)


def test_weights_of_too_few_digits_break_truncation():
    seen = seen_by()
    weights, kept = special.softmax(seen.logits, axis=1), special.softmax(seen.top(16), axis=1)
    assert np.abs(truncation_gaps(weights, seen.rows[:, :16], kept)).max() < 1e-12
    coarse = special.softmax(seen.top(16).astype(np.float16), axis=1)
    assert np.abs(truncation_gaps(weights, seen.rows[:, :16], coarse)).max() > 1e-9


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 29), bias=st.sampled_from([0.0, 0.5, 3.0]))
def test_the_certificate_and_what_it_bounds_are_as_the_formulas_say(seed, k, bias):
    logits = -np.sort(-np.random.default_rng(seed).normal(0, 3, (5, 30)), axis=1)
    rows = np.tile(np.arange(30), (5, 1))[:, :k]
    inside, outside = np.exp(logits[:, :k]).sum(axis=1), np.exp(logits[:, k:] + bias).sum(axis=1)
    most = (30 - k) * np.exp(logits[:, k - 1] + bias)
    bounds = certificate(logits[:, :k], 30, bias)
    missing = missing_mass(special.softmax(logits, axis=1), rows, bias)
    np.testing.assert_allclose(bounds, most / (inside + most), rtol=1e-9)
    np.testing.assert_allclose(missing, outside / (inside + outside), rtol=1e-9)
    assert (missing <= bounds + 1e-12).all()


def test_the_certificate_is_the_one_that_adaptive_k_goes_by():
    keys, queries, labels, _ = blobs()
    bank = MemoryBank(8)
    bank.add(keys.astype(np.float32), labels)
    near = bank.search(queries.astype(np.float32), 64)
    served = ByCertificate(Weighting("softmax", 1.5), (4, 64), 0.1).bounds(near, bank)
    for place, k in enumerate((4, 64)):
        np.testing.assert_allclose(certificate(-1.5 * near.distances[:, :k], 600), served[:, place], rtol=1e-9)


def test_extreme_logits_have_a_certificate():
    top = np.array([[1e5, 0.0], [0.0, -1e5], [1e5, 1e5]])
    assert certificate(top, 4).tolist() == pytest.approx([0, 0, 0.5])
    assert certificate(top, 2).tolist() == [0, 0, 0]


FAULTY = {
    "halved": lambda top, n, bias: certificate(top, n, bias) / 2,
    "blind to the last row": lambda top, n, bias: certificate(top, n - 1, bias),
    "without the bias": lambda top, n, bias: certificate(top, n),
    "not a number": lambda top, n, bias: np.full(len(top), np.nan),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_wrong_certificate_is_found_out(fault):
    draw = np.random.default_rng(1)  # rows outside that are nearly as near as those inside: no slack
    seen = searched(np.ones((50, 4)) + 1e-6 * draw.normal(size=(50, 4)), np.zeros((9, 4)), 1.0, "l2", 10)
    assert check_certificate(seen, [3, 10], bias=0.5).verdict == "pass"
    check = check_certificate(seen, [3, 10], bias=0.5, bound=FAULTY[fault])
    assert (check.verdict, check.numbers["violations"]) == ("fail", 18)


def test_a_search_that_misses_the_nearest_row_breaks_the_certificate():
    seen = seen_by()
    ordered = np.argsort(-seen.logits, axis=1)
    sharp = 40 * seen.logits
    assert check_certificate(Searched(sharp, ordered[:, :64]), [16, 64]).verdict == "pass"
    assert check_certificate(Searched(sharp, ordered[:, 1:65]), [16, 64]).verdict == "fail"


def test_without_a_bound_on_biases_there_is_no_certificate():
    seen = seen_by()
    for unknown in (math.inf, math.nan):
        check = check_certificate(seen, [4], bias=unknown)
        assert (check.verdict, check.numbers) == ("not run", {})
        assert "biases" in check.found
    with pytest.raises(InvalidInput, match="-1"):
        check_certificate(seen, [4], bias=-1.0)


def test_the_certificate_tells_how_tight_it_is():
    rows = check_certificate(seen_by(), [1, 16, 64]).numbers["by_k"]
    assert [each["k"] for each in rows] == [1, 16, 64]
    for each in rows:
        assert 0 < each["missing"] <= each["certificate"] < 1
    assert rows[0]["missing"] > rows[2]["missing"]


# Lazy Gumbel sampling


@pytest.mark.parametrize("k", [1, 3, 11])
def test_lazy_winners_are_distributed_as_those_of_brute_force(k):
    logits = -np.sort(-np.random.default_rng(2).normal(0, 1, 12))
    lazy = sample(logits, k, 6000, np.random.default_rng(3)).counts
    brute = (logits + np.random.default_rng(4).gumbel(size=(6000, 12))).argmax(axis=1)
    table = np.array([lazy, np.bincount(brute, minlength=12)])
    assert lazy.sum() == 6000
    assert lazy[k:].sum() > 0
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize("bar", [-3.0, 0.0, 5.0, 30.0])
def test_noise_above_a_bar_is_gumbel_noise_given_that(bar):
    noise = gumbel_above(bar, 4000, np.random.default_rng(5))
    assert noise.min() >= bar - 1e-9
    survival = stats.gumbel_r.sf(noise) / stats.gumbel_r.sf(bar)
    assert stats.kstest(survival, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("k", [1, 5, 20])
def test_with_equal_logits_the_rows_looked_at_reach_what_theory_allows(k):
    looked = sample(np.zeros(50), k, 4000, np.random.default_rng(6)).looked
    assert abs(looked.mean() - (50 - k) / (k + 1)) < 4 * looked.std() / math.sqrt(4000)


def half_the_tail(logits, k, random):
    return lazy_winner(logits[: k + (len(logits) - k) // 2], k, random)


def no_tail(logits, k, random):
    return int((logits[:k] + random.gumbel(size=k)).argmax()), 0


def all_of_it(logits, k, random):
    return int((logits + random.gumbel(size=len(logits))).argmax()), len(logits) - k


@pytest.mark.parametrize("sampler", [half_the_tail, no_tail, all_of_it])
def test_a_sampler_that_looks_at_too_few_rows_or_too_many_is_found_out(sampler):
    check = check_gumbel(seen_by().logits, 16, draws=4000, sampler=sampler)
    assert check.verdict == "fail"
    right = check.numbers["p"] > 1e-3
    assert right == (sampler is all_of_it)
    assert (check.numbers["mean_looked"] > check.numbers["bound"]) == right


def test_noise_that_ignores_the_bar_is_found_out(monkeypatch):
    logits = seen_by().logits
    assert check_gumbel(logits, 16, draws=4000).verdict == "pass"
    monkeypatch.setattr(beyond, "gumbel_above", lambda bar, size, random: random.gumbel(size=size))
    assert check_gumbel(logits, 16, draws=4000).verdict == "fail"


def test_of_many_rows_some_are_sampled_from():
    logits = np.random.default_rng(7).normal(size=(2, 2500))
    numbers = check_gumbel(logits, 2400, draws=300).numbers
    assert (numbers["n"], numbers["k"]) == (2000, 1000)
    assert numbers["bound"] == pytest.approx(1000 / 1001)


def test_one_row_with_all_the_weight_tests_no_sampler():
    logits = np.full((3, 40), -100.0)
    logits[:, 9] = 0.0
    check = check_gumbel(logits, 4, draws=100)
    assert (check.verdict, check.numbers["bins"]) == ("not run", 1)
    assert check_gumbel(logits, 4, draws=100, sampler=all_of_it).verdict == "fail"


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40))
def test_pooled_bins_expect_enough_and_lose_nothing(expected):
    expected = np.array(expected)
    starts = pooled(expected)
    sums = np.add.reduceat(expected, starts)
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert sums.sum() == pytest.approx(expected.sum())
    assert len(starts) == 1 or (sums >= 5).all()


def test_a_chi_square_without_pooling_is_that_of_scipy():
    counts, chances = np.array([30, 50, 20]), np.array([0.25, 0.5, 0.25])
    p, bins = chi_square(counts, chances)
    assert (p, bins) == (pytest.approx(stats.chisquare(counts, 100 * chances).pvalue), 3)


# A sampled tail


def test_the_whole_tail_is_full_attention_and_none_is_truncation():
    keys, queries, labels, _ = blobs(n=80, queries=1)
    seen = searched(keys, queries, 1.0, "l2", 8)
    near, random = seen.rows[0], np.random.default_rng(0)
    cut, sampled = tail_errors(seen.logits[0], near, labels, 3, 72, 5, random)
    onehot, full = np.eye(3)[labels], special.softmax(seen.logits[0])
    few = special.softmax(seen.logits[0, near]) @ onehot[near]
    assert cut == pytest.approx(0.5 * np.abs(few - full @ onehot).sum())
    assert cut > 0.01
    assert sampled == pytest.approx(0, abs=1e-12)


def test_a_sampled_tail_beats_truncation_where_many_rows_share_the_weight():
    keys, queries, labels, _ = blobs(n=5000, queries=20)
    numbers = check_tail(searched(keys, queries, 1.0, "l2", 16), labels, 3, k=16).numbers
    assert (numbers["n"], numbers["k"], numbers["tail_size"]) == (5000, 16, 71)
    assert numbers["with_tail"] < numbers["truncation"]
    assert numbers["difference"]["high"] < 0


def test_a_tail_whose_weight_is_in_one_row_makes_sampling_worse():
    logits, labels = np.full((30, 100), -50.0), np.zeros(100, np.int64)
    logits[:, 0], logits[:, 1], labels[1] = 0.0, -3.0, 1
    check = check_tail(Searched(logits, np.zeros((30, 1), np.int64)), labels, 2, k=1)
    assert check.verdict == "fail"
    assert check.numbers["truncation"] == pytest.approx(math.exp(-3) / (1 + math.exp(-3)))


def test_where_truncation_loses_nothing_there_is_nothing_to_win():
    seen = seen_by()
    check = check_tail(seen, np.zeros(600, np.int64), 1, k=16)
    assert (check.verdict, check.numbers["truncation"]) == ("not run", pytest.approx(0, abs=1e-12))


def test_numbers_that_four_decimals_would_hide_are_told():
    logits, labels = np.full((30, 100), -50.0), np.zeros(100, np.int64)
    logits[:, 0], logits[:, 1], labels[1] = 0.0, -13.0, 1
    seen = Searched(logits, np.zeros((30, 1), np.int64))
    check = check_tail(seen, labels, 2, k=1)
    assert "is 2.3e-06 with k = 1" in check.found
    assert ".0000" not in check.found
    assert "the median weight left out 2.3e-06" in check_certificate(seen, [1]).found


# Metrics and HNSW


def units(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_metrics_agree_on_unit_vectors_and_only_there():
    keys, queries, *_ = blobs()
    assert check_metrics_agree(units(keys), units(queries), 50).verdict == "pass"
    check = check_metrics_agree(keys, queries, 50)
    assert (check.verdict, check.numbers["violations"]) == ("fail", 40)


def test_vectors_of_one_direction_are_ties_and_zeros_have_none():
    keys, queries, labels, truth = blobs(n=60, queries=10)
    several = np.concatenate([keys, 3 * keys, keys / 7, np.zeros((2, 8))])
    how = {"scale": 5.0, "metric": "cosine", "k": 20, "classes": 3, "ks": ()}
    tied = [*labels, *labels, *labels, 0, 0]
    check = by_name(check_theory(several, queries, tied, truth, **how))["metrics agree"]
    assert (check.verdict, check.numbers["n"]) == ("pass", 180)
    assert check_metrics_agree(np.zeros((3, 2)), np.ones((2, 2)), 1).verdict == "not run"


def test_recall_grows_with_effort_to_all():
    draw = np.random.default_rng(8)
    keys, queries = draw.normal(size=(3000, 24)), draw.normal(size=(50, 24))
    curve = recall_curve(keys, queries, 10, "l2", (1, 2, 40, 1000))
    efforts, recalls = ([each[name] for each in curve] for name in ("ef_search", "recall"))
    assert efforts[0] >= 10  # it cannot find more than it keeps
    assert efforts[1:] == [40, 1000]
    assert 0.3 < recalls[0] < recalls[-1] <= 1
    assert recalls[-1] > 0.99


def test_without_faiss_recall_is_not_run_and_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "attnknn.bank.faiss", raising=False)
    check = check_hnsw(*blobs(n=30, queries=3)[:2], 4, "l2")
    assert check.verdict == "not run"
    assert "attnknn[faiss]" in check.found


# What is reported


def test_nll_by_k_is_that_of_the_vote_written_out():
    keys, queries, labels, truth = blobs(n=200)
    seen = searched(keys, queries, 1.0, "l2", 64)
    check = check_k(seen, labels, truth, 3, k=64, ks=[1, 8, 64])
    prior = np.bincount(labels) / 200
    for each in check.numbers["by_k"]:
        k = each["k"]
        order = np.argsort(-seen.logits, axis=1)[:, :k]
        weights = special.softmax(np.take_along_axis(seen.logits, order, axis=1), axis=1)
        votes = (weights[:, :, None] * np.eye(3)[labels[order]]).sum(axis=1)
        p = (votes + prior / k) / (1 + 1 / k)
        assert each["nll"] == pytest.approx(-np.log(p[np.arange(40), truth]).mean())
        assert each["low"] < each["nll"] < each["high"]
    assert check.numbers["k_over_sqrt_n"] == pytest.approx(64 / math.sqrt(200))
    gaps = -np.sort(-seen.logits, axis=1)
    assert check.numbers["logit_span"] == pytest.approx(np.median(gaps[:, 0] - gaps[:, 63]))


def test_a_k_that_costs_is_told_from_one_that_does_not():
    keys, queries, labels, truth = blobs(queries=200)
    seen = searched(keys, queries, 1.0, "l2", 64)
    wrong = check_k(seen, labels, truth, 3, k=1, ks=[1, 64])
    assert wrong.numbers["difference"]["low"] > 0
    assert "the k served, 1, has higher NLL" in wrong.found
    assert "that is the k served" in check_k(seen, labels, truth, 3, k=64, ks=[1, 64]).found


def test_where_few_queries_cannot_tell_no_difference_is_found():
    keys, queries, labels, truth = blobs(queries=5)
    check = check_k(searched(keys, queries, 1.0, "l2", 64), labels, truth, 3, k=64, ks=[16, 32, 64])
    assert check.numbers["best_k"] != 64
    assert check.numbers["difference"]["low"] < 0 < check.numbers["difference"]["value"]
    assert "no difference found to the k served, 64" in check.found


def test_a_class_that_the_bank_lacks_makes_nll_infinite():
    keys, queries, labels, truth = blobs(n=100)
    check = check_k(searched(keys, queries, 1.0, "l2", 8), labels % 2, truth, 3, k=1, ks=[1, 8])
    assert [each["nll"] for each in check.numbers["by_k"]] == [math.inf, math.inf]
    assert check.numbers["difference"] is None


def test_norms_are_those_of_the_vectors():
    numbers = check_norms(np.array([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]]), np.array([[1.0, 0.0]])).numbers
    assert numbers["keys"] == {"min": 1.0, "median": 2.0, "max": 5.0}
    assert numbers["queries"] == {"min": 1.0, "median": 1.0, "max": 1.0}


# Edges


def verdicts_of(keys, queries, labels, truth, **how):
    checks = check_theory(keys, queries, labels, truth, **{"metric": "l2", "scale": 1.0, "classes": 3, **how})
    return {each.name: each.verdict for each in checks}


def test_k_that_takes_in_all_rows_leaves_no_tail():
    found = verdicts_of(*blobs(n=5, queries=6), k=16)
    assert (found.pop("gumbel"), found.pop("tail")) == ("not run", "not run")
    assert list(found.values()) == ["pass"] * 3 + ["reported"] * 3


def test_of_a_single_row_nothing_is_left_out():
    found = verdicts_of(*blobs(n=1, queries=6), k=1)
    assert [name for name, verdict in found.items() if verdict == "not run"] == NAMES[:4]
    assert list(found.values())[4:] == ["pass"] + ["reported"] * 3


def test_one_neighbor_and_one_query_are_enough():
    found = verdicts_of(*blobs(n=200, queries=1), k=1, ks=())
    assert "not run" not in found.values()
    assert [found[name] for name in NAMES if name != "tail"] == ["pass"] * 4 + ["reported"] * 3


@pytest.mark.parametrize("metric", SCALES)
def test_equal_vectors_are_all_ties(metric):
    keys, queries, labels, truth = blobs(n=300, queries=8)
    same = np.tile(keys[:1], (300, 1))
    how = {"scale": 2.0, "metric": metric, "k": 4, "classes": 3, "ks": (64,)}
    checks = by_name(check_theory(same, queries, labels, truth, **how))
    assert [each.verdict for each in checks.values()] == ["pass"] * 5 + ["reported"] * 3
    for each in checks["certificate"].numbers["by_k"]:
        assert each["missing"] == pytest.approx(each["certificate"])
    assert [each["recall"] for each in checks["hnsw recall"].numbers["curve"]] == [1.0] * 6
    assert checks["k"].numbers["logit_span"] == 0


def test_the_same_seed_finds_the_same_and_queries_are_limited():
    how = {"scale": 1.0, "metric": "l2", "k": 100, "classes": 3, "most_queries": 7, "seed": 5, "ks": ()}
    first, again = (by_name(check_theory(*blobs(n=120), **how)) for _ in range(2))
    for name in NAMES:
        assert first[name] == again[name] or name == "hnsw recall"  # its graph is built by several threads
    assert first["truncation"].numbers["queries"] == 7


def test_vectors_that_nobody_may_write_to_are_read():
    keys, *rest = blobs(n=5, queries=5)
    keys.setflags(write=False)
    assert verdicts_of(keys, *rest, k=5)["truncation"] == "pass"


BAD = {
    "metric must be one of": {"metric": "dot"},
    "scale must be a positive number, got 0": {"scale": 0.0},
    "k must be a whole number": {"k": 0},
    "ks must be a whole number": {"ks": (0,)},
    "key_labels must lie within 0 and 1": {"classes": 2},
    "as wide as the keys, 8, got 2": {"queries": np.ones((40, 2))},
    "keys must be finite": {"keys": np.full((60, 8), np.nan)},
    "queries must have shape": {"queries": np.empty((0, 8))},
    "labels must have shape": {"truth": [0, 1]},
    "bias must not be negative": {"bias": -0.5},
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_used_is_refused(message):
    keys, queries, labels, truth = blobs(n=60)
    with pytest.raises(InvalidInput, match=message):
        verdicts_of(**{"keys": keys, "queries": queries, "labels": labels, "truth": truth, "k": 4, **BAD[message]})

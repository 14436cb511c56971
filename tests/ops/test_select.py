"""exact_topk against exhaustive search in NumPy, and the laws that follow from being exact."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnknn.errors import InvalidInput
from attnknn.ops import METRICS, NO_ROW, exact_topk, prepare, same_group
from attnknn.ops.plain_search import nearest_of

KINDS = ("normal", "ints", "offset", "duplicates", "outlier", "tiny", "zeros")
BUDGETS = (2**16, 2**20, 2**28)
seeds = st.integers(0, 2**32 - 1)
cases = st.fixed_dictionaries(
    {
        "seed": seeds,
        "n": st.one_of(st.integers(1, 60), st.sampled_from([1200, 2049, 5000])),
        "d": st.one_of(st.integers(1, 9), st.just(48)),
        "q": st.one_of(st.integers(1, 40), st.just(130)),
        "k": st.one_of(st.integers(1, 12), st.sampled_from([40, 100, 7000])),
        "metric": st.sampled_from(METRICS),
        "dtype": st.sampled_from([np.float32, np.float64]),
        "kind": st.sampled_from(KINDS),
        "budget": st.sampled_from(BUDGETS),
        "left_out": st.sampled_from([0.0, 0.05, 0.6, 1.0]),
    }
)


def drawn(rng, rows, d, kind):
    vectors = rng.normal(size=(rows, d))
    if kind == "ints":
        vectors = rng.integers(-3, 4, (rows, d)).astype(float)
    elif kind == "offset":
        vectors += 1e4
    elif kind == "duplicates":
        vectors = vectors[rng.integers(0, max(1, rows // 8), rows)]
    elif kind == "outlier":
        vectors[rng.integers(rows)] *= 1e6
    elif kind == "tiny":
        vectors *= 1e-20
    elif kind == "zeros":
        vectors[rng.random(rows) < 0.5] = 0.0
    return vectors


def problem(seed, n, d, q, kind, dtype, left_out=0.0):
    """Queries, keys (NumPy), and pairs to leave out; some queries are keys themselves."""
    rng = np.random.default_rng(seed)
    keys = drawn(rng, n, d, kind).astype(dtype)
    queries = drawn(rng, q, d, kind).astype(dtype)
    itself = rng.random(q) < 0.3
    queries[itself] = keys[rng.integers(0, n, itself.sum())]
    return queries, keys, np.argwhere(rng.random((q, n)) < left_out)


def normalized(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)


def reference(queries, keys, metric, pairs=()):
    """(q, n) distances in float64, infinite where left out."""
    queries, keys = queries.astype(np.float64), keys.astype(np.float64)
    if metric == "l2":
        gaps = np.stack([np.sqrt(np.square(query - keys).sum(axis=1)) for query in queries])
    else:
        if metric == "cosine":
            queries, keys = normalized(queries), normalized(keys)
        gaps = (metric == "cosine") - queries @ keys.T
    if len(pairs):
        gaps[pairs[:, 0], pairs[:, 1]] = np.inf
    return gaps


def rounding(queries, keys, metric):
    """What float64 itself may be off by: for a product, relative to the lengths multiplied."""
    if metric == "l2":
        return 0.0
    size = np.linalg.norm(queries.astype(float), axis=1).max() * np.linalg.norm(keys.astype(float), axis=1).max()
    return 1e-14 * (1.0 if metric == "cosine" else size)


def check(found, queries, keys, k, metric, pairs=()):
    """The answer is the k nearest, sorted, ties to the lower row, nothing left out."""
    truth = reference(queries, keys, metric, pairs)
    rows, gaps = found.rows.numpy(), found.distances.numpy()
    width = min(k, len(keys))
    assert rows.shape == gaps.shape == (len(queries), width)
    hit = rows != NO_ROW
    np.testing.assert_array_equal(hit.sum(axis=1), np.minimum(np.isfinite(truth).sum(axis=1), width))
    assert np.isinf(gaps[~hit]).all()
    atol = rounding(queries, keys, metric)
    expected = np.sort(truth, axis=1)[:, :width]
    np.testing.assert_allclose(gaps, expected, rtol=1e-12, atol=atol)
    at = np.where(hit, rows, 0)
    own = np.where(hit, np.take_along_axis(truth, at, axis=1), np.inf)
    np.testing.assert_allclose(gaps, own, rtol=1e-12, atol=atol)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        steps = np.diff(gaps, axis=1)
    later = np.diff(at, axis=1) > 0
    assert ((steps > 0) | ((steps == 0) & later) | ~hit[:, 1:]).all(), "not sorted by distance, then row"
    assert all(len(set(row[there].tolist())) == there.sum() for row, there in zip(rows, hit, strict=True))
    _, twin = np.unique(keys, axis=0, return_inverse=True)
    twin = twin.ravel()
    for query in range(len(queries) if twin.max() < len(keys) - 1 else 0):
        # Of equal keys, the lowest rows that may be found, in order.
        mine, free = rows[query][hit[query]], np.flatnonzero(np.isfinite(truth[query]))
        rank = np.full(len(keys), -1)
        rank[free] = place_among_twins(twin[free])
        np.testing.assert_array_equal(rank[mine], place_among_twins(twin[mine]), err_msg="equal keys out of order")


def place_among_twins(twins):
    """For each entry, how many equal ones come before it."""
    order = np.argsort(twins, kind="stable")
    ranked = twins[order]
    first = np.searchsorted(ranked, ranked)
    place = np.empty(len(twins), np.int64)
    place[order] = np.arange(len(twins)) - first
    return place


def searched(queries, keys, k, metric, pairs=None, **options):
    left = None if pairs is None else torch.from_numpy(pairs)
    asked, held = torch.from_numpy(queries), torch.from_numpy(keys)
    return exact_topk(asked, held, k, metric=metric, leave_out=left, **options)


@given(case=cases)
@settings(max_examples=120)
def test_finds_what_exhaustive_search_in_float64_finds(case):
    options = {name: case[name] for name in ("seed", "n", "d", "q", "kind", "dtype", "left_out")}
    if case["budget"] == BUDGETS[0]:  # each step is then so small that there are very many
        options |= {"n": min(case["n"], 1200), "q": min(case["q"], 20)}
    queries, keys, pairs = problem(**options)
    found = searched(queries, keys, case["k"], case["metric"], pairs, budget=case["budget"])
    check(found, queries, keys, case["k"], case["metric"], pairs)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_finds_the_nearest_of_many_keys_through_group_maxima(kind, metric):
    queries, keys, pairs = problem(7, 9000, 24, 64, kind, np.float32, left_out=0.001)
    check(searched(queries, keys, 10, metric, pairs), queries, keys, 10, metric, pairs)


@given(seed=seeds, n=st.integers(1, 400), k=st.integers(1, 50), metric=st.sampled_from(["l2", "ip"]))
def test_whole_numbers_give_the_very_rows_of_a_stable_sort(seed, n, k, metric):
    queries, keys, pairs = problem(seed, n, 3, 20, "ints", np.float64, left_out=0.1)
    truth = reference(queries, keys, metric, pairs)
    expected = np.argsort(truth, axis=1, kind="stable")[:, : min(k, n)]
    expected[np.isinf(np.take_along_axis(truth, expected, axis=1))] = NO_ROW
    np.testing.assert_array_equal(searched(queries, keys, k, metric, pairs).rows, expected)


@given(
    seed=seeds,
    n=st.sampled_from([5, 100, 700, 3000]),
    d=st.sampled_from([1, 3, 17, 40]),
    k=st.sampled_from([1, 7, 60]),
    metric=st.sampled_from(METRICS),
    kind=st.sampled_from(KINDS),
)
@example(seed=0, n=700, d=17, k=60, metric="cosine", kind="duplicates")
@settings(max_examples=50)
def test_answers_the_same_whatever_the_batch_and_the_budget(seed, n, d, k, metric, kind):
    queries, keys, _ = problem(seed, n, d, 40, kind, np.float32)
    whole = searched(queries, keys, k, metric)
    for budget in BUDGETS[:2]:
        small = searched(queries, keys, k, metric, budget=budget)
        torch.testing.assert_close(small.rows, whole.rows, rtol=0, atol=0)
    single = [searched(queries[at : at + 1], keys, k, metric).rows for at in range(0, 40, 7)]
    torch.testing.assert_close(torch.cat(single), whole.rows[::7], rtol=0, atol=0)


@pytest.mark.parametrize("metric", METRICS)
def test_more_queries_than_one_product_takes_are_answered_in_order(metric):
    queries, keys, pairs = problem(3, 300, 5, 2500, "normal", np.float32, left_out=0.01)
    check(searched(queries, keys, 4, metric, pairs), queries, keys, 4, metric, pairs)


@pytest.mark.parametrize("metric", METRICS)
def test_prepared_keys_give_the_answer_of_plain_ones(metric):
    queries, keys, _ = problem(11, 500, 6, 30, "offset", np.float64)
    plain = searched(queries, keys, 5, metric)
    ready = exact_topk(torch.from_numpy(queries), prepare(torch.from_numpy(keys), metric), 5)
    torch.testing.assert_close(ready.rows, plain.rows, rtol=0, atol=0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n", [1, 30, 5000])
def test_equal_keys_are_found_lowest_row_first(n, metric):
    keys = torch.ones(n, 7)
    found = exact_topk(torch.randn(20, 7, generator=torch.Generator().manual_seed(1)), keys, 10, metric=metric)
    assert found.rows.tolist() == [list(range(min(n, 10)))] * 20


@pytest.mark.parametrize("budget", BUDGETS)
@given(seed=seeds, metric=st.sampled_from(METRICS), n=st.sampled_from([3, 50, 2500]))
@settings(max_examples=15)
def test_what_is_left_out_is_never_found(budget, seed, metric, n):
    queries, keys, pairs = problem(seed, n, 4, 25, "duplicates", np.float32, left_out=0.5)
    found = searched(queries, keys, n, metric, pairs, budget=budget)
    seen = {(query, row) for query, rows in enumerate(found.rows.tolist()) for row in rows if row != NO_ROW}
    assert not seen & set(map(tuple, pairs.tolist()))
    assert len(seen) == 25 * n - len(pairs)


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1.0, 1e17])
@pytest.mark.parametrize("other", [1e-30, 1.0, 1e17])
@pytest.mark.parametrize("metric", METRICS)
def test_scales_far_apart_do_not_hide_the_nearest(scale, other, metric):
    rng = np.random.default_rng(5)
    queries, keys = scale * rng.normal(size=(20, 6)), other * rng.normal(size=(3000, 6))
    if metric == "l2":
        keys[:40] = queries.repeat(2, axis=0) * (1 + 1e-3 * rng.normal(size=(40, 1)))
    check(searched(queries, keys, 3, metric), queries, keys, 3, metric)


@pytest.mark.parametrize("k", [1, 11, 300, 1500])
@pytest.mark.parametrize("metric", METRICS)
def test_a_few_long_keys_do_not_blur_a_dense_crowd(k, metric):
    """Scores round by the length of keys: the crowd differs in less than the long ones would round to."""
    rng = np.random.default_rng(5)
    crowd = 20 + rng.normal(scale=1e-3, size=(4000, 16))
    keys = np.concatenate([crowd, rng.normal(scale=3e3, size=(40, 16))]).astype(np.float32)
    queries = np.concatenate([crowd[:20] + 1e-4, keys[-3:] + 1, rng.normal(size=(3, 16))]).astype(np.float32)
    check(searched(queries, keys, k, metric), queries, keys, k, metric)


def test_more_neighbors_than_keys_means_all_keys():
    found = exact_topk(torch.zeros(2, 1), torch.tensor([[3.0], [1.0], [2.0]]), 10**9)
    assert found.rows.tolist() == [[1, 2, 0]] * 2


@pytest.mark.parametrize("metric", METRICS)
def test_no_keys_or_no_queries_give_an_empty_answer(metric):
    assert exact_topk(torch.zeros(3, 2), torch.empty(0, 2), 5, metric=metric).rows.shape == (3, 0)
    nothing = exact_topk(torch.empty(0, 2), torch.zeros(4, 2), 3, metric=metric)
    assert nothing.rows.shape == nothing.distances.shape == (0, 3)


@pytest.mark.parametrize("k", [0, -1])
def test_a_k_below_one_is_refused(k):
    with pytest.raises(InvalidInput, match=f"k must be at least 1 and whole, got {k}"):
        exact_topk(torch.zeros(1, 1), torch.zeros(1, 1), k)


def test_no_row_raises_when_used_as_an_index():
    found = exact_topk(torch.zeros(1, 1), torch.zeros(3, 1), 3, leave_out=torch.tensor([[0, 1]]))
    assert found.rows.tolist() == [[0, 2, NO_ROW]]
    with pytest.raises(IndexError):
        np.zeros(10)[found.rows.numpy()]
    with pytest.raises(IndexError):
        torch.zeros(10)[found.rows]


def test_a_search_changes_none_of_its_inputs():
    queries, keys, pairs = (torch.from_numpy(part) for part in problem(2, 2000, 5, 40, "normal", np.float32, 0.01))
    held = [part.clone() for part in (queries, keys, pairs)]
    exact_topk(queries, keys, 9, leave_out=pairs, budget=2**16)
    for before, after in zip(held, (queries, keys, pairs), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("n", [50, 5000])
def test_vectors_that_require_a_gradient_can_be_searched(n):
    queries, keys, _ = (torch.from_numpy(part) for part in problem(4, n, 5, 30, "normal", np.float32))
    plain = exact_topk(queries, keys, 4)
    tracked = exact_topk(queries.clone().requires_grad_(), keys.clone().requires_grad_(), 4)
    torch.testing.assert_close(tracked.rows, plain.rows, rtol=0, atol=0)


@given(seed=seeds, queries=st.integers(0, 30), keys=st.integers(0, 30), groups=st.integers(1, 8))
def test_same_group_lists_the_pairs_of_two_loops(seed, queries, keys, groups):
    rng = np.random.default_rng(seed)
    asking, held = rng.integers(-2, groups, queries), rng.integers(-2, groups, keys)
    naive = [(i, j) for i in range(queries) for j in range(keys) if asking[i] >= 0 and asking[i] == held[j]]
    pairs = same_group(torch.from_numpy(asking), torch.from_numpy(held))
    assert pairs.shape == (len(naive), 2)
    assert sorted(map(tuple, pairs.tolist())) == naive


@given(seed=seeds, metric=st.sampled_from(METRICS), budget=st.sampled_from(BUDGETS))
@settings(max_examples=25)
def test_nearest_of_ranks_the_candidates_and_no_others(seed, metric, budget):
    queries, keys, _ = problem(seed, 80, 5, 12, "duplicates", np.float64)
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(80)[:20] for _ in queries])
    rows[rng.random(rows.shape) < 0.2] = NO_ROW
    others = np.array([(q, row) for q in range(12) for row in range(80) if row not in rows[q]])
    asked = (torch.from_numpy(part) for part in (queries, keys, rows))
    found = nearest_of(*asked, 6, metric=metric, budget=budget)
    check(found, queries, keys, 6, metric, others)


MEMORY = """
import json, re, torch
from attnknn.ops import exact_topk, prepare

def status(field):
    return int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

def peak(q, n, d, k, budget, kind):
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(n, d, generator=draw)
    if kind == "ties":
        vectors[:] = vectors[:3].repeat(n // 3 + 1, 1)[:n]
    keys, queries = prepare(vectors), torch.randn(q, d, generator=draw)
    exact_topk(queries[:1], keys.between(0, 100), 1)
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts over
    before = status("VmRSS")
    found = exact_topk(queries, keys, k, budget=budget)
    return status("VmHWM") - before - found.rows.numel() * 16

torch.set_num_threads(1)
MIB = 2**20
print(json.dumps({
    "many queries": [peak(1024, 60_000, 32, 10, 16 * MIB, "normal"), 16 * MIB, 4 * 1024 * 60_000],
    "every key tied": [peak(256, 60_000, 32, 10, 16 * MIB, "ties"), 16 * MIB, 4 * 256 * 60_000],
    "nearly all keys asked for": [peak(1, 200_000, 64, 150_000, 32 * MIB, "normal"), 32 * MIB, 8 * 200_000 * 64],
}))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc to see a peak")
def test_a_search_holds_no_more_than_its_budget_beside_keys_and_answer():
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", MEMORY], env=plain, capture_output=True, text=True, check=True)
    for case, (held, budget, careless) in json.loads(done.stdout).items():
        assert 2 * budget < careless, f"{case}: the test could not fail"
        assert held < 2 * budget, f"{case}: held {held / 2**20:.0f} MiB of {budget / 2**20:.0f}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_finds_what_exhaustive_search_finds(kind, metric):
    for n, q in ((50, 5), (20_000, 64)):
        queries, keys, pairs = problem(13, n, 24, q, kind, np.float32, left_out=0.01)
        asked = (torch.from_numpy(part).cuda() for part in (queries, keys))
        found = exact_topk(*asked, 10, metric=metric, leave_out=torch.from_numpy(pairs).cuda())
        check(type(found)(found.rows.cpu(), found.distances.cpu()), queries, keys, 10, metric, pairs)


def test_bfloat16_is_searched_as_the_numbers_that_it_holds():
    random = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(count, 8, generator=random).bfloat16() for count in (20, 60))
    found, wide = exact_topk(queries, keys, 5), exact_topk(queries.float(), keys.float(), 5)
    assert torch.equal(found.rows, wide.rows)
    assert torch.equal(found.distances, wide.distances)


@pytest.mark.parametrize("layout", ["by column", "a part", "bfloat16"])
def test_keys_may_lie_in_memory_as_they_like(layout):
    random = torch.Generator().manual_seed(0)
    wide = torch.randn(500, 24, generator=random)
    keys = {"by column": wide.T.contiguous().T, "a part": wide[:, ::3], "bfloat16": wide.bfloat16()}[layout]
    asked = keys[:40].float() + 0.1
    found = exact_topk(asked, keys, 30)
    want = exact_topk(asked, keys.float().contiguous(), 30)
    assert torch.equal(found.rows, want.rows)
    assert torch.equal(found.distances, want.distances)

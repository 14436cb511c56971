"""Search by fused kernels against search by torch: on a GPU, or else by the interpreter of Triton."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.ops import NO_ROW, exact_topk, fused_search, prepare, same_group, select
from attnknn.ops.keys import fill
from attnknn.ops.similarity import distances

pytest.importorskip("triton", reason="Triton is not installed")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
pytestmark = [pytest.mark.usefixtures("one_thread"), *[pytest.mark.gpu] * CUDA]  # there all of them count
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
METRICS = ("l2", "cosine", "ip")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Few queries will do, and the interpreter, which sorts one by one, gets small tiles."""
    monkeypatch.setattr(fused_search, "FEWEST", 10)
    if not CUDA:
        for name in ("_tile", "_sample_tile"):
            monkeypatch.setattr(fused_search, name, lambda: {"ROWS": 16, "COLUMNS": 64})
        for name, value in (("_RANK", 6), ("_ROOM", 16), ("MOST_CANDIDATES", 64)):
            monkeypatch.setattr(fused_search, name, value)


def drawn(queries=14, keys=150, dim=24, scale=1.0, away=3.0, seed=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    made = (torch.randn(count, dim, generator=random) for count in (queries, keys))
    return tuple((scale * (each + away)).to(DEVICE, dtype) for each in made)


def agree(queries, keys, k, **options):
    want = exact_topk(queries, keys, k, backend="torch", **options)
    got = exact_topk(queries, keys, k, backend="triton", **options)
    assert torch.equal(want.rows, got.rows)
    torch.testing.assert_close(
        want.distances, got.distances, rtol=1e-12, atol=1e-12 * float(keys.abs().max()) ** 2
    )


@pytest.fixture
def looked_again(monkeypatch):
    """How many queries torch looked at, once it is asked for nothing else."""
    seen = []
    plain = select.by_torch
    monkeypatch.setattr(select, "by_torch", lambda asked, *rest: seen.append(len(asked)) or plain(asked, *rest))
    return seen


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
def test_the_answer_is_that_of_torch(metric, scale):
    agree(*drawn(scale=scale), 5, metric=metric)


@pytest.mark.parametrize("metric", METRICS)
def test_of_many_keys_a_sample_says_which_to_look_at(metric, looked_again):
    agree(*drawn(keys=1500), 5, metric=metric)
    assert looked_again == [14]  # which was torch itself


def test_a_sample_that_misleads_costs_time_and_no_neighbor(looked_again):
    queries, keys = drawn(keys=1500)
    sampled = torch.arange(1500, device=DEVICE) // 64 % 4 == 0
    agree(queries, keys + 9.0 * sampled[:, None], 5)  # more keys are near than there is room for
    agree(queries, keys + 9.0 * ~sampled[:, None], 5)  # all are in the sample
    few = keys + torch.where(torch.arange(1500, device=DEVICE) < 40, 0.0, 9.0)[:, None]
    agree(queries, few, 20)  # fewer than the candidates that are asked for
    assert len(looked_again) > 3  # torch itself, and to look again


@pytest.mark.parametrize("metric", METRICS)
def test_equal_keys_come_in_the_order_of_their_rows(metric):
    queries, keys = drawn()
    keys[50:90] = keys[40]
    agree(queries, keys, 7, metric=metric)
    agree(keys[40:41].expand(14, -1), keys, 7, metric=metric)


@pytest.mark.parametrize(("asked", "held"), [(1e17, 1e150), (1e17, 1e200), (1e-80, 1e-80), (1e-160, 1e-300)])
def test_float64_has_room_for_cosines_of_any_length(asked, held):
    random = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(count, 20, generator=random, dtype=torch.float64) for count in (70, 300))
    want = 1 - torch.nn.functional.cosine_similarity(queries[:, None], keys[None], dim=-1)
    near = want.sort(dim=1)
    for backend in ("torch", "triton"):
        found = exact_topk(
            (queries * asked).to(DEVICE), (keys * held).to(DEVICE), 5, metric="cosine", backend=backend
        )
        assert torch.equal(found.rows.cpu(), near.indices[:, :5])
        torch.testing.assert_close(found.distances.cpu(), near.values[:, :5], rtol=1e-9, atol=1e-12)
    beside = distances((queries * asked)[:, None], (keys * held)[None], "cosine")
    torch.testing.assert_close(beside, want, rtol=1e-9, atol=1e-12)


def test_keys_that_are_multiples_of_each_other_tie_by_cosine():
    random = torch.Generator().manual_seed(2)
    queries, some = (torch.randint(-50, 50, (many, 24), generator=random).float() for many in (14, 30))
    keys = torch.stack([7 * some, some, 3 * some], dim=1).flatten(0, 1).to(DEVICE)
    for backend in ("torch", "triton"):
        rows = exact_topk(queries.to(DEVICE), keys, 15, metric="cosine", backend=backend).rows
        assert (rows.view(14, 5, 3) == rows.view(14, 5, 3)[..., :1] + torch.arange(3, device=DEVICE)).all()


def test_what_is_left_out_is_not_found():
    queries, keys = drawn()
    groups = torch.arange(150, device=DEVICE) % 50
    pairs = same_group(torch.arange(14, device=DEVICE), groups)
    agree(queries, keys, 5, leave_out=pairs)
    found = exact_topk(queries, keys, 5, leave_out=pairs, backend="triton").rows
    assert (groups[found] != torch.arange(14, device=DEVICE)[:, None]).all()


def test_hidden_keys_are_not_found():
    queries, keys = drawn()
    laid = prepare(keys)
    laid.table[-1, 20:] = -torch.inf
    agree_rows = [exact_topk(queries, laid, 15, backend=backend).rows for backend in ("torch", "triton")]
    assert torch.equal(*agree_rows)
    laid.table[-1, 8:] = -torch.inf
    rows = exact_topk(queries, laid, 15, backend="triton").rows
    assert (rows[:, 8:] == NO_ROW).all()
    assert (rows[:, :8].sort(dim=1).values == torch.arange(8, device=DEVICE)).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_hidden_key_that_no_sixteen_bits_hold_is_not_found():
    """Beside what is shown it is infinitely long, and infinity times 0 is no number."""
    queries, keys = drawn(away=0.0)
    keys[149] = 1e6
    table = torch.empty(25, 150, device=DEVICE)
    laid = replace(prepare(keys[:149], out=table), vectors=keys, table=table)
    table[:-1, 149], table[-1, 8:] = 1e6, -torch.inf
    for k in (5, 15):
        found = [exact_topk(queries, laid, k, backend=backend).rows for backend in ("torch", "triton")]
        assert torch.equal(*found)
        assert not (found[1] == 149).any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as NumPy tells it, which interprets
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_key_that_is_no_number_is_found_or_not_as_by_torch_and_nothing_is_written_beside_the_lists(
    metric, wrong, monkeypatch
):
    queries, keys = drawn()
    laid, lists = prepare(keys, metric), []
    laid.table[2, 3] = laid.vectors[3, 2] = wrong  # behind the back of all checks

    def watched(*shape, **options):
        if options.get("dtype") != torch.int64 or len(shape) != 3:
            return torch.empty(*shape, **options)
        lists.append(torch.full((shape[0] + 128, *shape[1:]), 77, **options))
        return lists[-1][: shape[0]]

    monkeypatch.setattr(fused_search, "torch", SimpleNamespace(**{**vars(torch), "empty": watched}))
    want, got = (exact_topk(queries, laid, 5, backend=each) for each in ("torch", "triton"))
    assert torch.equal(want.rows, got.rows)
    assert lists
    assert all((each[len(queries) :] == 77).all() for each in lists)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_refused(backend, metric, wrong):
    for at, name in enumerate(("queries", "keys")):
        given = drawn()
        given[at][3, 2] = wrong
        with pytest.raises(InvalidInput, match=f"{name} must be finite"):
            exact_topk(*given, 5, metric=metric, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_keys_whose_squares_are_beyond_float32_are_refused(backend):
    queries, keys = drawn(scale=1e15)
    exact_topk(queries, keys, 5, backend=backend)
    with pytest.raises(InvalidInput, match=r"no longer than 1e\+18"):
        exact_topk(queries, 1e5 * keys, 5, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_no_queries_find_nothing(backend):
    queries, keys = drawn()
    assert exact_topk(queries[:0], keys, 5, backend=backend).rows.shape == (0, 5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda keys: pickle.loads(pickle.dumps(keys))])
def test_copies_of_keys_that_are_written_to_search_what_was_written(copied):
    queries, keys = drawn()
    laid = prepare(keys)
    for _ in range(3):
        fill(laid, 0, keys[:1])
    exact_topk(queries, laid, 5, backend="triton")
    again = copied(laid)
    for _ in range(8):  # until it has been written to as often
        other = again.vectors.flip(0).clone()
        again.vectors.copy_(other)
        fill(again, 0, other)
        want, got = (exact_topk(queries, again, 5, backend=each).rows for each in ("torch", "triton"))
        assert torch.equal(want, got)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8, torch.uint16])
def test_pairs_may_be_whole_numbers_of_any_kind_and_those_beyond_the_queries_are_left(dtype):
    queries, keys = drawn()
    pairs = torch.tensor([[0, 3], [1, 5], [100, 2]], device=DEVICE)
    want = exact_topk(queries, keys, 5, leave_out=pairs[:2], backend="torch")
    for backend in ("torch", "triton"):
        found = exact_topk(queries, keys, 5, leave_out=pairs.to(dtype), backend=backend)
        assert torch.equal(want.rows, found.rows)
    below = torch.cat([pairs, pairs.new_tensor([[-1, 4]])])
    assert torch.equal(exact_topk(queries, keys, 5, leave_out=below, backend="triton").rows, want.rows)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("metric", METRICS)
def test_what_does_not_fit_is_refused_alike(backend, metric):
    queries, keys = drawn()
    for wrong in (queries[:, :12], queries[0]):
        with pytest.raises(InvalidInput, match=r"queries must have shape \(n, 24\)"):
            exact_topk(wrong, keys, 5, metric=metric, backend=backend)
    for k in (0, 2.5, True):
        with pytest.raises(InvalidInput, match="k must be at least 1 and whole"):
            exact_topk(queries, keys, k, metric=metric, backend=backend)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_types_and_places_that_do_not_fit_are_refused_alike(backend):
    queries, keys = drawn()
    some = torch.tensor([[0, 1]], device=DEVICE)
    for asked, there, left_out, told in (
        (
            queries.to(torch.complex64),
            keys,
            None,
            "queries must be real floating-point numbers of 16 to 64 bits, got torch.complex64",
        ),
        (queries, keys.long(), None, "keys must be real floating-point numbers of 16 to 64 bits, got torch.int64"),
        (queries, keys.to(torch.float8_e5m2), None, "keys must be real .*, got torch.float8_e5m2"),
        (queries[:, :0], keys[:, :0], None, "vectors must have at least one number"),
        (queries.cpu().numpy(), keys, None, "queries must be a tensor, got ndarray"),
        (queries, [1.0], None, "keys must be a tensor, got list"),
        (queries, keys[0], None, r"keys must have shape \(n, d\), got \(24,\)"),
        (queries, keys, some.float(), "leave_out must be whole numbers, got torch.float32"),
        (queries, keys, some[0], r"leave_out must have shape \(pairs, 2\), got \(2,\)"),
        (queries, keys.to("meta"), None, f"queries are on {DEVICE.type}.*, keys on meta"),
        (queries, keys, some.to("meta"), f"queries are on {DEVICE.type}.*, leave_out on meta"),
    ):
        with pytest.raises(InvalidInput, match=told):
            exact_topk(asked, there, 5, leave_out=left_out, backend=backend)
    with pytest.raises(InvalidInput, match="metric must be one of"):
        exact_topk(queries, keys, 5, metric="l1", backend=backend)
    with pytest.raises(InvalidInput, match="metric must be one of"):
        exact_topk(queries.to("meta"), keys.to("meta"), 5, metric="l1", backend=backend)
    with pytest.raises(InvalidInput, match="backend must be one of"):
        exact_topk(queries.to("meta"), keys.to("meta"), 5, backend=f"{backend}s")


@pytest.mark.parametrize("laid", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_a_compiler_makes_one_graph_of_a_search_for_any_number_of_queries_and_keys(laid):
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def asked(queries, keys, left_out):
        return exact_topk(queries, keys, 5, leave_out=left_out)

    torch.compiler.reset()
    whole = torch.compile(asked, backend=counted, fullgraph=True)
    for count in (14, 22, 31, 90):
        queries, keys = drawn(queries=count, keys=3 * count, seed=count)
        there = prepare(keys) if laid else keys
        pairs = torch.arange(count, device=DEVICE)[:, None].expand(-1, 2)
        for one, other in zip(whole(queries, there, pairs), asked(queries, there, pairs), strict=True):
            assert torch.equal(one, other)
    assert len(graphs) == 2  # one for the first, one for any other
    shapes = exact_topk(queries.to("meta"), keys.to("meta"), 500)
    assert (shapes.rows.shape, shapes.distances.dtype) == ((90, 270), torch.float64)


def test_where_sixteen_bits_cannot_tell_keys_apart_torch_looks_again(looked_again):
    queries, keys = drawn(away=0.0)
    keys = keys[:1] + 1e-5 * keys  # all but one point, as a 16-bit number sees it
    keys[0] += 100.0
    want = exact_topk(queries, keys, 5, backend="torch")
    looked_again.clear()
    got = exact_topk(queries, keys, 5, backend="triton")
    assert looked_again == [14]
    assert torch.equal(want.rows, got.rows)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
def test_scores_as_large_as_they_can_be():
    queries, keys = drawn(away=0.0)
    keys[3] *= 1e17
    agree_rows = [
        exact_topk(1e17 * queries, keys, 5, metric="ip", backend=each).rows for each in ("torch", "triton")
    ]
    assert torch.equal(*agree_rows)
    for backend in ("torch", "triton"):
        with pytest.raises(InvalidInput, match=r"queries must be finite and no longer than 1e\+18"):
            exact_topk(1e20 * queries, keys, 5, metric="ip", backend=backend)


def test_where_they_can_it_does_not(looked_again):
    exact_topk(*drawn(), 5, backend="triton")
    assert not looked_again


def test_a_second_look_leaves_out_what_the_first_did(looked_again, monkeypatch):
    monkeypatch.setattr(fused_search, "ROUNDOFF", 1.0)  # nothing is sure
    queries, keys = drawn()
    pairs = same_group(torch.arange(14, device=DEVICE), torch.arange(150, device=DEVICE) // 2)
    agree(queries, keys, 5, leave_out=pairs)
    assert looked_again == [14, 14]


def test_keys_are_searched_in_parts_and_long_vectors_in_chunks(monkeypatch):
    monkeypatch.setattr(fused_search, "_parts", lambda *_: 4)
    agree(*drawn(), 5)
    agree(*drawn(dim=300), 5)


def test_what_the_kernels_cannot_serve_is_refused_by_name_and_left_to_torch_otherwise():
    queries, keys = drawn()
    with pytest.raises(InvalidInput, match=r"backend='triton' cannot serve: .*too many candidates"):
        exact_topk(queries, keys, 149, backend="triton")
    assert torch.equal(exact_topk(queries, keys, 149).rows, exact_topk(queries, keys, 149, backend="torch").rows)


def test_few_queries_are_left_to_torch_unless_the_kernels_are_named(looked_again):
    queries, keys = drawn(queries=9)
    found = exact_topk(queries, keys, 5, backend="triton").rows
    assert not looked_again
    assert torch.equal(found, exact_topk(queries, keys, 5).rows)
    assert looked_again == [9]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("k", "dim"), [(1, 8), (16, 256), (64, 100), (128, 700)])
def test_many_keys_on_a_gpu(metric, k, dim):
    queries, keys = drawn(queries=1000, keys=20_011, dim=dim, away=0.1)
    agree(queries, keys, k, metric=metric)
    pairs = torch.arange(1000, device=DEVICE)[:, None].expand(-1, 2)
    agree(keys[:1000], keys, min(k, 100), metric=metric, leave_out=pairs)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_vectors_on_a_gpu(dtype):
    agree(*drawn(queries=500, keys=5000, dim=64, away=0.0, dtype=dtype), 16)


def test_keys_that_are_written_to_after_a_search_are_seen():
    queries, keys = drawn()
    laid = prepare(keys)
    before = exact_topk(queries, laid, 5, backend="triton").rows
    assert laid.narrow()[0] is laid.narrow()[0]
    keys[before[:, 0]] += 50.0
    fill(laid, 0, keys)
    after = exact_topk(queries, laid, 5, backend="triton").rows
    assert torch.equal(after, exact_topk(queries, laid, 5, backend="torch").rows)
    assert not torch.equal(after, before)

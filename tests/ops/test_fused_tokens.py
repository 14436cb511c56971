"""The fused kernels of token attention against torch: on a GPU, or else by the interpreter of Triton."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from functorch.compile import aot_function, nop

from attnknn.errors import InvalidInput
from attnknn.ops import backends, fused_tokens
from attnknn.ops.token_attention import knn_attention, nearest_attention

pytest.importorskip("triton", reason="Triton is not installed")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")

pytestmark = [pytest.mark.usefixtures("one_thread"), *[pytest.mark.gpu] * CUDA]  # there all of them count
on_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def drawn(batch=1, heads=1, queries=20, tokens=None, dim=8, width=None, dtype=torch.float32, seed=0):
    random = torch.Generator().manual_seed(seed)
    tokens, width = queries if tokens is None else tokens, dim if width is None else width
    shapes = ((queries, dim), (tokens, dim), (tokens, width))
    made = (torch.randn(batch, each[0], heads, each[1], generator=random).transpose(1, 2) for each in shapes)
    return [each.to(DEVICE, dtype).detach().requires_grad_() for each in made]


def both(q, k, v, kept, *, factors=True, **options):
    """Result, indices and gradients, by torch and by Triton."""
    factor = None
    if factors:
        factor = (
            torch.randn(v.shape[3], kept, generator=torch.Generator().manual_seed(9)).to(DEVICE).requires_grad_()
        )
    leaves = [each for each in (q, k, v, factor) if each is not None]
    leaves += [each for each in options.values() if isinstance(each, torch.Tensor) and each.requires_grad]
    for backend in ("torch", "triton"):
        out, indices = knn_attention(
            q, k, v, kept, rank_weights=factor, backend=backend, return_indices=True, **options
        )
        slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
        yield out, indices, *torch.autograd.grad(out, leaves, slope)


def agree(q, k, v, kept, *, within=2e-6, **options):
    (want, wanted, *slopes), (got, found, *turned) = both(q, k, v, kept, **options)
    assert torch.equal(wanted, found)
    for one, other in zip((want, *slopes), (got, *turned), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        apart = (one.double() - other.double()).norm() / one.double().norm().clamp(min=1e-9)
        assert apart < within, apart


PADDING = (torch.rand(1, 20, generator=torch.Generator().manual_seed(3)) < 0.4).to(DEVICE)
CANDIDATES = torch.arange(0, 20, 3, device=DEVICE)
OPTIONS = [
    {},
    {"factors": False},
    {"softmax": False},
    {"similarity": "cosine"},
    {"similarity": "euclidean"},
    {"similarity": "euclidean", "softmax": False},
    {"is_causal": True},
    {"key_padding_mask": PADDING, "is_causal": True},
    {"candidates": CANDIDATES},
    {"candidates": CANDIDATES, "key_padding_mask": PADDING, "similarity": "euclidean"},
    {"candidates": CANDIDATES, "is_causal": True, "factors": False},
    {"scale": torch.tensor([[[0.3]], [[2.0]]], device=DEVICE, requires_grad=True)},
    {
        "scale": torch.tensor([[[0.3]], [[2.0]]], device=DEVICE, requires_grad=True),
        "similarity": "euclidean",
    },
]


def told(options):
    return (
        "-".join(f"{key}={'tensor' if torch.is_tensor(each) else each}" for key, each in options.items())
        or "plain"
    )


@pytest.fixture(params=[False, True], ids=["scattered", "summed"])
def order(request):
    """Gradients of keys by queries that add to them, and by keys that sum over queries."""
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("options", OPTIONS, ids=told)
def test_results_and_gradients_are_those_of_torch(options):
    heads = 2 if torch.is_tensor(options.get("scale")) else 1
    agree(*drawn(heads=heads), 5, **options)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ({"queries": 1, "tokens": 1, "dim": 4}, 1),
        ({"queries": 3, "tokens": 70, "dim": 5, "width": 17, "batch": 2, "heads": 2}, 9),
        ({"queries": 40, "tokens": 18, "dim": 16, "heads": 1}, 16),
        ({"queries": 18, "dim": 18, "heads": 1}, 40),  # more than there are
    ],
    ids=str,
)
@pytest.mark.usefixtures("order")
def test_any_number_of_queries_keys_and_channels_will_do(sizes, kept):
    agree(*drawn(**sizes), kept)


@pytest.mark.usefixtures("order")
def test_half_precision_is_added_up_in_float32():
    agree(*drawn(dtype=torch.float16), 5, within=2e-3)


@pytest.mark.parametrize(("tokens", "kept"), [(5, 1), (64, 9), (100, 9), (100, 20)])
@pytest.mark.parametrize("crowded", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"padded": True}], ids=told)
def test_of_sixteen_bits_keys_are_listed_and_where_too_many_tie_not(tokens, kept, crowded, options):
    q, k, v = drawn(batch=1, heads=2, queries=18, tokens=tokens, dim=16, dtype=torch.float16)
    q, k = ((4 * each.detach()).round() / 4 for each in (q, k))  # sums of these are exact
    if crowded:
        k = k.sign() * torch.tensor([1.0] + [0.0] * 15, device=DEVICE, dtype=k.dtype)
    options = {**options}
    if options.pop("padded", False):
        options["key_padding_mask"] = torch.arange(tokens, device=DEVICE).expand(1, -1) % 3 == 1
    agree(q.requires_grad_(), k.requires_grad_(), v, min(kept, tokens), within=2e-3, **options)


def test_ties_go_to_the_lower_index():
    q, k, v = drawn()
    q, k = ((4 * each.detach()).round().requires_grad_() for each in (q, k))  # sums are exact in any order
    same = k[:, :, :1].detach().expand_as(k).contiguous().requires_grad_()
    agree(q, k, v, 7)
    _, indices = knn_attention(q, same, v, 7, backend="triton", return_indices=True)
    assert (indices == torch.arange(7, device=DEVICE)).all()


def test_a_query_that_sees_nothing_gets_nothing():
    q, k, v = drawn()
    hidden = torch.ones(1, 20, dtype=torch.bool, device=DEVICE)
    agree(q, k, v, 4, key_padding_mask=hidden)
    out, indices = knn_attention(q, k, v, 4, key_padding_mask=hidden, backend="triton", return_indices=True)
    assert not out.any()
    assert (indices == -1).all()


@pytest.mark.usefixtures("order")
def test_dropped_weights_are_dropped_in_the_gradient_too():
    q, k, v = drawn()
    torch.manual_seed(0)
    out, indices = knn_attention(q, k, v, 5, dropout_p=0.5, backend="triton", return_indices=True)
    slope = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), slope)
    torch.manual_seed(0)
    keep = torch.nn.functional.dropout(torch.ones(indices.shape, device=DEVICE), 0.5)
    weights = (q @ k.transpose(-2, -1) * 8**-0.5).gather(-1, indices).softmax(dim=-1) * keep
    expected = torch.einsum(
        "bhqk,bhqkd->bhqd",
        weights,
        v[:, :, None].expand(-1, -1, 20, -1, -1).gather(3, indices[..., None].expand(*indices.shape, 8)),
    )
    torch.testing.assert_close(out, expected)
    for one, other in zip(got, torch.autograd.grad(expected, (q, k, v), slope), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_operation_tells_torch_what_it_makes():
    q, k, v = drawn(queries=6, dim=4)
    given = (q, k, v, torch.ones(2, 4, device=DEVICE), None, None, None, 2, 0.5, False, True, False)
    torch.library.opcheck(
        torch.ops.attnknn.token_attention.default,
        given,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attn_mask": torch.ones(20, 20, dtype=torch.bool, device=DEVICE)}, "there is an attn_mask"),
        ({"rank_weights": torch.ones(8, 8, 5, device=DEVICE)}, "rank_weights are matrices"),
    ],
)
def test_what_the_kernels_cannot_serve_is_refused_by_name_and_left_to_torch_otherwise(change, reason):
    q, k, v = drawn()
    with pytest.raises(InvalidInput, match=f"backend='triton' cannot serve: {reason}"):
        knn_attention(q, k, v, 5, backend="triton", **change)
    torch.testing.assert_close(
        knn_attention(q, k, v, 5, **change), knn_attention(q, k, v, 5, backend="torch", **change)
    )


def test_wide_heads_many_neighbors_and_float64_are_refused():
    for sizes, kept, reason in (
        ({"dim": 130}, 5, "130 wide, more than 128"),
        ({"queries": 70}, 65, "65 keys are kept, more than 64"),
        ({"dtype": torch.float64}, 5, "not all of 16 or 32 bits"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            knn_attention(*drawn(**sizes), kept, backend="triton")


def test_an_unknown_backend_is_refused():
    with pytest.raises(InvalidInput, match="backend must be one of auto, torch, triton, got 'cuda'"):
        knn_attention(*drawn(), 5, backend="cuda")


def test_what_was_chosen_and_why_is_logged_once(caplog):
    backends._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger=backends.__name__):
        for _ in range(2):
            knn_attention(*drawn(), 5, attn_mask=torch.ones(20, 20, dtype=torch.bool, device=DEVICE))
    reason = "there is an attn_mask" if CUDA else "the tensors are on cpu"
    assert caplog.messages == [f"token attention by torch: {reason}"]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [17, 65, 197, 300])
@pytest.mark.usefixtures("order")
def test_types_and_lengths_on_a_gpu(dtype, tokens):
    (want, wanted, *slopes), (got, found, *turned) = both(
        *drawn(batch=2, heads=3, queries=tokens, dim=64, dtype=dtype), 9
    )
    within = 2e-6 if dtype == torch.float32 else 2e-2
    assert (wanted == found).float().mean() > 0.999  # sums of another order may part two scores that all but tie
    for one, other in zip((want, *slopes), (got, *turned), strict=True):
        assert (one.float() - other.float()).norm() / one.float().norm() < max(
            within, 3e-2 * (wanted != found).any()
        )


@pytest.mark.gpu
@on_gpu
def test_on_a_gpu_the_kernels_serve_by_themselves_also_compiled_and_under_autocast(caplog):
    backends._tell.cache_clear()
    q, k, v = drawn(batch=2, heads=3, queries=65, dim=64, dtype=torch.bfloat16)
    with caplog.at_level(logging.INFO, logger=backends.__name__):
        plain = knn_attention(q, k, v, 9)
    assert caplog.messages[0].startswith("token attention by triton")
    asked = torch.compile(lambda *given: knn_attention(*given, 9), fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(asked(q, k, v), plain)
    grads = torch.autograd.grad(asked(q, k, v).float().sum(), (q, k, v))
    for one, other in zip(grads, torch.autograd.grad(plain.float().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("similarity", ["matmul", "cosine", "euclidean"])
@pytest.mark.parametrize("wrong", [1e6, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_what_padding_holds_makes_no_difference(similarity, wrong, backend):
    q, k, v = drawn()
    padding = torch.zeros(1, 20, dtype=torch.bool, device=DEVICE)
    padding[:, [0, 7, 19]] = True  # a query that sees too few keys points at the first
    options = {"key_padding_mask": padding, "similarity": similarity, "backend": backend, "is_causal": True}
    found = []
    for filled in (0.0, wrong):
        held = [each.detach().clone() for each in (k, v)]
        for each in held:
            each[:, :, padding[0]] = filled
        leaves = [q, *(each.requires_grad_() for each in held)]
        out, indices = knn_attention(*leaves, 5, return_indices=True, **options)
        found.append((out, indices, *torch.autograd.grad(out.square().sum(), leaves)))
    within = 1e-5 if CUDA else 0.0  # there, additions that are scattered come in any order
    for at, (one, other) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(one, other, rtol=within * (at > 1), atol=within * (at > 1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as NumPy tells it, which interprets
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_key_that_is_no_number_is_seen_whatever_its_sign(sign):
    q, k, v = drawn()
    with torch.no_grad():
        k[:, :, 3] = torch.tensor(float("nan"), device=DEVICE).copysign(torch.tensor(sign, device=DEVICE))
    for backend in ("torch", "triton"):
        out, indices = knn_attention(q, k, v, 4, backend=backend, return_indices=True)
        assert out.isnan().all()
        assert (indices[..., 0] == 3).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as NumPy tells it, which interprets
@pytest.mark.usefixtures("order")
def test_slopes_beyond_half_precision_stay_finite_where_the_gradient_is():
    q, k, v = drawn(dtype=torch.float16, dim=16)
    factors = torch.full((16, 4), 3.0, device=DEVICE)
    slope = torch.full(v.shape, 3e4, device=DEVICE, dtype=torch.float16)
    out = knn_attention(q, k, (v.detach() / 1e4).requires_grad_(), 4, rank_weights=factors, backend="triton")
    to_q, to_k = torch.autograd.grad(out, (q, k), slope)
    assert to_q.isfinite().all()
    assert to_k.isfinite().all()
    small = knn_attention(q, k, v, 4, rank_weights=1e-3 * factors, backend="triton")
    (to_v,) = torch.autograd.grad(small, v, torch.full_like(slope, 1e-4))
    assert (to_v != 0).any()


def test_a_scale_may_be_of_another_precision():
    q, k, v = drawn(heads=2)
    scale = torch.tensor([[[0.5]], [[2.0]]], device=DEVICE, dtype=torch.float64)
    found = [knn_attention(q, k, v, 4, scale=scale, backend=backend) for backend in ("torch", "triton")]
    torch.testing.assert_close(found[0].float(), found[1].float())


@pytest.mark.gpu
@on_gpu
def test_gradients_on_a_gpu_are_the_same_on_every_run_if_they_must_be():
    torch.use_deterministic_algorithms(True)
    q, k, v = drawn(batch=4, heads=3, queries=197, dim=64, dtype=torch.bfloat16)
    factor = torch.ones(64, 9, device=DEVICE, requires_grad=True)
    runs = [
        torch.autograd.grad(
            knn_attention(q, k, v, 9, rank_weights=factor).float().square().sum(), (q, k, v, factor)
        )
        for _ in range(3)
    ]
    torch.use_deterministic_algorithms(False)
    for each in runs[1:]:
        for one, other in zip(runs[0], each, strict=True):
            assert torch.equal(one, other)


def test_with_candidates_and_one_neighbor_a_token_keeps_itself():
    agree(*drawn(), 1, candidates=CANDIDATES)


def test_a_padding_mask_may_lie_in_memory_as_it_likes():
    hidden = (torch.rand(20, 2, generator=torch.Generator().manual_seed(3)) < 0.4).to(DEVICE).T
    agree(*drawn(batch=2), 5, key_padding_mask=hidden)
    agree(*drawn(batch=2), 5, key_padding_mask=hidden[:1].expand(2, -1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
def test_what_is_not_a_number_stays_visible():
    for at in range(2):
        given = [each.detach().clone() for each in drawn()]
        given[at][0, 0, 4] = torch.nan
        want, got = (knn_attention(*given, 5, backend=backend) for backend in ("torch", "triton"))
        assert got.isnan().any()
        assert torch.equal(want.isnan(), got.isnan())


def test_a_compiler_that_traces_the_gradient_meets_operations_only():
    q, k, v = drawn(heads=2)
    factor = torch.ones(8, 5, device=DEVICE, requires_grad=True)

    def asked(q, k, v, factor):
        return fused_tokens._forward(q, k, v, factor, None, None, None, 5, 0.3, False, True, False)[0]

    traced = aot_function(asked, fw_compiler=nop, bw_compiler=nop)  # with tensors that hold no numbers
    got, want = (each(q, k, v, factor) for each in (traced, asked))
    assert torch.equal(got, want)
    for one, other in zip(
        *(torch.autograd.grad(each.square().sum(), (q, k, v, factor)) for each in (got, want)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_second_derivatives_are_refused_in_words():
    q, k, v = drawn()
    (slope,) = torch.autograd.grad(
        knn_attention(q, k, v, 5, backend="triton").square().sum(), q, create_graph=True
    )
    with pytest.raises(InvalidInput, match="no second derivatives"):
        slope.sum().backward()


def test_candidates_out_of_range_are_not_read():
    """Where nothing checks them, as within a compiled step, the kernel still keeps to its memory."""
    q, k, v = drawn()
    given = torch.tensor([3, 6, 20, 9000], device=DEVICE)
    _, kept = nearest_attention(q, k, v, 5, scale=0.5, candidates=given, backend="triton")
    assert int(kept.max()) < 20


@pytest.mark.parametrize("backend", ["torch", "triton", "auto"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3.0, 6.0], "candidates must be whole numbers, got torch.float32"),
        ([3, 20], "candidates must be indices from 0 to 19, got 20"),
        ([-1, 3], "candidates must be indices from 0 to 19, got -1"),
        ([6, 3, 6], "candidates must be there once each, got 6 more than once"),
    ],
)
def test_wrong_candidates_are_refused_alike_by_every_backend(backend, given, message):
    with pytest.raises(InvalidInput, match=message):
        knn_attention(*drawn(), 5, candidates=torch.tensor(given, device=DEVICE), backend=backend)


@pytest.mark.gpu
@on_gpu
def test_candidates_are_not_looked_at_while_a_graph_is_recorded():
    q, k, v = (each.detach() for each in drawn())
    some = CANDIDATES.clone()
    for _ in range(2):
        expected = knn_attention(q, k, v, 5, candidates=some)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = knn_attention(q, k, v, 5, candidates=some)
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # as NumPy tells it, which interprets
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_key_that_is_no_number_writes_nothing_beside_the_lists(wrong, monkeypatch):
    q, k, v = drawn(queries=130, dim=16, dtype=torch.float16)  # 130 is no whole number of tiles
    with torch.no_grad():
        k[0, 0, 5, 0] = wrong
    lists = []

    def watched(*shape, **options):
        if options.get("dtype") != torch.int64 or len(shape) != 2:
            return torch.empty(*shape, **options)
        lists.append(torch.full((shape[0] + 128, shape[1]), 77, **options))
        return lists[-1][: shape[0]]

    monkeypatch.setattr(fused_tokens, "torch", SimpleNamespace(**{**vars(torch), "empty": watched}))
    with torch.no_grad():
        knn_attention(q, k, v, 4, backend="triton")
    assert lists
    assert all((each[130:] == 77).all() for each in lists)

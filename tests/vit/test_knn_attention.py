"""knn_attention against dense attention, the laws it keeps, and what it refuses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize, scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.ops import links as links_module
from attnknn.ops import tokens as tokens_module
from attnknn.ops.tokens import TOKEN_SIMILARITIES, largest_tokens
from attnknn.vit import knn_attention

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(seed, batch=2, heads=3, tokens=11, dim=4, dtype=torch.float64, grad=False):
    draw = torch.Generator().manual_seed(seed)
    made = (torch.randn(batch, heads, tokens, dim, generator=draw, dtype=dtype) for _ in range(3))
    return tuple(each.requires_grad_(grad) for each in made)


def dense(q, k, v, count, mask=None, added=None):
    """Softmax over the count largest of all scores, as a masked softmax over all."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if added is not None:
        scores = scores + added
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    least = scores.topk(min(count, scores.shape[-1])).values[..., -1:]
    weights = scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)
    return weights.nan_to_num(0.0) @ v


# --- laws ---------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=st.integers(0, 999), heads=st.integers(1, 4), tokens=st.integers(1, 20), more=st.integers(0, 5))
def test_with_all_keys_and_unit_rank_weights_it_is_scaled_dot_product_attention(seed, heads, tokens, more):
    q, k, v = drawn(seed, heads=heads, tokens=tokens)
    expected = scaled_dot_product_attention(q, k, v)
    ones = torch.ones(4, tokens + more, dtype=torch.float64)
    torch.testing.assert_close(knn_attention(q, k, v, tokens + more, rank_weights=ones), expected)
    torch.testing.assert_close(knn_attention(q, k, v, tokens + more), expected)


@given(seed=st.integers(0, 999), queries=st.integers(1, 6), keys=st.integers(1, 12), count=st.integers(1, 14))
def test_queries_and_keys_may_differ_in_number(seed, queries, keys, count):
    q, k, v = drawn(seed, tokens=12)
    q, k, v = q[:, :, :queries], k[:, :, :keys], v[:, :, :keys, :3]
    torch.testing.assert_close(knn_attention(q, k, v, count), dense(q, k, v, count))


@pytest.mark.parametrize("similarity", TOKEN_SIMILARITIES)
@pytest.mark.parametrize("softmax", [True, False])
def test_permuting_the_tokens_permutes_the_output_and_a_batch_changes_nothing(similarity, softmax):
    q, k, v = drawn(5)
    ranks = torch.randn(4, 3, dtype=torch.float64)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))

    def attended(*given):
        return knn_attention(*given, 3, similarity=similarity, softmax=softmax, rank_weights=ranks)

    whole = attended(q, k, v)
    torch.testing.assert_close(attended(*(each[:, :, order] for each in (q, k, v))), whole[:, :, order])
    torch.testing.assert_close(attended(*(each[1:] for each in (q, k, v))), whole[1:])


CONVOLUTIONS = {"none": None, "channels": (4, 3), "matrices": (5, 4, 3), "matrices by rank": (5, 4, 3)}


@pytest.fixture
def as_many(shape, monkeypatch):
    """Matrices are applied rank by rank where there are many neighbors, otherwise all at once."""
    if shape == "matrices by rank":
        monkeypatch.setattr(links_module, "_FEW", 0)


@pytest.mark.parametrize("sampled", [False, True], ids=["all", "sampled"])
@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "raw"])
@pytest.mark.parametrize(("similarity", "shape"), list(product(TOKEN_SIMILARITIES, CONVOLUTIONS)))
@pytest.mark.usefixtures("as_many")
def test_gradients_are_those_of_finite_differences(similarity, shape, softmax, sampled):
    q, k, v = drawn(7, batch=1, heads=2, tokens=6, grad=True)
    size = CONVOLUTIONS[shape]
    ranks = None if size is None else torch.randn(size, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([[[0.7]], [[1.3]]], dtype=torch.float64, requires_grad=True)
    candidates = torch.tensor([0, 2, 5]) if sampled else None

    def attended(q, k, v, scale, ranks):
        return knn_attention(
            q,
            k,
            v,
            3,
            similarity=similarity,
            softmax=softmax,
            scale=scale,
            rank_weights=ranks,
            candidates=candidates,
        )

    if similarity == "euclidean" and not softmax:
        scale = scale.detach()  # inverse distances have none
    assert torch.autograd.gradcheck(attended, (q, k, v, scale, ranks), fast_mode=True)


@pytest.mark.parametrize("similarity", TOKEN_SIMILARITIES)
@pytest.mark.parametrize("shape", CONVOLUTIONS)
@pytest.mark.usefixtures("as_many")
def test_gradients_have_gradients(similarity, shape):
    q, k, v = drawn(8, batch=1, heads=2, tokens=5, grad=True)
    size = CONVOLUTIONS[shape]
    ranks = None if size is None else torch.randn(size, dtype=torch.float64, requires_grad=True)

    def attended(q, k, v, ranks):
        return knn_attention(q, k, v, 3, similarity=similarity, rank_weights=ranks)

    assert torch.autograd.gradgradcheck(attended, (q, k, v, ranks), fast_mode=True)


def test_equal_vectors_at_distance_zero_have_finite_gradients():
    q, _, v = drawn(3, grad=True)
    out = knn_attention(q, q, v, 3, similarity="euclidean")
    out.sum().backward()
    assert all(each.grad.isfinite().all() for each in (q, v))
    _, kept = knn_attention(q, q, v, 3, similarity="euclidean", return_indices=True)
    assert (kept[..., 0] == torch.arange(11)).all()


def test_far_from_the_origin_distances_still_decide():
    draw = torch.Generator().manual_seed(0)
    near = torch.rand(1, 1, 40, 8, generator=draw)
    _, kept = knn_attention(near + 1000, near + 1000, near, 1, similarity="euclidean", return_indices=True)
    assert (kept[0, 0, :, 0] == torch.arange(40)).all()


# --- ties ---------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 9999), columns=st.integers(1, 300), count=st.integers(1, 12), levels=st.integers(1, 9))
def test_ties_go_to_the_lower_index(seed, columns, count, levels):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(-levels, levels, (3, columns), generator=draw).float()
    scores[scores == 1 - levels] = -torch.inf
    scores[0] = -0.0 * scores[0].nan_to_num(0.0, neginf=0.0)  # both zeros
    expected = [sorted(range(columns), key=lambda at, row=row: (-row[at], at)) for row in scores.tolist()]
    wanted = [row[:count] for row in expected]
    for dtype in (torch.float32, torch.float64):
        assert largest_tokens(scores.to(dtype), min(count, columns)).tolist() == wanted


@pytest.mark.parametrize("columns", [1024, 4096])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_long_rows_are_searched_by_runs_with_the_same_answer(columns, levels):
    scores = torch.randint(levels, (8, columns), generator=torch.Generator().manual_seed(levels)).float()
    assert columns >= 4 * 32 * 7
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[:, :7]
    assert torch.equal(largest_tokens(scores, 7), expected)


@pytest.mark.parametrize("similarity", TOKEN_SIMILARITIES)
@pytest.mark.parametrize("tokens", [10, 197])
def test_equal_tokens_are_kept_from_the_first_on(similarity, tokens):
    same = torch.full((1, 1, tokens, 24), 0.37)
    _, kept = knn_attention(same, same, same, 5, similarity=similarity, return_indices=True)
    assert (kept == torch.arange(5)).all()
    _, kept = knn_attention(
        same, same, same, 3, similarity=similarity, candidates=torch.tensor([7, 2, 4]), return_indices=True
    )
    assert kept[0, 0, [0, 2]].tolist() == [[0, 2, 4], [2, 4, 7]]


def test_half_precision_does_not_make_ties():
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 1, 256, 32, generator=draw).bfloat16() for _ in range(3))
    out, kept = knn_attention(q, k, v, 9, return_indices=True)
    assert out.dtype == torch.bfloat16
    wide, expected = knn_attention(q.float(), k.float(), v.float(), 9, return_indices=True)
    assert torch.equal(kept, expected)
    torch.testing.assert_close(out, wide.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(knn_attention(q, k, v, 9, return_indices=True)[1], expected)


# --- masks --------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(seed=st.integers(0, 999), count=st.integers(1, 12), similarity=st.sampled_from(TOKEN_SIMILARITIES))
def test_masks_hide_keys(seed, count, similarity):
    q, k, v = drawn(seed)
    draw = torch.Generator().manual_seed(seed)
    mask = torch.rand(2, 1, 11, 11, generator=draw) < 0.5
    padding = torch.rand(2, 11, generator=draw) < 0.2
    allowed = mask & ~padding[:, None, None] & torch.ones(11, 11, dtype=torch.bool).tril()
    out, kept = knn_attention(
        q,
        k,
        v,
        count,
        similarity=similarity,
        attn_mask=mask,
        key_padding_mask=padding,
        is_causal=True,
        return_indices=True,
    )
    seen = allowed.expand(2, 3, 11, 11)
    assert torch.equal((kept >= 0).sum(dim=-1), seen.sum(dim=-1).clamp(max=count))
    assert seen.gather(-1, kept.clamp(min=0))[kept >= 0].all()
    assert (out[~seen.any(dim=-1)] == 0).all()
    if similarity == "matmul":
        torch.testing.assert_close(out, dense(q, k, v, count, mask=seen))


@pytest.mark.parametrize("shape", [(11, 11), (3, 11, 11), (2, 1, 11, 11), (1, 3, 1, 11)])
def test_what_a_mask_adds_counts_in_choice_and_weight_and_has_a_gradient(shape):
    q, k, v = drawn(2)
    added = torch.randn(shape, dtype=torch.float64)
    added[..., 3] = -torch.inf
    added.requires_grad_()
    out = knn_attention(q, k, v, 4, attn_mask=added)
    expected = dense(q, k, v, 4, added=added)
    torch.testing.assert_close(out, expected)
    ours, theirs = (torch.autograd.grad(each.sin().sum(), added)[0] for each in (out, expected))
    torch.testing.assert_close(ours, theirs)


def test_masks_hold_for_candidates_and_for_the_token_itself():
    q, k, v = drawn(4, batch=1, heads=1)
    mask = torch.ones(11, 11, dtype=torch.bool)
    mask[2, 2] = mask[:, 5] = False
    _, kept = knn_attention(q, k, v, 9, attn_mask=mask, candidates=torch.tensor([1, 2, 5]), return_indices=True)
    assert sorted(kept[0, 0, 2].tolist()) == [-1, -1, -1, 1]
    assert sorted(kept[0, 0, 7].tolist()) == [-1, 1, 2, 7]
    assert kept[0, 0, 5, 0] == -1


# --- design -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("similarity", TOKEN_SIMILARITIES)
@pytest.mark.parametrize("candidates", [None, torch.arange(0, 11, 2)], ids=["all", "sampled"])
@pytest.mark.parametrize("piece", [1, 40, 200])
def test_pieces_do_not_change_the_answer(monkeypatch, similarity, candidates, piece):
    q, k, v = drawn(6, grad=True)
    ranks = torch.randn(4, 3, dtype=torch.float64)
    added = torch.randn(2, 1, 11, 11, dtype=torch.float64)

    def attended():
        out = knn_attention(
            q,
            k,
            v,
            3,
            similarity=similarity,
            rank_weights=ranks,
            attn_mask=added,
            is_causal=True,
            candidates=candidates,
        )
        return out, *torch.autograd.grad(out.sin().sum(), (q, k, v))

    whole = attended()
    monkeypatch.setattr(tokens_module, "_PIECE", piece)
    monkeypatch.setattr(links_module, "_PIECE", piece)
    for one, other in zip(attended(), whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("similarity", TOKEN_SIMILARITIES)
@pytest.mark.parametrize("shape", CONVOLUTIONS)
@pytest.mark.usefixtures("as_many")
def test_nothing_quadratic_in_the_tokens_is_saved_for_backward(similarity, shape):
    tokens = 256
    q, k, v = drawn(1, batch=1, heads=2, tokens=tokens, grad=True)
    ranks = None if CONVOLUTIONS[shape] is None else torch.randn(CONVOLUTIONS[shape], dtype=torch.float64)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: saved.append(each.numel()) or each, lambda each: each
    ):
        knn_attention(q, k, v, 3, similarity=similarity, rank_weights=ranks)
    each = 4 * 3 if shape == "matrices" else max(4, 3)  # few neighbors are all written down, by channel and rank
    assert 0 < max(saved) <= 2 * tokens * each + 1


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_neighbors": 0}, "k_neighbors must be a whole number of at least 1, got 0"),
        ({"k_neighbors": 2.5}, "k_neighbors must be a whole number of at least 1, got 2.5"),
        ({"k_neighbors": math.nan}, "k_neighbors must be a whole number of at least 1, got nan"),
        ({"k_neighbors": math.inf}, "k_neighbors .* got inf"),
        ({"k_neighbors": True}, "k_neighbors .* got True"),
        ({"k_neighbors": "3"}, "k_neighbors .* got '3'"),
        ({"similarity": "manhattan"}, "'manhattan'"),
        ({"k": torch.zeros(2, 3, 11, 5)}, r"\(2, 3, 11, 5\)"),
        ({"v": torch.zeros(2, 3, 10, 4)}, r"\(2, 3, 10, 4\)"),
        ({"q": torch.zeros(3, 11, 4)}, r"\(3, 11, 4\)"),
        ({"rank_weights": torch.zeros(5, 3)}, r"rank_weights .* got \(5, 3\)"),
        ({"rank_weights": torch.zeros(3)}, "rank_weights"),
        ({"rank_weights": torch.zeros(4, 2)}, "rank_weights has 2 ranks, but 3 keys are kept"),
        ({"scale": 0.0}, "scale must be finite and above 0, got 0.0"),
        ({"scale": math.inf}, "scale must be finite and above 0, got inf"),
        ({"scale": math.nan}, "scale must be finite and above 0, got nan"),
        (
            {"scale": torch.tensor([1.0, math.nan, 1.0])[:, None, None]},
            "scale must be finite and above 0, got nan",
        ),
        ({"scale": torch.tensor(-2.0)}, "scale must be finite and above 0, got -2.0"),
        ({"scale": torch.ones(3)}, r"scale must be a number or broadcast to \(3, 1, 1\), got \(3,\)"),
        ({"candidates": torch.tensor([2, 11])}, "candidates must be indices from 0 to 10, got 11"),
        ({"candidates": torch.tensor([2, -1])}, "candidates must be indices from 0 to 10, got -1"),
        ({"candidates": torch.tensor([2, 5, 2])}, "candidates must be there once each, got 2 more than once"),
        ({"candidates": torch.tensor([2.0])}, "candidates must be whole numbers, got torch.float32"),
        ({"candidates": torch.tensor([[2]])}, r"candidates must be \(m,\), got \(1, 1\)"),
        ({"attn_mask": torch.ones(10, 11)}, r"attn_mask must broadcast to \(2, 3, 11, 11\), got \(10, 11\)"),
        ({"attn_mask": torch.ones(1, 2, 3, 11, 11)}, "attn_mask"),
        ({"attn_mask": torch.tensor(True)}, r"attn_mask must broadcast to .* got \(\)"),
        (
            {"attn_mask": torch.ones(11, 11).long()},
            "attn_mask must be boolean, .* or floating, .* got torch.int64",
        ),
        ({"attn_mask": torch.ones(11, 11).byte()}, "attn_mask must be boolean, .* got torch.uint8"),
        ({"key_padding_mask": torch.ones(2, 11)}, "key_padding_mask must be boolean, .* got torch.float32"),
        ({"key_padding_mask": torch.ones(2, 11).byte()}, "key_padding_mask must be boolean, .* got torch.uint8"),
        ({"key_padding_mask": torch.ones(2, 10) > 0}, r"key_padding_mask must be \(2, 11\), got \(2, 10\)"),
        ({"q": torch.zeros(2, 3, 5, 4), "candidates": torch.tensor([1])}, "same tokens, got 5 and 11"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", "auto", "triton"])
def test_wrong_arguments_are_named(change, message, backend):
    q, k, v = drawn(0, dtype=torch.float32)
    with pytest.raises(InvalidInput, match=message) as refused:
        knn_attention(**{"q": q, "k": k, "v": v, "k_neighbors": 3, **change}, backend=backend)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("scale", [0.7, torch.tensor(0.7), torch.full((1, 1), 0.7), torch.full((3, 1, 1), 0.7)])
@pytest.mark.parametrize("mask", [None, torch.zeros(11), torch.zeros(2, 1, 11, 11)], ids=["none", "one", "all"])
def test_a_scale_may_be_a_number_or_any_tensor_that_stands_for_one(monkeypatch, scale, mask):
    q, k, v = drawn(7, dtype=torch.float32)
    expected = scaled_dot_product_attention(q, k, v, scale=0.7)
    monkeypatch.setattr(tokens_module, "_PIECE", 40)  # heads one by one
    torch.testing.assert_close(knn_attention(q, k, v, 11, scale=scale, attn_mask=mask), expected)


def test_counts_and_indices_may_have_any_type_of_whole_numbers():
    q, k, v = drawn(7)
    some = torch.tensor([7, 2, 4])
    expected = knn_attention(q, k, v, 3, candidates=some)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert knn_attention(q, k, v, np.int64(3), candidates=some.to(dtype)).equal(expected)
    none = knn_attention(q, k, v, 3, candidates=some[:0])  # but for the token itself
    torch.testing.assert_close(none, v)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_nothing_is_looked_at_where_a_compiler_is_at_work():
    torch.compiler.reset()
    q, k, v = drawn(7, dtype=torch.float32)
    given = {"candidates": torch.tensor([7, 2, 4]), "scale": torch.tensor(0.7)}
    whole = torch.compile(knn_attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(q, k, v, 3, **given), knn_attention(q, k, v, 3, **given))
    on_meta = [each.to("meta") for each in (q, k, v)]
    moved = {name: each.to("meta") for name, each in given.items()}
    assert knn_attention(*on_meta, 3, **moved).shape == v.shape


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"q": torch.ones(1, 2, 5, 8, dtype=torch.cfloat)},
            "q must be real .*, got torch.complex64",
        ),
        (
            {"v": torch.ones(1, 2, 5, 8, dtype=torch.int64)},
            "v must be real .*, got torch.int64",
        ),
        ({"k": np.ones((1, 2, 5, 8))}, "k must be a tensor, got ndarray"),
        ({"k": torch.ones(1, 2, 5, 8, device="meta")}, "q is on cpu, k on meta"),
        ({"rank_weights": torch.ones(8, 3, device="meta")}, "q is on cpu, rank_weights on meta"),
        (
            {"rank_weights": torch.ones(8, 3) > 0},
            "rank_weights must be real .*, got torch.bool",
        ),
        ({"key_padding_mask": torch.ones(1, 5, device="meta") < 0}, "q is on cpu, key_padding_mask on meta"),
        ({"candidates": [1, 2]}, "candidates must be a tensor, got list"),
        ({"scale": "0.5"}, "scale must be a number or a tensor, got '0.5'"),
        ({"scale": torch.tensor(1j)}, "scale must be real .*, got torch.complex64"),
        ({"dropout_p": 1.5}, "dropout_p must be from 0 to 1, got 1.5"),
        ({"dropout_p": float("nan")}, "dropout_p must be from 0 to 1, got nan"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_types_and_devices_that_do_not_fit_are_refused_in_words(changed, told):
    plain = {name: torch.ones(1, 2, 5, 8) for name in "qkv"}
    with pytest.raises(InvalidInput, match=told):
        knn_attention(**plain | {"k_neighbors": 3} | changed)


def test_queries_and_keys_may_differ_in_precision():
    q, k, v = drawn(7)
    expected = knn_attention(q, k.float().double(), v, 3)
    torch.testing.assert_close(knn_attention(q, k.float(), v, 3), expected)


@pytest.mark.parametrize("given", ["nothing", "factors", "matrices", "candidates", "mask"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_a_compiler_makes_no_graph_for_every_length(given):
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def asked(q, k, v, factors, candidates, mask):
        return knn_attention(q, k, v, 5, rank_weights=factors, candidates=candidates, attn_mask=mask)

    torch.compiler.reset()
    torch.manual_seed(0)
    whole = torch.compile(asked, backend=counted, fullgraph=True)
    for tokens in (20, 31, 44, 260):
        q, k, v = torch.randn(3, 2, 2, tokens, 8).unbind()
        leaves = [each.requires_grad_() for each in (q, k, v)]
        factors = {"factors": torch.randn(8, 5), "matrices": torch.randn(8, 8, 5)}.get(given)
        candidates = torch.arange(0, tokens, 3) if given == "candidates" else None
        mask = torch.rand(tokens, tokens) < 0.7 if given == "mask" else None
        found, wanted = (each(q, k, v, factors, candidates, mask) for each in (whole, asked))
        slopes, expected = (torch.autograd.grad(each.square().sum(), leaves) for each in (found, wanted))
        for one, other in zip((found, *slopes), (wanted, *expected), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 2  # one for the first, one for any other


def test_cosine_does_not_see_lengths():
    q, k, v = drawn(9)
    lengths = torch.rand(2, 3, 11, 1, dtype=torch.float64) + 0.1
    plain = knn_attention(q, k, v, 4, similarity="cosine")
    torch.testing.assert_close(knn_attention(q, k * lengths, v, 4, similarity="cosine"), plain)
    torch.testing.assert_close(knn_attention(normalize(q, dim=-1), normalize(k, dim=-1), v, 4, scale=1.0), plain)


def test_indices_of_wide_scores_are_laid_out_as_they_are_told():
    scores = torch.randn(2, 3, 7, 12, dtype=torch.float64)
    assert largest_tokens(scores, 3).is_contiguous()
    q = torch.randn(1, 2, 12, 8, dtype=torch.float64)
    torch.library.opcheck(
        torch.ops.attnknn.select_tokens.default,
        (q, q, 3, False, 1.0, None, [], None, False, None),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_gradients_asked_for_within_autocast_are_no_coarser():
    q, k, v = drawn(4, dtype=torch.float32, grad=True)
    factors = torch.randn(4, 3, generator=torch.Generator().manual_seed(5)).requires_grad_()
    leaves = q, k, v, factors
    slope = torch.randn(q.shape, generator=torch.Generator().manual_seed(6))
    plain = torch.autograd.grad(knn_attention(q, k, v, 3, rank_weights=factors), leaves, slope)
    with torch.autocast("cpu", torch.bfloat16):
        within = torch.autograd.grad(knn_attention(q, k, v, 3, rank_weights=factors), leaves, slope)
    for one, other in zip(plain, within, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": 10**400}, "beyond all floats"),
        ({"dropout_p": "a"}, "dropout_p must be from 0 to 1"),
        ({"dropout_p": float("nan")}, "dropout_p must be from 0 to 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        knn_attention(*drawn(0), 3, **options)


def test_tokens_without_a_number_are_refused():
    q, _, v = drawn(0)
    with pytest.raises(InvalidInput, match="at least one number"):
        knn_attention(q[..., :0], q[..., :0], v, 3)

"""The layers of attnknn.vit: the laws they keep, their samples, their windows, and what they refuse."""

from __future__ import annotations

import copy
import gc
import pickle
import re
import weakref
from inspect import signature
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.vit import (
    LAYERS,
    MultiHeadAttention,
    MultiHeadBranchingAttention,
    MultiHeadBranchingConv,
    MultiHeadConv1d,
    MultiHeadConvNNAttention,
    MultiHeadKvtAttention,
    MultiHeadLocalAttention,
    MultiHeadSparseAttention,
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    create_layer,
    layer_options,
)
from attnknn.vit.drawing import source_of
from attnknn.vit.grid import Draws, Grid, RandomSampler, grid_coordinates, grid_of, spatial_candidates

pytestmark = pytest.mark.usefixtures("one_thread")


def tokens(seed, count=17, dim=12, batch=2):
    return torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(kind, *given, **options):
    torch.manual_seed(0)
    return kind(*given, **options).double().eval()


def split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def dense(x, qkv, heads, seen=None, scale=None):
    """Attention with a mask, before the last projection, from one matrix of queries, keys and values."""
    q, k, v = (split(each, heads) for each in (x @ qkv.T).chunk(3, dim=-1))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


# --- laws ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ConvNNAttention", "KvtAttention", "BranchConv", "BranchAttention"])
def test_of_fewer_tokens_than_k_as_many_are_told_as_there_are(name):
    layer = create_layer(name, 12, 3, K=9).double().eval()
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    _, kept = layer(tokens(3, 5), key_padding_mask=padding, return_indices=True)
    assert kept.shape == (2, 3, 5, 5)
    assert torch.equal(kept[0].sort(dim=-1).values, torch.arange(5).expand(3, 5, 5))
    assert torch.equal(kept[1, ..., 3:], torch.full((3, 5, 2), -1))


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("sampling", [{}, {"sampling_type": "random"}, {"sampling_type": "spatial"}])
def test_convnn_is_attention_once_k_covers_every_token(heads, sampling):
    layer, plain, x = (
        made(MultiHeadConvNNAttention, 12, heads, K=17, **sampling),
        made(MultiHeadAttention, 12, heads),
        tokens(1),
    )
    same = {name: value for name, value in layer.state_dict().items() if name.startswith("W_")}
    plain.load_state_dict(same)
    torch.testing.assert_close(layer(x), plain(x))
    qkv = torch.cat([same[f"W_{name}.weight"] for name in "qkv"])
    torch.testing.assert_close(plain(x), dense(x, qkv, heads) @ same["W_o.weight"].T)


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 4, 16, 17, 100])
def test_convnn_as_it_is_made_is_kvt(heads, k):
    layer, kvt, x = (
        made(MultiHeadConvNNAttention, 12, heads, K=k),
        made(MultiHeadKvtAttention, 12, heads, K=k),
        tokens(2),
    )
    state = layer.state_dict()
    qkv = torch.cat([state[f"W_{name}.weight"] for name in "qkv"])
    kvt.load_state_dict({"qkv.weight": qkv, "proj.weight": state["W_o.weight"]})
    one, kept = layer(x, return_indices=True)
    other, same = kvt(x, return_indices=True)
    torch.testing.assert_close(one, other)
    assert torch.equal(kept, same)
    assert kept.shape == (2, heads, 17, min(k, 17))


@pytest.mark.parametrize("name", ["Attention", "ConvNNAttention", "KvtAttention", "BranchAttention"])
def test_permuting_the_tokens_permutes_the_output(name):
    layer, x = made(create_layer, name, 12, 2, K=4), tokens(3)
    order = torch.randperm(17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])


@pytest.mark.parametrize("name", LAYERS)
def test_a_token_does_not_depend_on_its_batch(name):
    layer, x = made(create_layer, name, 12, 2, K=4, window_size=4), tokens(4, batch=3)
    torch.testing.assert_close(layer(x)[1:2], layer(x[1:2]))


@pytest.mark.parametrize("count", [1, 2, 5, 16, 17, 50])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_any_number_of_tokens_and_trains(name, count):
    layer, x = made(create_layer, name, 12, 3, K=9, kernel_size=4), tokens(5, count).requires_grad_()
    layer.train()
    out = layer(x)
    assert out.shape == x.shape
    out.sin().sum().backward()
    assert x.grad.isfinite().all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_an_empty_batch_stays_empty(name):
    x = torch.zeros(0, 17, 12, requires_grad=True)
    out = create_layer(name, 12, 2, K=4)(x)
    out.sum().backward()
    assert out.shape == x.grad.shape == (0, 17, 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        *({"layer": name} for name in LAYERS),
        {"layer": "ConvNNAttention", "sampling_type": "random", "num_samples": 8},
        {"layer": "ConvNNAttention", "sampling_type": "spatial", "num_samples": 3, "magnitude_type": "euclidean"},
        {"layer": "ConvNNAttention", "coordinate_encoding": True, "convolution_type": "standard"},
        {"layer": "ConvNNAttention", "magnitude_type": "cosine", "convolution_type": "depthwise-separable"},
    ],
    ids=str,
)
def test_half_precision_is_close_to_full(options, dtype):
    torch.manual_seed(0)
    sampled = "num_samples" in options
    layer, x = create_layer(dim=12, num_heads=2, K=3 if sampled else 17, **options).eval(), tokens(6).float()
    expected = layer(x)
    layer.to(dtype)
    out = layer(x.to(dtype))
    assert out.dtype == dtype
    if not sampled:  # there a rounded token may keep others
        torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert all(each.grad.isfinite().all() for each in layer.parameters())


@pytest.mark.parametrize(
    "options",
    [
        *({"layer": name} for name in LAYERS),
        {"layer": "ConvNNAttention", "sampling_type": "spatial", "num_samples": 3, "magnitude_type": "euclidean"},
        {"layer": "ConvNNAttention", "coordinate_encoding": True, "magnitude_type": "cosine"},
    ],
    ids=str,
)
# Raised within torch's own tracing of any autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_without_a_graph_break(options):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer, x = create_layer(dim=12, num_heads=2, K=4, **options), tokens(7).float()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


# --- windows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9, 16])
def test_windows_over_everything_are_full_attention(count):
    x = tokens(8, count)
    near = made(NeighborhoodAttention1D, 12, 3, K=count)
    expected = dense(x, near.qkv.weight, 3) @ near.proj.weight.T + near.proj.bias
    torch.testing.assert_close(near(x), expected)
    for window in (count, count + 3, 128):
        local = made(MultiHeadLocalAttention, 12, 3, window_size=window, rotary=False)
        torch.testing.assert_close(local(x), dense(x, local.to_qkv.weight, 3) @ local.to_out.weight.T)


@pytest.mark.parametrize("count", [3, 17, 40, 90])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 4, 5])
def test_neighborhoods_in_a_sequence_are_a_mask(count, causal, dilation, k):
    layer, x = made(NeighborhoodAttention1D, 12, 3, K=k, dilation=dilation, is_causal=causal), tokens(9, count)
    seen = torch.zeros(count, count, dtype=torch.bool)
    for i in range(count):
        group = list(range(i % dilation, count, dilation))
        at = group.index(i)
        size = min(k, count // dilation)
        first = min(max(at - size // 2, 0), len(group) - size)
        seen[i, group[max(at - k + 1, 0) : at + 1] if causal else group[first : first + size]] = True
    expected = dense(x, layer.qkv.weight, 3, seen) @ layer.proj.weight.T + layer.proj.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (2, 5), (1, 4), (11, 10)])
@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_neighborhoods_on_the_grid_are_a_mask(before, rows, columns, k):
    count = before + rows * columns
    layer, x = made(NeighborhoodAttention2D, 12, 3, K=k, grid_size=(rows, columns)), tokens(10, count)
    seen = torch.zeros(count, count, dtype=torch.bool)
    seen[:before] = seen[:, :before] = True
    for i in range(rows):
        for j in range(columns):
            top = min(max(i - min(k, rows) // 2, 0), rows - min(k, rows))
            left = min(max(j - min(k, columns) // 2, 0), columns - min(k, columns))
            for row in range(top, top + min(k, rows)):
                for column in range(left, left + min(k, columns)):
                    seen[before + i * columns + j, before + row * columns + column] = True
    expected = dense(x, layer.qkv.weight, 3, seen) @ layer.proj.weight.T + layer.proj.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [7, 8, 17])
def test_local_windows_are_a_mask_and_padding_is_never_seen(count, causal, exact):
    layer = made(
        MultiHeadLocalAttention, 12, 3, window_size=4, causal=causal, exact_windowsize=exact, rotary=False
    )
    x, at = tokens(11, count), torch.arange(count)
    gap = at[:, None] - at
    seen = (at[:, None] // 4 - at // 4).abs() <= 1
    seen &= gap.abs() <= 4 if exact else gap == gap
    seen &= gap >= 0 if causal else gap == gap
    expected = dense(x, layer.to_qkv.weight, 3, seen) @ layer.to_out.weight.T
    torch.testing.assert_close(layer(x), expected)
    padding = torch.zeros(2, count, dtype=torch.bool)
    padding[1, -2:] = True
    part = layer(x, key_padding_mask=padding)
    torch.testing.assert_close(part[0], expected[0])
    torch.testing.assert_close(part[1, :-2], layer(x[1:, :-2])[0])


@pytest.mark.parametrize(
    ("mode", "window"), [("local", 2), ("local", 5), ("strided", 2), ("strided", 30), ("all", 3)]
)
@pytest.mark.parametrize("count", [1, 17, 60])
def test_sparse_patterns_are_a_mask_with_and_without_another(mode, window, count):
    layer, x = (
        made(MultiHeadSparseAttention, 12, 3, sparse_mode=mode, sparse_context_window=window),
        tokens(12, count),
    )
    gap = (torch.arange(count)[:, None] - torch.arange(count)).abs()
    seen = {"all": gap >= 0, "local": gap <= window // 2, "strided": gap % window == 0}[mode]
    qkv = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
    torch.testing.assert_close(layer(x), dense(x, qkv, 3, seen) @ layer.out_proj.weight.T)
    before = torch.ones(count, count, dtype=torch.bool).tril()
    causal = dense(x, qkv, 3, seen & before) @ layer.out_proj.weight.T
    torch.testing.assert_close(layer(x, is_causal=True), causal)
    torch.testing.assert_close(layer(x, torch.zeros(count, count).masked_fill(~before, -torch.inf)), causal)


@pytest.mark.parametrize(
    "name", ["Attention", "ConvNNAttention", "KvtAttention", "SparseAttention", "BranchAttention"]
)
def test_padding_changes_nothing_and_the_future_is_not_seen(name):
    layer, x = made(create_layer, name, 12, 2, K=4), tokens(13)
    padding = torch.zeros(2, 17, dtype=torch.bool)
    padding[:, 12:] = True
    short = layer(x[:, :12])
    torch.testing.assert_close(layer(x, key_padding_mask=padding)[:, :12], short)
    allowed = (~padding)[:, None, None]
    torch.testing.assert_close(layer(x, allowed)[:, :12], short)
    added = torch.zeros(2, 1, 1, 17).masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(layer(x, added)[:, :12], short)
    torch.testing.assert_close(layer(x, is_causal=True)[:, :12], layer(x[:, :12], is_causal=True))


MASKED = ["Attention", "ConvNNAttention", "KvtAttention", "SparseAttention", "BranchAttention"]
WRONG_MASKS = [
    ({"attn_mask": torch.ones(17, 17).long()}, "attn_mask must be boolean, .* or floating, .* got torch.int64"),
    ({"attn_mask": torch.ones(17, 17).byte()}, "attn_mask must be boolean, .* got torch.uint8"),
    (
        {"attn_mask": torch.ones(17, 17, dtype=torch.complex64)},
        "attn_mask must be boolean, .* got torch.complex64",
    ),
    ({"attn_mask": torch.ones(16, 17)}, r"attn_mask must broadcast to \(2, 2, 17, 17\), got \(16, 17\)"),
    ({"attn_mask": torch.ones(3, 17, 17) > 0}, r"attn_mask must broadcast to .* got \(3, 17, 17\)"),
    ({"attn_mask": torch.ones(1, 2, 2, 17, 17)}, r"attn_mask must broadcast to .* got \(1, 2, 2, 17, 17\)"),
    ({"attn_mask": torch.tensor(0.0)}, r"attn_mask must broadcast to .* got \(\)"),
]
WRONG_PADDING = [
    ({"key_padding_mask": torch.zeros(2, 17)}, "key_padding_mask must be boolean, .* got torch.float32"),
    ({"key_padding_mask": torch.zeros(2, 17).long()}, "key_padding_mask must be boolean, .* got torch.int64"),
    ({"key_padding_mask": torch.zeros(2, 16) > 0}, r"key_padding_mask must be \(2, 17\), got \(2, 16\)"),
    ({"key_padding_mask": torch.zeros(17) > 0}, r"key_padding_mask must be \(2, 17\), got \(17,\)"),
    (
        {"key_padding_mask": torch.zeros(2, 2, 1, 17) > 0},
        r"key_padding_mask must be \(2, 17\), got \(2, 2, 1, 17\)",
    ),
]


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        *((name, *wrong) for name in MASKED for wrong in WRONG_MASKS),
        *((name, *wrong) for name in [*MASKED, "LocalAttention", "BranchConv"] for wrong in WRONG_PADDING),
    ],
)
@pytest.mark.parametrize("options", [{}, {"branch_ratio": 0.0, "sparse_mode": "local"}], ids=str)
def test_masks_that_fit_nothing_or_mean_nothing_are_refused_alike_by_all_layers(name, mask, message, options):
    layer, x = made(create_layer, name, 12, 2, K=4, **options), tokens(13)
    with pytest.raises(InvalidInput, match=message) as refused:
        layer(x, **mask)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "shape", [(17,), (1,), (17, 1), (17, 17), (2, 1, 17), (2, 17, 17), (2, 1, 17, 1), (2, 2, 1, 1)]
)
@pytest.mark.parametrize("name", MASKED)
def test_masks_of_any_shape_that_broadcasts_are_the_whole_mask(name, shape):
    layer, x = made(create_layer, name, 12, 2, K=4, sparse_mode="local"), tokens(13)
    added = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = added.expand(2, 2, 17, 17)
    torch.testing.assert_close(layer(x, added), layer(x, whole))
    torch.testing.assert_close(layer(x, added > -0.5), layer(x, whole > -0.5))
    causal = {"is_causal": True, "key_padding_mask": torch.arange(17).expand(2, -1) > 14}
    torch.testing.assert_close(layer(x, added, **causal), layer(x, whole, **causal))


# --- branches -------------------------------------------------------------------------------------------------


def test_the_convolution_is_one_along_the_sequence_in_every_head():
    layer, x = made(MultiHeadConv1d, 12, 3, kernel_size=4), tokens(14)
    z = split(layer.W_x(x), 3)
    mixed = torch.zeros_like(z)
    for i in range(17):
        for tap in range(4):
            if 0 <= i + tap - 1 < 17:
                mixed[:, :, i] += z[:, :, i + tap - 1] @ layer.conv.weight[:, :, tap].T
    mixed += layer.conv.bias
    torch.testing.assert_close(layer(x), layer.W_o(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("kind", [MultiHeadBranchingConv, MultiHeadBranchingAttention])
def test_branch_ratios_of_0_and_1_are_the_pure_branches_whole_and_trainable(kind):
    x = tokens(15)
    for ratio in (0.0, 1.0):
        layer = made(kind, 12, 3, branch_ratio=ratio, K=4)
        (branch,) = (each for each in layer.children() if each is not None)
        assert isinstance(branch, MultiHeadConvNNAttention) == (ratio == 1)
        torch.testing.assert_close(layer(x), branch(x))
        layer(x).sin().sum().backward()
        assert all(each.grad.abs().sum() > 0 for each in layer.parameters())


@pytest.mark.parametrize("kind", [MultiHeadBranchingConv, MultiHeadBranchingAttention])
def test_branches_see_their_channels(kind):
    layer, x = made(kind, 12, 3, branch_ratio=0.25, K=4), tokens(16)
    other = layer.conv1d if kind is MultiHeadBranchingConv else layer.attention
    both = torch.cat([layer.convnn(x[..., :3]), other(x[..., 3:])], dim=-1)
    out, kept = layer(x, return_indices=True)
    torch.testing.assert_close(out, layer.pointwise_linear(both))
    assert torch.equal(kept, layer.convnn(x[..., :3], return_indices=True)[1])


# --- samples --------------------------------------------------------------------------------------------------


def random_layer(seed=0, **options):
    torch.manual_seed(seed)
    options = {"sampling_type": "random", "num_samples": 6, **options}
    return MultiHeadConvNNAttention(12, 2, K=3, **options).double()


def test_random_samples_are_drawn_anew_in_training_and_fixed_in_evaluation():
    layer, x = random_layer(), tokens(17)
    assert not torch.equal(layer.train()(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(random_layer().eval()(x), layer(x))
    draws = {tuple(random_layer(seed).eval().sampler(17, x.device).tolist()) for seed in range(5)}
    assert len(draws) > 1


def test_evaluation_may_take_all_or_draw_anew():
    x, device = tokens(18), torch.device("cpu")
    layer = random_layer(eval_sampling="all").eval()
    assert layer.sampler(17, device).tolist() == list(range(17))
    assert len(layer.train().sampler(17, device)) == 6
    anew = random_layer(eval_sampling="resample").eval()
    assert not torch.equal(anew(x), anew(x))


def test_minus_one_means_all_and_so_does_more_than_there_are():
    x = tokens(19)
    every = random_layer(num_samples=-1)
    assert torch.equal(every(x), every(x))
    assert every.sampler(17, x.device).tolist() == random_layer(num_samples=99).sampler(17, x.device).tolist()
    spatial = random_layer(sampling_type="spatial", num_samples=-1)
    torch.testing.assert_close(spatial(x), every(x))


CPU = torch.device("cpu")


def random_sampler(seed=0, num_samples=6, **options):
    return RandomSampler(num_samples, generator=torch.Generator().manual_seed(seed), **options)


def test_draws_that_are_held_are_those_that_calls_would_have_made():
    alone, held = (torch.nn.ModuleList([random_sampler(3), random_sampler(4, num_samples=9)]) for _ in range(2))
    draws, places = Draws(held, 17, CPU), set()
    for _ in range(4):
        draws.hold()
        for one, other in zip(alone, held, strict=True):
            drawn, state = one(17, CPU), other.get_extra_state()
            assert other(17, CPU).equal(drawn)
            assert other(17, CPU).equal(drawn)  # again, until something else is held
            assert other.get_extra_state().equal(state)
            assert state.equal(one.get_extra_state())
        places.add(tuple(each(17, CPU).data_ptr() for each in held))
    draws.release()
    assert len(places) == 1
    for one, other in zip(alone, held, strict=True):
        for _ in range(2):
            assert one(17, CPU).equal(other(17, CPU))
    draws.hold()
    assert tuple(each(17, CPU).data_ptr() for each in held) in places  # also after a pause


@pytest.mark.parametrize(("tokens", "device"), [(18, CPU), (17, torch.device("meta"))], ids=str)
def test_a_draw_that_is_held_is_not_for_other_tokens_or_devices(tokens, device):
    sampler = random_sampler()
    Draws(sampler, 17, CPU).hold()
    before = sampler.get_extra_state()
    assert sampler(tokens, device).device == device
    assert not sampler.get_extra_state().equal(before)


@pytest.mark.parametrize("eval_sampling", ["fixed", "all", "resample"])
def test_evaluation_does_not_see_what_is_held(eval_sampling):
    one, other = (random_sampler(eval_sampling=eval_sampling) for _ in range(2))
    draws = Draws(other, 17, CPU)
    for _ in range(2):  # the first is what evaluation draws by the seed
        one.drawn(17)
        draws.hold()
    for _ in range(3):
        assert one.eval()(17, CPU).equal(other.eval()(17, CPU))


@pytest.mark.parametrize("num_samples", [-1, 17, 99])
def test_nothing_is_drawn_where_every_token_is_a_candidate(num_samples):
    sampler = random_sampler(num_samples=num_samples)
    before = sampler.get_extra_state()
    Draws(sampler, 17, CPU).hold()
    assert sampler(17, CPU).equal(torch.arange(17))
    assert sampler.get_extra_state().equal(before)


def test_what_is_held_is_neither_saved_nor_copied():
    one, other = random_sampler(), random_sampler()
    one.drawn(17)
    Draws(other, 17, CPU).hold()
    saved = other.state_dict()
    assert saved.keys() == one.state_dict().keys()
    assert saved["_extra_state"].equal(one.get_extra_state())
    following = one(17, CPU)
    assert not following.equal(other(17, CPU))
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert copied(17, CPU).equal(following)


def test_only_who_holds_a_draw_lets_go_of_it():
    sampler = random_sampler()
    first, second = Draws(sampler, 17, CPU), Draws(sampler, 17, CPU)
    first.hold()
    second.hold()
    held = sampler(17, CPU)
    first.release()
    assert sampler(17, CPU) is held
    second.release()
    assert sampler(17, CPU) is not held


@pytest.mark.parametrize("name", ["ConvNNAttention", "Attention", "BranchConv", "BranchAttention"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_a_compiler_sees_one_graph_where_draws_are_held(name):
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.manual_seed(0)
    layer = create_layer(name, dim=12, num_heads=2, K=3, sampling_type="random", num_samples=6).train()
    whole, draws, x = torch.compile(layer, backend=counted, fullgraph=True), Draws(layer, 17, CPU), tokens(20)
    x, found = x.float(), []
    for _ in range(2):
        for _ in range(3):
            draws.hold()
            found.append(whole(x))
            torch.testing.assert_close(found[-1], layer(x))
        draws.release()
    assert len(graphs) == 1
    assert not any(one.equal(two) for one, two in pairwise(found))


@pytest.mark.parametrize("name", ["ConvNNAttention", "Attention", "BranchConv", "BranchAttention"])
@pytest.mark.parametrize("eval_sampling", ["fixed", "all", "resample"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_a_compiled_layer_is_one_graph_that_draws_what_the_layer_would_have(name, eval_sampling, backend):
    def layer():
        torch.manual_seed(0)
        given = {"sampling_type": "random", "num_samples": 6, "eval_sampling": eval_sampling}
        return create_layer(name, dim=12, num_heads=2, K=3, **given)

    torch.compiler.reset()
    one, other, x = layer(), layer(), tokens(20).float()
    whole, found = torch.compile(one, backend=backend, fullgraph=True), []
    for training in (True, False, True):
        one.train(training), other.train(training)
        for _ in range(3):
            found.append(whole(x))
            torch.testing.assert_close(found[-1], other(x))
            assert states(one).equal(states(other))
    assert not any(first.equal(second) for first, second in pairwise(found[:3]))
    assert found[3].equal(found[4]) == (eval_sampling != "resample")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_was_made_in_inference_mode_compiles_outside_of_it():
    torch.compiler.reset()
    with torch.inference_mode():
        layer = create_layer("ConvNNAttention", dim=12, num_heads=2, K=3, sampling_type="random", num_samples=6)
    with torch.no_grad():
        x = tokens(20).float()
        torch.testing.assert_close(torch.compile(layer.eval(), backend="aot_eager")(x), layer(x))


def states(layer):
    found = [each.get_extra_state() for each in layer.modules() if isinstance(each, RandomSampler)]
    return torch.stack(found)


class Twice(torch.nn.Module):
    """Two samplers that draw from one generator."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        count = x.shape[1]
        some = [each(count, x.device) for each in (self.first, self.second, self.first, self.first)]
        return torch.cat([x.index_select(1, each) for each in some])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_samplers_that_share_a_generator_take_turns_as_they_would(backend):
    torch.compiler.reset()
    one, other = (
        Twice(RandomSampler(6, generator=shared), RandomSampler(6, generator=shared))
        for shared in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
    )
    whole, x = torch.compile(one, backend=backend, fullgraph=True), tokens(20)
    for _ in range(3):
        found = whole(x)
        assert found.equal(other(x))
        assert not found[4:6].equal(found[6:8])  # asked for the same, one after the other


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_one_graph_serves_all_samplers_that_are_alike_and_their_copies():
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    layers = [random_layer(seed).train() for seed in range(12)]  # more than a compiler would make graphs for
    layers += [copy.deepcopy(layers[0]), pickle.loads(pickle.dumps(layers[1]))]
    again, x = copy.deepcopy(layers), tokens(21)
    for _ in range(2):
        for one, other in zip(layers, again, strict=True):
            torch.testing.assert_close(torch.compile(one, backend=counted, fullgraph=True)(x), other(x))
    assert len(graphs) == 1


def test_another_generator_may_take_the_place_of_one():
    sampler, other = random_sampler(3), random_sampler(4)
    sampler.generator = torch.Generator().manual_seed(4)
    for _ in range(3):
        assert sampler(17, CPU).equal(other(17, CPU))


def test_the_operation_that_draws_tells_torch_what_it_does():
    source = source_of(torch.Generator().manual_seed(3))
    for fixed in (False, True):
        torch.library.opcheck(
            torch.ops.attnknn.drawn.default,
            (source.ticket, 17, 6, fixed),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_generators_are_forgotten_with_the_last_who_draws_from_them():
    shared = torch.Generator().manual_seed(3)
    samplers = [RandomSampler(6, generator=shared) for _ in range(2)]
    source = weakref.ref(source_of(shared))
    samplers.pop()
    gc.collect()
    assert source() is not None
    samplers.pop()
    gc.collect()
    assert source() is None


def test_the_token_itself_is_rank_0_and_kept_once():
    layer, x = random_layer(), tokens(20)
    _, kept = layer(x, return_indices=True)
    assert (kept[..., 0] == torch.arange(17)).all()
    assert not (kept[..., 1:] == torch.arange(17)[:, None]).any()


def test_a_given_generator_decides_and_the_global_state_stays():
    x = tokens(21)
    one, other = (random_layer(generator=torch.Generator().manual_seed(5)).train() for _ in range(2))
    before = torch.get_rng_state()
    assert torch.equal(one(x), other(x))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_layer_goes_on_drawing_where_it_was():
    x, layer = tokens(22), random_layer().train()
    layer(x)
    state = copy.deepcopy(layer.state_dict())
    other = random_layer(seed=9)
    other.load_state_dict(state)
    assert all(torch.equal(layer(x), other.train()(x)) for _ in range(3))
    assert torch.equal(layer.eval()(x), other.eval()(x))
    twin = copy.deepcopy(layer.train())
    assert torch.equal(layer(x), twin(x))


def test_plain_attention_over_a_sample_sees_only_the_sample():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 2, sampling_type="random", num_samples=6).double().eval()
    x = tokens(23)
    some = layer.sampler(17, x.device)
    q, k, v = (split(each, 2) for each in (layer.W_q(x), layer.W_k(x[:, some]), layer.W_v(x[:, some])))
    mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.W_o(mixed))
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    seen = torch.ones(17, dtype=torch.bool)
    seen[some] = False
    q, k, v = (split(each(x), 2) for each in (layer.W_q, layer.W_k, layer.W_v))
    mixed = scaled_dot_product_attention(q, k, v, mask & ~seen).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x, is_causal=True), layer.W_o(mixed))


@pytest.mark.parametrize(
    ("grid", "side", "padding", "expected"),
    [
        (Grid(4, 4, 1), 2, 0, [0, 1, 4, 13, 16]),
        (Grid(4, 4, 0), 2, 1, [5, 6, 9, 10]),
        (Grid(5, 5, 0), 3, 0, [0, 2, 4, 10, 12, 14, 20, 22, 24]),
        (Grid(3, 5, 1), 1, 0, [0, 8]),
        (Grid(2, 3, 1), 9, 0, list(range(7))),
        (Grid(3, 3, 2), 2, 7, [0, 1, 6]),
    ],
)
def test_spatial_samples_lie_on_a_grid_behind_the_class_token(grid, side, padding, expected):
    assert spatial_candidates(grid, side, padding, torch.device("cpu")).tolist() == expected


@pytest.mark.parametrize("length", range(1, 20))
def test_a_spatial_grid_never_repeats_a_patch_and_reaches_the_edges(length):
    for side in range(2, length + 1):
        found = spatial_candidates(Grid(length, 1, 0), side, 0, torch.device("cpu")).tolist()
        assert found == sorted(set(found))
        assert (found[0], found[-1], len(found)) == (0, length - 1, side)


# --- places ---------------------------------------------------------------------------------------------------


def test_a_grid_is_found_behind_the_tokens():
    assert grid_of(197) == (14, 14, 1)
    assert grid_of(196) == (14, 14, 0)
    assert grid_of(2) == (1, 1, 1)
    assert grid_of(1) == (1, 1, 0)
    assert grid_of(8, (2, 3)) == (2, 3, 2)
    with pytest.raises(InvalidInput, match="12 tokens are no square grid"):
        grid_of(12)
    with pytest.raises(InvalidInput, match="6 patches, but there are 5 tokens"):
        grid_of(5, (2, 3))


def test_coordinates_are_true_places():
    places = grid_coordinates(7, (2, 3), torch.zeros((), dtype=torch.float64))
    assert places.tolist() == [[0, 0], [-1, -1], [-1, 0], [-1, 1], [1, -1], [1, 0], [1, 1]]


def test_coordinates_alone_find_the_neighbors_on_the_grid():
    layer = made(MultiHeadConvNNAttention, 12, 2, K=5, magnitude_type="euclidean", coordinate_encoding=True)
    torch.nn.init.zeros_(layer.W_q.weight)
    torch.nn.init.zeros_(layer.W_k.weight)
    _, kept = layer(tokens(24, 25), return_indices=True)
    assert kept[0, 0, 12].tolist() == [12, 7, 11, 13, 17]


# --- refusals -------------------------------------------------------------------------------------------------

WRONG = [
    ("Attention", {"num_heads": 5}, "num_heads must divide dim.*dim=12, num_heads=5"),
    ("ConvNNAttention", {"num_heads": 0}, "num_heads=0"),
    ("ConvNNAttention", {"K": 0}, "K must be .* at least 1, got 0"),
    ("ConvNNAttention", {"K": -3}, "got -3"),
    ("ConvNNAttention", {"K": 2.5}, "got 2.5"),
    ("ConvNNAttention", {"K": 18, "grid_size": 4}, "K=18 is more than the 17 tokens"),
    ("ConvNNAttention", {"K": 9, "sampling_type": "random", "num_samples": 4}, "K=9 is more than the 5 tokens"),
    ("ConvNNAttention", {"K": 9, "sampling_type": "spatial", "num_samples": 2}, "K=9 is more than the 6 tokens"),
    ("ConvNNAttention", {"sampling_type": "spatial", "num_samples": 5, "grid_size": 4}, "5 x 5 .* 4 x 4 patches"),
    (
        "Attention",
        {"sampling_type": "spatial", "sample_padding": 2, "grid_size": 4},
        "leaves none of 4 x 4 patches",
    ),
    ("ConvNNAttention", {"sampling_type": "spatial", "num_samples": 0}, "num_samples"),
    ("ConvNNAttention", {"sampling_type": "spatial", "num_samples": 3, "sample_padding": -1}, "sample_padding"),
    ("ConvNNAttention", {"sampling_type": "grid"}, "'grid'"),
    ("ConvNNAttention", {"sampling_type": "random", "num_samples": 20, "eval_sampling": "none"}, "'none'"),
    ("ConvNNAttention", {"magnitude_type": "dot"}, "'dot'"),
    ("ConvNNAttention", {"convolution_type": "conv2d"}, "'conv2d'"),
    ("ConvNNAttention", {"coordinate_encoding": "polar"}, "'polar'"),
    ("ConvNNAttention", {"attention_dropout": 1.0}, "attention_dropout .* got 1.0"),
    ("ConvNNAttention", {"grid_size": (2, 3, 4)}, "grid_size"),
    ("KvtAttention", {"K": 0}, "K must be"),
    ("KvtAttention", {"qk_scale": -1.0}, "qk_scale must be above 0, got -1.0"),
    ("KvtAttention", {"qk_scale": "x"}, "qk_scale must be above 0, got 'x'"),
    ("LocalAttention", {"use_xpos": True, "xpos_scale_base": "x"}, "xpos_scale_base must be above 0, got 'x'"),
    ("NeighborhoodAttention", {"K": 0}, "K must be"),
    ("NeighborhoodAttention", {"dilation": 0}, "dilation"),
    ("LocalAttention", {"window_size": 0}, "window_size"),
    ("LocalAttention", {"num_heads": 4}, "must be even, got 3"),
    ("LocalAttention", {"num_heads": 5}, "num_heads must divide dim"),
    ("LocalAttention", {"use_xpos": True, "rotary": False}, "rotary=True"),
    ("LocalAttention", {"use_xpos": True, "window_size": 1}, "xpos_scale_base"),
    ("SparseAttention", {"sparse_mode": "random"}, "'random'"),
    ("SparseAttention", {"sparse_context_window": 0}, "sparse_context_window"),
    ("BranchConv", {"branch_ratio": 0.3}, "branches of 3 and 9 channels, which num_heads=2 does not divide"),
    ("BranchAttention", {"branch_ratio": 1.5}, "branch_ratio must lie within 0 and 1, got 1.5"),
    ("BranchConv", {"kernel_size": 0}, "kernel_size"),
    ("Attention", {"similarity_type": "Col"}, "no layer has an option 'similarity_type'"),
    ("Transformer", {}, "layer must be one of Attention, .*'Transformer'"),
]


@pytest.mark.parametrize(("layer", "options", "message"), WRONG)
def test_wrong_arguments_are_refused_when_the_layer_is_made(layer, options, message):
    with pytest.raises(InvalidInput, match=message):
        create_layer(layer, **{"dim": 12, "num_heads": 2, **options})


SWITCHES = [
    (name, option.name)
    for name, kind in LAYERS.items()
    for option in signature(kind).parameters.values()
    if isinstance(option.default, bool)
]


@pytest.mark.parametrize(("layer", "option"), [*SWITCHES, ("BranchConv", "softmax_topk_val")])
@pytest.mark.parametrize("value", ["no", 1, None], ids=str)
def test_what_is_on_or_off_is_refused_unless_it_is_true_or_false(layer, option, value):
    with pytest.raises(InvalidInput, match=rf"{option} must be True.* False.*, got {value!r}"):
        create_layer(layer, 12, 2, **{option: value})


@pytest.mark.parametrize(("layer", "option"), SWITCHES)
@pytest.mark.parametrize("value", [True, False])
def test_the_booleans_of_numpy_are_booleans(layer, option, value):
    rotary = {"rotary": True} if option == "use_xpos" else {}
    ours, theirs = (create_layer(layer, 12, 2, **{option: each, **rotary}) for each in (value, np.bool_(value)))
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize(
    ("layer", "option"),
    [
        *((name, "attention_dropout") for name in LAYERS),
        *(("BranchConv", "branch_ratio"), ("BranchAttention", "branch_ratio"), ("KvtAttention", "proj_drop")),
    ],
)
@pytest.mark.parametrize("value", ["x", [0.5], None], ids=str)
def test_what_is_no_number_is_refused_by_its_name_and_value(layer, option, value):
    with pytest.raises(InvalidInput, match=rf"{option} must .* got {re.escape(repr(value))}"):
        create_layer(layer, 12, 2, **{option: value})


@pytest.mark.parametrize("kind", ["standard", "depthwise", "depthwise-separable"])
@pytest.mark.parametrize("sampling", [{"sampling_type": "random", "num_samples": 4}, {"grid_size": 2}], ids=str)
def test_a_k_that_nothing_fills_is_refused_before_room_is_made_for_it(monkeypatch, kind, sampling):
    monkeypatch.setattr(torch, "empty", None)  # what every layer of torch is made with
    with pytest.raises(InvalidInput, match=f"K={2**31 - 1} is more than the 5 tokens"):
        MultiHeadConvNNAttention(12, 2, K=2**31 - 1, convolution_type=kind, **sampling)


@pytest.mark.parametrize("shape", [(17, 12), (2, 17, 11), (2, 0, 12), (2, 3, 4, 12)])
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_no_tokens_is_refused(name, shape):
    with pytest.raises(InvalidInput, match=r"expected \(batch, tokens, 12\)"):
        create_layer(name, 12, 2)(torch.zeros(shape))


@pytest.mark.parametrize("name", ["NeighborhoodAttention2D", "ConvNNAttention"])
def test_tokens_without_a_grid_are_refused_where_one_is_needed(name):
    layer = create_layer(name, 12, 2, K=3, coordinate_encoding=True)
    with pytest.raises(InvalidInput, match="give grid_size"):
        layer(torch.zeros(1, 12, 12))
    create_layer(name, 12, 2, K=3, coordinate_encoding=True, grid_size=(3, 4))(torch.zeros(1, 12, 12))


def test_options_of_other_layers_are_left_out():
    everything = set().union(*map(layer_options, LAYERS))
    assert {
        "K",
        "sampling_type",
        "num_samples",
        "sample_padding",
        "magnitude_type",
        "coordinate_encoding",
    } < everything
    assert {"convolution_type", "softmax_topk_val", "kernel_size", "branch_ratio", "sparse_mode"} < everything
    assert isinstance(create_layer("Attention", 12, K=9, kernel_size=3, branch_ratio=0.5), MultiHeadAttention)
    assert create_layer("BranchConv", 12, K=5, kernel_size=3, branch_ratio=0.5).convnn.K == 5


def test_a_backward_pass_within_autocast_gives_the_same_gradient():
    torch.manual_seed(0)
    layer, found = create_layer("ConvNNAttention", dim=24, num_heads=3, K=4, convolution_type="standard"), []
    for within in (True, False):
        given = torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(given).float().square().sum()
            if within:
                loss.backward()
        if not within:
            loss.backward()
        found.append(given.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "change",
    [{"num_heads": 1.5}, {"K": 10**20}, {"K": None}, {"K": float("nan")}, {"K": "9"}],
    ids=str,
)
def test_counts_that_are_no_counts_are_refused_in_words(change):
    with pytest.raises(InvalidInput, match="must be a whole number below"):
        create_layer("KvtAttention", **{"dim": 24, "num_heads": 3, **change})

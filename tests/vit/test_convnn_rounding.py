"""ConvNN attention in float32 beside a plain gather and convolution: they round alike, not just nearly alike.

Raw scores as weights make outputs of about 70, of which 2e-5 is the third of a millionth.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv1d, normalize

from attnknn.ops import links
from attnknn.ops.token_attention import knn_attention
from attnknn.vit import from_reference

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS, DIM, SEEDS = 17, 24, range(20)


def state_of(convolution, K, places, draw):
    """Weights of a reference layer by its names, as large as those that were recorded."""
    wide = DIM + places
    kernels = {
        "standard": {"conv.weight": (DIM, wide, K)},
        "depthwise": {"conv.weight": (DIM, 1, K)},
        "depthwise-separable": {"conv.0.weight": (wide, 1, K), "conv.1.weight": (DIM, wide, 1)},
    }[convolution]
    shapes = {f"W_{name}.weight": (DIM, DIM) for name in "qkvo"} | kernels
    std = {"W": 0.265, "c": 0.404}  # of the weights in the recordings
    return {name: torch.randn(shape, generator=draw) * std[name[0]] for name, shape in shapes.items()}


def similarities(kind, receiver, candidate):
    """(batch, tokens, tokens) from (batch, channels, tokens), and the factor that makes the best the largest."""
    if kind == "matmul":
        return receiver.transpose(1, 2) @ candidate / DIM**0.5, 1
    if kind == "cosine":
        return normalize(receiver, dim=1).transpose(1, 2) @ normalize(candidate, dim=1), 1
    return (receiver[..., None] - candidate[:, :, None]).square().sum(dim=1).sqrt(), -1


def gathered_and_convolved(x, state, K, kind, places):
    """The layer by its definition: neighbors gathered, weighed and convolved, all channels first."""
    receiver, candidate, v = ((x @ state[f"W_{name}.weight"].T).transpose(1, 2) for name in "kqv")
    if places:
        line = torch.linspace(-1, 1, TOKENS).expand(len(x), 1, TOKENS)
        receiver, candidate, v = (torch.cat([each, line], dim=1) for each in (receiver, candidate, v))
    scores, sign = similarities(kind, receiver, candidate)
    best, at = (sign * scores).topk(K)
    weights = best if sign == 1 else 1 / (1e-8 - best)
    channels = v.shape[1]
    every = v[..., None].expand(-1, -1, -1, K)
    near = weights[:, None] * every.gather(2, at[:, None].expand(-1, channels, -1, -1))
    first = state.get("conv.weight", state.get("conv.0.weight"))
    mixed = conv1d(near.flatten(2), first, stride=K, groups=channels if first.shape[1] == 1 else 1)
    if "conv.1.weight" in state:
        mixed = conv1d(mixed, state["conv.1.weight"])
    return mixed.transpose(1, 2) @ state["W_o.weight"].T


def both(seed, convolution, kind, K, places):
    """The output and the gradients of our layer and of the definition, by the reference's names."""
    draw = torch.Generator().manual_seed(seed)
    state = state_of(convolution, K, places, draw)
    x, cotangent = (torch.randn(2, TOKENS, DIM, generator=draw) for _ in range(2))
    options = {"d_hidden": DIM, "num_heads": 1, "attention_dropout": 0.0, "K": K, "magnitude_type": kind}
    options |= {"convolution_type": convolution, "softmax_topk_val": False, "coordinate_encoding": bool(places)}
    layer = from_reference("MultiHeadConvNNAttention", options, state).eval()
    ours = [layer(x), *gradients(layer, x, cotangent)]
    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    own = x.clone().requires_grad_()
    output = gathered_and_convolved(own, leaves, K, kind, places)
    return ours, [output, *torch.autograd.grad(output, [own, *leaves.values()], cotangent)]


def gradients(layer, x, cotangent):
    """Of the input and of every parameter in the order of the reference, whose queries are our keys."""
    own = x.clone().requires_grad_()
    named = dict(layer.named_parameters())
    order = ["W_k.weight", "W_q.weight", "W_v.weight", "W_o.weight", *(name for name in named if "conv" in name)]
    return torch.autograd.grad(layer(own), [own, *(named[name] for name in order)], cotangent)


@pytest.mark.parametrize("places", [0, 1], ids=["plain", "coordinates"])
@pytest.mark.parametrize("K", [4, 9])
@pytest.mark.parametrize("kind", ["matmul", "cosine", "euclidean"])
@pytest.mark.parametrize("convolution", ["standard", "depthwise", "depthwise-separable"])
def test_rounds_as_a_gather_and_a_convolution_do(convolution, kind, K, places):
    places = 0 if convolution == "depthwise" else places  # which the reference has none of
    for seed in SEEDS:
        ours, theirs = both(seed, convolution, kind, K, places)
        gaps = [(one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True)]
        assert gaps[0] <= 2e-5, seed
        assert max(gaps[1:]) <= 1e-4, seed


def test_many_neighbors_are_summed_rank_by_rank_to_the_same_up_to_rounding(monkeypatch):
    few, _ = both(0, "standard", "matmul", 9, 1)
    monkeypatch.setattr(links, "_FEW", 0)
    many, _ = both(0, "standard", "matmul", 9, 1)
    assert any((one != other).any() for one, other in zip(few, many, strict=True))
    for one, other in zip(few, many, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_few_neighbors_in_half_precision_are_summed_in_full(dtype):
    draw = torch.Generator().manual_seed(1)
    weights, v = torch.randn(2, 3, 5, 4, generator=draw), torch.randn(2, 3, 7, 6, generator=draw).to(dtype)
    kernel = torch.randn(8, 6, 4, generator=draw)
    at = torch.randint(7, (2, 3, 5, 4), generator=draw)
    joined = links.linked(at, 7, backward=False)
    mixed = links.combine_at(weights, v, joined, kernel)
    near = v.double()[torch.arange(2)[:, None, None, None], torch.arange(3)[:, None, None], at]
    expected = torch.einsum("bhqk,bhqkc,ock->bhqo", weights.double(), near, kernel.double())
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed, expected.to(dtype), rtol=1e-2, atol=1e-4)


def test_a_batch_decides_no_more_than_the_last_bits_and_no_queries_are_no_error():
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(40, 1, 17, 24, generator=random) for _ in range(3))
    kernel = torch.randn(24, 24, 9, generator=random)
    together = knn_attention(q, k, v, 9, rank_weights=kernel, softmax=False)
    for at in (0, 7, 39):
        alone = knn_attention(*(each[at : at + 1] for each in (q, k, v)), 9, rank_weights=kernel, softmax=False)
        torch.testing.assert_close(together[at : at + 1], alone, rtol=0, atol=1e-6 * float(together.abs().max()))
    assert knn_attention(q[:, :, :0], k, v, 9, rank_weights=kernel).shape == (40, 1, 0, 24)

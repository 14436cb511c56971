"""What a Vision Transformer is made of, and what one image costs: the text of ``model.txt``.

Counted is what this code computes in a forward pass, a multiply-add as 2 and a comparison as 1. Steps on single
numbers are not counted (biases, activations, scales, dropout, residual sums), nor is moving memory. For N tokens
of width d, H heads of c channels, K kept tokens and P pairs of a query and a key in each head::

    projections   2 N d_in d_out for every linear map of a layer
    scores        2 H P c; for what turns or measures queries and keys first, see below
    selection     H P ceil(log2(K + 1)): a score finds its place among the K best so far, or none, by halving
    weights       5 for each weight of a softmax, in every head: largest, difference, exponential, sum, quotient
    values        2 H P c; where a convolution adds up, only the products by the weights, H N K c
    convolution   2 H N K c depthwise, 2 H N K c^2 standard, 2 H N (K c + c^2) separable, 2 H N s c^2 along the
                  sequence with a kernel of s
    mlp           4 N d d_mlp
    other         2 d p for each patch of p numbers, 5 for each number of a layer norm, 2 d for each class, and
                  d for each patch where their mean is classified

    layer                     P
    Attention                 N M, with M candidates, all N unless they are sampled
    ConvNNAttention           N M; sampled, a token's own score comes on top, and K - 1 others are selected
    KvtAttention              N N; weights and values N K
    LocalAttention            W w L: W windows of w tokens, the last one filled up, that see L = 3 w (causal 2 w)
    SparseAttention           N m; local m = 2 (window // 2) + 1, strided m = ceil(N / window), all m = N
    NeighborhoodAttention     N m; m = K
    NeighborhoodAttention2D   N m; m = K K and the class token, which sees all N itself
    BranchConv                of its ConvNN attention; the rest is convolved
    BranchAttention           of both layers

Where m is more than an eighth of N all N are scored and the others masked, so that m = N. Coordinates add their
channels to c. Beyond their products, cosines cost 3 c for every query and key; Euclidean distances 3 c for every
token, 2 c for every candidate and 3 c for every token that is kept; rotary positions 3 c for every query and key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import singledispatch
from typing import Final, NamedTuple

import torch
from torch import nn

from attnknn.errors import InvalidInput
from attnknn.vit.attention import MultiHeadAttention
from attnknn.vit.branching import MultiHeadBranchingAttention, MultiHeadBranchingConv, MultiHeadConv1d
from attnknn.vit.convnn import MultiHeadConvNNAttention
from attnknn.vit.grid import RandomSampler, SpatialSampler, grid_of
from attnknn.vit.kvt import MultiHeadKvtAttention
from attnknn.vit.local import MultiHeadLocalAttention
from attnknn.vit.model import TransformerEncoder, ViT
from attnknn.vit.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from attnknn.vit.qkv import QkvAttention
from attnknn.vit.sparse import MultiHeadSparseAttention
from attnknn.vit.windows import WORTH

_SOFTMAX: Final = 5  # for each weight
_NORM: Final = 5  # for each number: mean, difference, square, sum of squares, quotient
_LENGTH: Final = 3  # for each channel of a vector that is brought to length 1: square, sum, quotient
_TURN: Final = 3  # for each channel of a vector that is turned: two products and their sum


class Flops(NamedTuple):
    """Operations of a forward pass for one image, by kind; a multiply-add is 2."""

    projections: int = 0
    scores: int = 0
    selection: int = 0
    weights: int = 0
    values: int = 0
    convolution: int = 0
    mlp: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(self)


def summary(model: ViT) -> str:
    """The architecture, its parameters module by module, and what one image costs.

    >>> summary(ViT(img_size=32, num_layers=1, d_hidden=12, d_mlp=24)).splitlines()[-1].split()
    ['total', '87,903', '100.0%']
    """
    return f"{model}\n\n{_parameters(model)}\n\n{_costs(model)}"


def flops(model: ViT) -> Flops:
    """What a forward pass costs for one image, in the mode, training or evaluation, that the model is in.

    >>> flops(ViT("KvtAttention", img_size=32, num_layers=1, d_hidden=12, d_mlp=24, K=2)).selection
    150
    """
    patches = model.grid_size[0] * model.grid_size[1]
    tokens = patches + (model.pool == "cls")
    embedding = model.patch_embedding.linear_projection
    width, classifier = embedding.out_channels, model.classifier
    other = 2 * patches * embedding.weight.numel() + _norm(model.patch_embedding.norm, patches)
    other += _norm(model.norm, tokens) + (0 if model.pool == "cls" else patches * width)
    other += _linear(classifier, 1)
    blocks = (each for each in model.transformer_encoder if isinstance(each, TransformerEncoder))
    return _together([Flops(other=other), *(_block(each, tokens) for each in blocks)])


def _block(block: TransformerEncoder, tokens: int) -> Flops:
    mlp = sum(_linear(each, tokens) for each in block.mlp if isinstance(each, nn.Linear))
    norms = _norm(block.norm1, tokens) + _norm(block.norm2, tokens)
    return _together([layer_flops(block.attention, tokens), Flops(mlp=mlp, other=norms)])


@singledispatch
def layer_flops(layer: nn.Module, tokens: int) -> Flops:
    """What one of our layers costs for one sequence of so many tokens.

    >>> layer_flops(MultiHeadAttention(12, 3), 10).scores
    2400
    """
    raise InvalidInput(f"there is no formula for a layer {type(layer).__name__}")


@layer_flops.register
def _attention(layer: MultiHeadAttention, tokens: int) -> Flops:
    seen = _candidates(layer.sampler, tokens)
    projections = _linear(layer.W_q, tokens) + _linear(layer.W_k, seen)
    projections += _linear(layer.W_v, seen) + _linear(layer.W_o, tokens)
    return _attended(tokens * seen, layer.num_heads, layer.dim)._replace(projections=projections)


@layer_flops.register
def _convnn(layer: MultiHeadConvNNAttention, tokens: int) -> Flops:
    heads, head_dim = layer.num_heads, layer.dim // layer.num_heads
    candidates, sampled = _candidates(layer.sampler, tokens), layer.sampler is not None
    kept = min(layer.K, candidates + sampled)
    selected = kept - sampled  # the token itself need not be looked for
    searched = candidates if selected else 0
    links = heads * tokens * kept
    wide = head_dim + {None: 0, "sequence": 1, "grid": 2}[layer.coordinate_encoding]
    value_dim = head_dim if layer.convolution_type == "depthwise" else wide
    return Flops(
        projections=sum(_linear(each, tokens) for each in (layer.W_q, layer.W_k, layer.W_v, layer.W_o)),
        scores=heads * wide * _similarity(layer.magnitude_type, tokens, searched, kept, sampled),
        selection=heads * tokens * searched * selected.bit_length(),
        weights=_SOFTMAX * links if layer.softmax_topk_val else 0,
        values=links * value_dim,
        convolution=_by_rank(layer.convolution_type, heads * tokens, kept, value_dim, head_dim),
    )


def _similarity(magnitude: str, tokens: int, searched: int, kept: int, sampled: bool) -> int:
    """Operations for each channel of a head: of the search, and of what comes before and after it."""
    own = tokens if sampled else 0
    count = 2 * (tokens * searched + own)
    if magnitude == "cosine":
        count += _LENGTH * 2 * tokens
    if magnitude == "euclidean":  # around the mean key; the distances of the kept are taken anew
        count += 3 * tokens + 2 * (searched + own) + 3 * tokens * kept
    return count


def _by_rank(kind: str, rows: int, kept: int, dim_in: int, dim_out: int) -> int:
    if kind == "standard":
        return 2 * rows * kept * dim_in * dim_out
    return 2 * rows * kept * dim_in + (2 * rows * dim_in * dim_out if kind == "depthwise-separable" else 0)


@layer_flops.register
def _kvt(layer: MultiHeadKvtAttention, tokens: int) -> Flops:
    kept, pairs = min(layer.K, tokens), tokens * tokens
    return Flops(
        projections=_linear(layer.qkv, tokens) + _linear(layer.proj, tokens),
        scores=2 * pairs * layer.dim,
        selection=layer.num_heads * pairs * kept.bit_length(),
        weights=_SOFTMAX * layer.num_heads * tokens * kept,
        values=2 * tokens * kept * layer.dim,
    )


@layer_flops.register
def _local(layer: MultiHeadLocalAttention, tokens: int) -> Flops:
    window = min(layer.window_size, tokens)
    queries = -(-tokens // window) * window
    around = 2 if layer.causal else 3
    inner = layer.num_heads * layer.dim_head
    before = 0 if layer.q_scale is None else _LENGTH * 2 * tokens
    before += 0 if layer.turns is None else _TURN * queries * (1 + around)
    gates = sum(_linear(each, tokens) for each in layer.to_v_gate or () if isinstance(each, nn.Linear))
    projections = _linear(layer.to_qkv, tokens) + _linear(layer.to_out, tokens) + gates
    other = 0 if layer.norm is None else _norm(layer.norm, tokens)
    attended = _attended(queries * around * window, layer.num_heads, inner)
    return _together([attended, Flops(projections=projections, scores=before * inner, other=other)])


@layer_flops.register
def _sparse(layer: MultiHeadSparseAttention, tokens: int) -> Flops:
    linear = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    window = layer.sparse_context_window
    seen = {
        "all": tokens,
        "local": 2 * min(window // 2, tokens - 1) + 1,
        "strided": -(-tokens // window),
    }[layer.sparse_mode]
    attended = _attended(tokens * _scored(seen, tokens), layer.num_heads, layer.dim)
    return attended._replace(projections=sum(_linear(each, tokens) for each in linear))


@layer_flops.register
def _neighborhood(layer: NeighborhoodAttention1D, tokens: int) -> Flops:
    dilation = min(layer.dilation, tokens)
    seen = min(layer.K, -(-tokens // dilation) if layer.is_causal else tokens // dilation)
    return _looked_around(layer, tokens, tokens * _scored(seen, tokens))


@layer_flops.register
def _neighborhood_2d(layer: NeighborhoodAttention2D, tokens: int) -> Flops:
    grid = grid_of(tokens, layer.grid_size)
    seen = grid.before + min(layer.K, grid.rows) * min(layer.K, grid.columns)
    pairs = (tokens - grid.before) * _scored(seen, tokens) + grid.before * tokens
    return _looked_around(layer, tokens, pairs)


@layer_flops.register
def _conv1d(layer: MultiHeadConv1d, tokens: int) -> Flops:
    return Flops(
        projections=_linear(layer.W_x, tokens) + _linear(layer.W_o, tokens),
        convolution=2 * layer.num_heads * tokens * layer.conv.weight.numel(),
    )


@layer_flops.register(MultiHeadBranchingConv)
@layer_flops.register(MultiHeadBranchingAttention)
def _branching(layer: MultiHeadBranchingConv | MultiHeadBranchingAttention, tokens: int) -> Flops:
    other = layer.conv1d if isinstance(layer, MultiHeadBranchingConv) else layer.attention
    branches = (layer_flops(each, tokens) for each in (layer.convnn, other) if each is not None)
    mixed = 0 if layer.pointwise_linear is None else _linear(layer.pointwise_linear, tokens)
    return _together([Flops(projections=mixed), *branches])


def _candidates(sampler: RandomSampler | SpatialSampler | None, tokens: int) -> int:
    """How many tokens a sampler gives, without drawing any."""
    if isinstance(sampler, SpatialSampler):
        return len(sampler(tokens, torch.device("cpu")))
    if sampler is None or not 0 <= sampler.num_samples < tokens:
        return tokens
    every = not sampler.training and sampler.eval_sampling == "all"
    return tokens if every else sampler.num_samples


def _scored(seen: int, tokens: int) -> int:
    """Keys that are scored for a query that sees so many: all, where following links would not pay."""
    return tokens if WORTH * seen > tokens else seen


def _attended(pairs: int, heads: int, width: int) -> Flops:
    """Softmax attention over so many pairs in each of the heads, all of which are so wide together."""
    return Flops(scores=2 * pairs * width, weights=_SOFTMAX * heads * pairs, values=2 * pairs * width)


def _looked_around(layer: QkvAttention, tokens: int, pairs: int) -> Flops:
    projections = _linear(layer.qkv, tokens) + _linear(layer.proj, tokens)
    return _attended(pairs, layer.num_heads, layer.dim)._replace(projections=projections)


def _together(parts: Iterable[Flops]) -> Flops:
    return Flops(*map(sum, zip(*parts, strict=True)))


def _linear(layer: nn.Linear, rows: int) -> int:
    return 2 * rows * layer.in_features * layer.out_features


def _norm(layer: nn.Module, rows: int) -> int:
    return _NORM * rows * layer.normalized_shape[0] if isinstance(layer, nn.LayerNorm) else 0


def _parameters(model: ViT) -> str:
    """A line for each module that has parameters of its own, and one for all."""
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, value in model.named_parameters():
        own = counts[name.rpartition(".")[0]]
        own[0] += value.numel()
        own[1] += value.numel() if value.requires_grad else 0
    kinds = {name: type(model.get_submodule(name)).__name__ for name in counts}
    wide, kind_wide = max(map(len, counts)), max(map(len, kinds.values()))

    def line(name: str, kind: str, *cells: str) -> str:
        return f"{name:<{wide}}  {kind:<{kind_wide}}" + "".join(f"  {each:>12}" for each in cells)

    totals = [f"{sum(each):,}" for each in zip(*counts.values(), strict=True)]
    rows = [line(name, kinds[name], *(f"{each:,}" for each in both)) for name, both in counts.items()]
    return "\n".join([line("module", "kind", "parameters", "trainable"), *rows, line("all", "", *totals)])


def _costs(model: ViT) -> str:
    cost = flops(model)
    size = " x ".join(map(str, (model.in_channels, *model.img_size)))
    head = f"FLOPs of one image of {size}; a multiply-add counts as 2"
    kinds = {**cost._asdict(), "total": cost.total}
    rows = [f"{kind:<11}  {count:>18,}  {count / cost.total:>6.1%}" for kind, count in kinds.items()]
    return "\n".join([head, *rows])

"""Self-attention among neighbors: PyTorch's own multi-head attention as the reference, and its laws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attnknn.attend.self_attention import MOST_NEIGHBORS, NeighborSelfAttention
from attnknn.errors import InvalidInput
from attnknn.ops import unit


def layer(seed=0, normalize=False, stir=0.3):
    torch.manual_seed(seed)
    made = NeighborSelfAttention(8, 2, head_dim=4, normalize=normalize).double()
    with torch.no_grad():
        made.out_proj.weight.add_(stir * torch.randn(8, 8))
    return made


def neighbors(seed=0, queries=3, k=5):
    return unit(torch.randn(queries, k, 8, generator=torch.Generator().manual_seed(seed)).double())


def of_pytorch(ours, vectors, found):
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
    return vectors + theirs(vectors, vectors, vectors, key_padding_mask=~found, need_weights=False)[0]


@pytest.mark.parametrize("normalize", [False, True])
def test_adds_what_multi_head_attention_of_pytorch_gives(normalize):
    ours, vectors = layer(normalize=normalize), neighbors()
    found = torch.tensor([[True] * 5, [True, False, True, True, False], [False, False, True, False, False]])
    expected = of_pytorch(ours, vectors, found)
    expected = unit(expected) if normalize else expected
    torch.testing.assert_close(ours(vectors, found)[found], expected[found])
    torch.testing.assert_close(ours(vectors)[0], ours(vectors, found)[0])


@pytest.mark.parametrize("normalize", [False, True])
def test_starts_as_the_identity(normalize):
    torch.testing.assert_close(layer(normalize=normalize, stir=0.0)(neighbors()), neighbors())


def test_refined_vectors_have_length_one_only_where_asked():
    lengths = [torch.linalg.vector_norm(layer(normalize=each)(neighbors()), dim=-1) for each in (True, False)]
    torch.testing.assert_close(lengths[0], torch.ones(3, 5).double())
    assert (lengths[1] - 1).abs().max() > 0.01


def test_absent_neighbors_come_out_as_zero_and_nobody_sees_them():
    ours, vectors = layer(), neighbors()
    found = (torch.arange(5) < 3).expand(3, 5).clone()
    found[2] = False
    holes = vectors.masked_fill(~found[..., None], math.nan).requires_grad_()
    refined = ours(holes, found)
    assert (refined[~found] == 0).all()
    torch.testing.assert_close(refined[:2, :3], ours(vectors[:2, :3]))
    refined.square().sum().backward()
    assert holes.grad.isfinite().all()
    assert all(each.grad.isfinite().all() for each in ours.parameters())


def test_permuting_neighbors_permutes_what_comes_out():
    order = torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(layer()(neighbors()[:, order]), layer()(neighbors())[:, order])


def test_more_than_256_neighbors_are_refused():
    assert MOST_NEIGHBORS == 256
    assert layer()(torch.zeros(1, 256, 8).double()).shape == (1, 256, 8)
    with pytest.raises(InvalidInput, match=r"among 257 neighbors.*at most 256"):
        layer()(torch.zeros(1, 257, 8).double())


def test_impossible_widths_are_refused():
    with pytest.raises(InvalidInput, match="num_heads=0"):
        NeighborSelfAttention(8, 0)

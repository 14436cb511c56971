"""Neighbors that look at each other before the query looks at them."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.ops import unit

MOST_NEIGHBORS: Final = 256
"""How many neighbors may attend to each other: time and memory grow with the square of their number."""


class NeighborSelfAttention(nn.Module):
    """Multi-head attention among the neighbors of each query, added to their vectors.

    Its output projection starts at zero, so it starts as the identity. Vectors are expected to have a length of
    about 1: the other projections start at random with entries of that size.

    Args:
        embed_dim: Width of the vectors.
        num_heads: Heads.
        head_dim: Width of each head.
        normalize: Whether refined vectors are brought back to length 1, as those of an embedder that normalizes.

    >>> import torch
    >>> neighbors = unit(torch.randn(2, 5, 8))
    >>> torch.equal(NeighborSelfAttention(8)(neighbors), neighbors)
    True
    """

    def __init__(self, embed_dim: int, num_heads: int = 4, *, head_dim: int = 16, normalize: bool = False) -> None:
        super().__init__()
        if min(embed_dim, num_heads, head_dim) < 1:
            raise InvalidInput(f"widths must be at least 1, got {embed_dim=}, {num_heads=}, {head_dim=}")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.normalize = normalize
        self.qkv = nn.Linear(embed_dim, 3 * num_heads * head_dim, bias=False)
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=False)
        nn.init.normal_(self.qkv.weight)
        nn.init.zeros_(self.out_proj.weight)

    def forward(self, neighbors: Tensor, found: Tensor | None = None) -> Tensor:
        """Refined neighbors (queries, k, dim); zero where there is none.

        Args:
            neighbors: (queries, k, dim).
            found: (queries, k), which of them exist; without it all do.
        """
        queries, k, _ = neighbors.shape
        if k > MOST_NEIGHBORS:
            raise InvalidInput(
                f"self-attention among {k} neighbors costs their square; "
                f"use at most {MOST_NEIGHBORS}, or switch self_attention off"
            )
        if found is not None:
            neighbors = neighbors.masked_fill(~found[..., None], 0.0)
        # (queries, k, 3 * heads * head_dim) -> three of (queries, heads, k, head_dim)
        split = self.qkv(neighbors).view(queries, k, 3, self.num_heads, self.head_dim)
        asked, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(asked, keys, values, attn_mask=_visible(found))
        refined: Tensor = neighbors + self.out_proj(mixed.transpose(1, 2).flatten(2))
        if self.normalize:
            refined = unit(refined)
        return refined if found is None else refined.masked_fill(~found[..., None], 0.0)

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"num_heads={self.num_heads}, normalize={self.normalize}"


def _visible(found: Tensor | None) -> Tensor | None:
    """(queries, 1, 1, k): who can be seen. Where nobody exists all are: some kernels make NaN of nothing."""
    if found is None:
        return None
    return (found | ~found.any(dim=-1, keepdim=True))[:, None, None]

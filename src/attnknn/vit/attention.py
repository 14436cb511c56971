"""Plain multi-head attention, over all tokens or over a sample of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnknn.vit.grid import checked_grid_size, make_sampler
from attnknn.vit.heads import (
    checked_heads,
    checked_rate,
    checked_tokens,
    dense_mask,
    merge_heads,
    split_heads,
)


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention as in the textbook, without biases.

    With ``sampling_type`` other than ``all`` every query sees only the sampled keys: the control for layers that
    sample and select.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        attention_dropout: Dropout on the attention weights.
        sampling_type: ``all``, ``random`` or ``spatial``.
        num_samples: Tokens drawn for ``random``, the side of the grid for ``spatial``; -1 means all.
        sample_padding: For ``spatial``: patches left out at every edge.
        grid_size: Rows and columns of patches, where they are not a square.
        eval_sampling: What ``random`` does in evaluation: ``fixed``, ``all`` or ``resample``.
        generator: What ``random`` draws from; by default one of its own.

    >>> MultiHeadAttention(192, 3)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        attention_dropout: float = 0.0,
        sampling_type: str = "all",
        num_samples: int = -1,
        sample_padding: int = 0,
        grid_size: int | tuple[int, int] | None = None,
        eval_sampling: str = "fixed",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        checked_heads(dim, num_heads)
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.attention_dropout = checked_rate(attention_dropout, "attention_dropout")
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.W_o = nn.Linear(dim, dim, bias=False)
        self.sampler = make_sampler(
            sampling_type,
            num_samples,
            sample_padding,
            grid_size=checked_grid_size(grid_size),
            eval_sampling=eval_sampling,
            generator=generator,
        )

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(batch, tokens, dim) to the same; masks as in :func:`attnknn.vit.knn_attention`."""
        checked_tokens(x, self.dim)
        mask, seen = dense_mask(x, self.num_heads, attn_mask, key_padding_mask, is_causal), x
        if self.sampler is not None:
            candidates = self.sampler(x.shape[1], x.device)
            seen = x.index_select(1, candidates)
            mask = mask if mask is None or mask.shape[-1] == 1 else mask.index_select(-1, candidates)
        q, k, v = (split_heads(each, self.num_heads) for each in (self.W_q(x), self.W_k(seen), self.W_v(seen)))
        rate = self.attention_dropout if self.training else 0.0
        out: Tensor = self.W_o(merge_heads(scaled_dot_product_attention(q, k, v, mask, rate)))
        return out

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"num_heads={self.num_heads}, attention_dropout={self.attention_dropout:g}"

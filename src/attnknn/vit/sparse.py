"""Sparse attention with a pattern that does not depend on the tokens: a local window or a stride."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.vit.heads import (
    checked_count,
    checked_heads,
    checked_rate,
    checked_tokens,
    dense_mask,
    merge_heads,
    split_heads,
)
from attnknn.vit.windows import attend_to, seen_mask

SparseMode = Literal["all", "local", "strided"]
SPARSE_MODES: Final[tuple[SparseMode, ...]] = get_args(SparseMode)


class MultiHeadSparseAttention(nn.Module):
    """Multi-head self-attention to a fixed pattern of tokens.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        sparse_mode: ``all``; ``local``, tokens at most half a window away; ``strided``, tokens a multiple of the
            window away.
        sparse_context_window: The window or the stride.
        attention_dropout: Dropout on the attention weights.

    >>> MultiHeadSparseAttention(192, 3, sparse_mode="local")(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        sparse_mode: str = "all",
        sparse_context_window: int = 32,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if sparse_mode not in SPARSE_MODES:
            raise InvalidInput(f"sparse_mode must be one of {', '.join(SPARSE_MODES)}, got {sparse_mode!r}")
        self.scale = checked_heads(dim, num_heads) ** -0.5
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.sparse_mode = sparse_mode
        self.sparse_context_window = checked_count(sparse_context_window, "sparse_context_window")
        self.attention_dropout = checked_rate(attention_dropout, "attention_dropout")
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(batch, tokens, dim) to the same; masks as in :func:`attnknn.vit.knn_attention`."""
        tokens = checked_tokens(x, self.dim).shape[1]
        q, k, v = (split_heads(each(x), self.num_heads) for each in (self.q_proj, self.k_proj, self.v_proj))
        rate = self.attention_dropout if self.training else 0.0
        mask = dense_mask(x, self.num_heads, attn_mask, key_padding_mask, is_causal)
        if self.sparse_mode == "all":
            mixed = scaled_dot_product_attention(q, k, v, mask, rate)
        elif mask is None:
            mixed = attend_to(q, k, v, self._seen(tokens, x.device), scale=self.scale, dropout_p=rate)
        else:
            seen = seen_mask(self._seen(tokens, x.device), tokens)
            hidden = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)
            mixed = scaled_dot_product_attention(q, k, v, hidden, rate)
        out: Tensor = self.out_proj(merge_heads(mixed))
        return out

    def _seen(self, tokens: int, device: torch.device) -> Tensor:
        """(tokens, m) which tokens each sees, -1 for none."""
        own, window = torch.arange(tokens, device=device)[:, None], self.sparse_context_window
        if self.sparse_mode == "local":
            reach = min(window // 2, tokens - 1)
            seen = own + torch.arange(-reach, reach + 1, device=device)
        else:
            seen = own % window + window * torch.arange(-(-tokens // window), device=device)
        return seen.masked_fill((seen < 0) | (seen >= tokens), -1)

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return (
            f"num_heads={self.num_heads}, sparse_mode={self.sparse_mode!r}, "
            f"sparse_context_window={self.sparse_context_window}"
        )

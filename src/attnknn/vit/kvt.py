"""k-NN attention of KVT: softmax over the k largest scores of each query."""

from __future__ import annotations

from torch import Tensor, nn

from attnknn.ops.token_attention import knn_attention
from attnknn.vit.heads import (
    checked_count,
    checked_heads,
    checked_rate,
    checked_scale,
    checked_tokens,
    merge_heads,
    split_heads,
)


class MultiHeadKvtAttention(nn.Module):
    """Multi-head self-attention that keeps the ``K`` largest scores of each query.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        K: Keys that each query keeps; all, where there are fewer.
        attention_dropout: Dropout on the attention weights.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_scale: Factor of the scores; by default 1 / sqrt(dim / num_heads).
        proj_drop: Dropout on the output.

    >>> import torch
    >>> MultiHeadKvtAttention(192, 3, K=9)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        K: int = 9,
        attention_dropout: float = 0.0,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads, self.K = dim, num_heads, checked_count(K, "K")
        self.scale = checked_scale(qk_scale, checked_heads(dim, num_heads) ** -0.5)
        self.attention_dropout = checked_rate(attention_dropout, "attention_dropout")
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.proj_drop = nn.Dropout(checked_rate(proj_drop, "proj_drop"))

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        return_indices: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, tokens, dim) to the same; masks as in :func:`attnknn.vit.knn_attention`.

        With ``return_indices`` also the kept tokens (batch, heads, tokens, K), by rank, -1 where there are fewer.
        """
        q, k, v = (
            split_heads(each, self.num_heads) for each in self.qkv(checked_tokens(x, self.dim)).chunk(3, -1)
        )
        mixed, indices = knn_attention(
            q,
            k,
            v,
            self.K,
            scale=self.scale,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            dropout_p=self.attention_dropout if self.training else 0.0,
            return_indices=True,
        )
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        return (out, indices) if return_indices else out

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"num_heads={self.num_heads}, K={self.K}, attention_dropout={self.attention_dropout:g}"

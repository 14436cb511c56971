"""k-NN attention of KVT: softmax over the k largest scores of each query."""

from __future__ import annotations

from torch import Tensor

from attnknn.ops.token_attention import nearest_attention
from attnknn.vit.qkv import QkvAttention


class MultiHeadKvtAttention(QkvAttention):
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
        super().__init__(
            dim,
            num_heads,
            K=K,
            attention_dropout=attention_dropout,
            qkv_bias=qkv_bias,
            qk_scale=qk_scale,
            proj_drop=proj_drop,
            proj_bias=False,
        )

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

        With ``return_indices`` also the kept tokens (batch, heads, tokens, K), by rank, -1 where it sees fewer;
        of fewer tokens than K, as many columns as there are to keep.
        """
        mixed, indices = nearest_attention(
            *self.heads(x),
            self.K,
            scale=self.scale,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            dropout_p=self.rate,
        )
        out = self.projected(mixed)
        return (out, indices.long()) if return_indices else out

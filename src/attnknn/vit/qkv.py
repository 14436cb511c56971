"""What the layers share whose queries, keys and values come from one projection, named as NATTEN names it."""

from __future__ import annotations

from torch import Tensor, nn

from attnknn.vit.heads import (
    checked_count,
    checked_flag,
    checked_heads,
    checked_rate,
    checked_scale,
    checked_tokens,
    merge_heads,
    split_heads,
)


class QkvAttention(nn.Module):
    """The parameters, and the ways into heads and out of them; a layer says what happens between.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        K: Tokens that each token sees.
        attention_dropout: Dropout on the attention weights.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_scale: Factor of the scores; by default 1 / sqrt(dim / num_heads).
        proj_drop: Dropout on the output.
        proj_bias: Whether the output projection has a bias.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        K: int,
        attention_dropout: float,
        qkv_bias: bool,
        qk_scale: float | None,
        proj_drop: float,
        proj_bias: bool,
    ) -> None:
        super().__init__()
        self.scale = checked_scale(qk_scale, checked_heads(dim, num_heads) ** -0.5)
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.K = checked_count(K, "K")
        self.attention_dropout = checked_rate(attention_dropout, "attention_dropout")
        self.qkv = nn.Linear(dim, 3 * dim, bias=checked_flag(qkv_bias, "qkv_bias"))
        self.proj = nn.Linear(dim, dim, bias=checked_flag(proj_bias, "proj_bias"))
        self.proj_drop = nn.Dropout(checked_rate(proj_drop, "proj_drop"))

    @property
    def rate(self) -> float:
        """Of dropout on the weights, as things are."""
        return self.attention_dropout if self.training else 0.0

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, heads, tokens, dim / heads) of (batch, tokens, dim)."""
        q, k, v = (
            split_heads(each, self.num_heads) for each in self.qkv(checked_tokens(x, self.dim)).chunk(3, -1)
        )
        return q, k, v

    def projected(self, mixed: Tensor) -> Tensor:
        """(batch, heads, tokens, dim / heads) to the layer's output (batch, tokens, dim)."""
        out: Tensor = self.proj_drop(self.proj(merge_heads(mixed)))
        return out

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"num_heads={self.num_heads}, K={self.K}, attention_dropout={self.attention_dropout:g}"

"""Neighborhood attention: each token sees the tokens around it, along the sequence or on the patch grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnknn.vit.grid import Grid, checked_grid_size, grid_of
from attnknn.vit.heads import checked_count, checked_flag
from attnknn.vit.qkv import QkvAttention
from attnknn.vit.windows import attend_to, window_starts


class NeighborhoodAttention1D(QkvAttention):
    """Each token sees ``K`` tokens of the sequence around it; near an end the window is moved, not cut.

    The class token is a token of the sequence like any other.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        K: Tokens that each token sees, itself among them; as many as there are, where there are fewer.
        attention_dropout: Dropout on the attention weights.
        dilation: Distance between the tokens of a window.
        is_causal: Whether the window ends with the token itself; it is then cut at the start.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_scale: Factor of the scores; by default 1 / sqrt(dim / num_heads).
        proj_drop: Dropout on the output.

    >>> NeighborhoodAttention1D(192, 3, K=5)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        K: int = 9,
        attention_dropout: float = 0.0,
        dilation: int = 1,
        is_causal: bool = False,
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
            proj_bias=True,
        )
        self.dilation = checked_count(dilation, "dilation")
        self.is_causal = checked_flag(is_causal, "is_causal")

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same."""
        q, k, v = self.heads(x)
        seen = self._seen(q.shape[2], q.device)
        return self.projected(attend_to(q, k, v, seen, scale=self.scale, dropout_p=self.rate))

    def _seen(self, tokens: int, device: torch.device) -> Tensor:
        """(tokens, m) which tokens each sees; those a multiple of the dilation apart form a group."""
        dilation = min(self.dilation, tokens)
        own = torch.arange(tokens, device=device)
        group, place = own % dilation, own.div(dilation, rounding_mode="floor")
        members = (tokens - group + dilation - 1).div(dilation, rounding_mode="floor")
        if self.is_causal:
            places = place[:, None] - torch.arange(min(self.K, -(-tokens // dilation)), device=device)
            return (group[:, None] + dilation * places).masked_fill(places < 0, -1)
        size = min(self.K, tokens // dilation)
        first = torch.minimum((place - size // 2).clamp(min=0), members - size)
        return group[:, None] + dilation * (first[:, None] + torch.arange(size, device=device))


class NeighborhoodAttention2D(QkvAttention):
    """Each patch sees the ``K`` x ``K`` patches around it; the class token sees all, and all see it.

    Near an edge the window is moved, not cut.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        K: Side of the window; that of the grid, where it is smaller.
        attention_dropout: Dropout on the attention weights.
        grid_size: Rows and columns of patches, where they are not a square.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_scale: Factor of the scores; by default 1 / sqrt(dim / num_heads).
        proj_drop: Dropout on the output.

    >>> NeighborhoodAttention2D(192, 3, K=3)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        K: int = 9,
        attention_dropout: float = 0.0,
        grid_size: int | tuple[int, int] | None = None,
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
            proj_bias=True,
        )
        self.grid_size = checked_grid_size(grid_size)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same."""
        q, k, v = self.heads(x)
        grid = grid_of(q.shape[2], self.grid_size)
        seen = _patches_seen(grid, self.K, q.device)
        mixed = attend_to(q[:, :, grid.before :], k, v, seen, scale=self.scale, dropout_p=self.rate)
        if grid.before:
            asked = q[:, :, : grid.before]
            first = scaled_dot_product_attention(asked, k, v, dropout_p=self.rate, scale=self.scale)
            mixed = torch.cat([first, mixed], dim=2)
        return self.projected(mixed)


def _patches_seen(grid: Grid, side: int, device: torch.device) -> Tensor:
    """(patches, m) the tokens that each patch sees: those before the grid, then its window row by row."""
    down = _windows(grid.rows, side, device)[:, None, :, None]
    across = _windows(grid.columns, side, device)[None, :, None, :]
    window = (down * grid.columns + across + grid.before).flatten(2).flatten(0, 1)
    before = torch.arange(grid.before, device=device).expand(len(window), -1)
    return torch.cat([before, window], dim=1)


def _windows(length: int, side: int, device: torch.device) -> Tensor:
    """(length, side) the window of each place of one axis."""
    side = min(side, length)
    return window_starts(length, side, device)[:, None] + torch.arange(side, device=device)

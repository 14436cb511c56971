"""Local attention: the sequence is cut into windows, and each sees itself and the windows beside it."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad, scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.ops.masks import check_padding
from attnknn.vit.heads import (
    checked_count,
    checked_flag,
    checked_rate,
    checked_tokens,
    is_number,
    merge_heads,
    split_heads,
)


class MultiHeadLocalAttention(nn.Module):
    """Multi-head self-attention within windows, with rotary positions.

    A token sees its own window, the one before and, unless causal, the one after. The length of the sequence need
    not be a multiple of the window. As in the layer this follows, positions of queries run ``window_size``
    ahead of those of keys unless causal.

    Args:
        dim: Width of the tokens.
        num_heads: Heads.
        window_size: Tokens of a window.
        dim_head: Width of a head; by default ``dim / num_heads``.
        attention_dropout: Dropout on the attention weights.
        causal: Whether a token sees only tokens before it and itself.
        prenorm: Whether tokens pass a layer norm first.
        qk_rmsnorm: Whether queries and keys have a learned length by channel, and scores the factor ``qk_scale``.
        qk_scale: That factor; without ``qk_rmsnorm`` it is 1 / sqrt(dim_head).
        rotary: Whether queries and keys are turned by their position.
        use_xpos: Whether distance also dampens scores; needs ``rotary``.
        xpos_scale_base: Tokens over which it does; by default half a window.
        exact_windowsize: Whether a token sees at most ``window_size`` tokens far, or its windows to their ends.
        gate_values_per_head: Whether a learned gate scales each head's output.

    >>> MultiHeadLocalAttention(192, 3, window_size=8)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        window_size: int = 128,
        dim_head: int | None = None,
        attention_dropout: float = 0.0,
        causal: bool = False,
        prenorm: bool = False,
        qk_rmsnorm: bool = False,
        qk_scale: float = 8.0,
        rotary: bool = True,
        use_xpos: bool = False,
        xpos_scale_base: float | None = None,
        exact_windowsize: bool = True,
        gate_values_per_head: bool = False,
    ) -> None:
        super().__init__()
        dim, num_heads = checked_count(dim, "dim"), checked_count(num_heads, "num_heads")
        self.dim, self.num_heads = dim, num_heads
        flags = {"causal": causal, "prenorm": prenorm, "qk_rmsnorm": qk_rmsnorm, "rotary": rotary}
        flags |= {"use_xpos": use_xpos, "exact_windowsize": exact_windowsize}
        for name, flag in (flags | {"gate_values_per_head": gate_values_per_head}).items():
            checked_flag(flag, name)
        self.dim_head = _checked_head(dim, num_heads, dim_head, rotary)
        self.window_size = checked_count(window_size, "window_size")
        self.attention_dropout = checked_rate(attention_dropout, "attention_dropout")
        self.causal, self.exact_windowsize = causal, exact_windowsize
        self.scale = float(qk_scale) if qk_rmsnorm else self.dim_head**-0.5
        inner = num_heads * self.dim_head
        self.norm = nn.LayerNorm(dim) if prenorm else None
        self.to_qkv = nn.Linear(dim, 3 * inner, bias=False)
        self.q_scale = nn.Parameter(torch.ones(self.dim_head)) if qk_rmsnorm else None
        self.k_scale = nn.Parameter(torch.ones(self.dim_head)) if qk_rmsnorm else None
        base = _checked_base(self.window_size, rotary, use_xpos, xpos_scale_base)
        self.turns = Turns(self.dim_head, base) if rotary else None
        self.to_v_gate = nn.Sequential(nn.Linear(dim, num_heads)) if gate_values_per_head else None
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.whole_windows_only = False  # of weights of the reference, which is wrong about others

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """(batch, tokens, dim) to the same; ``key_padding_mask`` (batch, tokens), True where one is padding."""
        tokens = checked_tokens(x, self.dim).shape[1]
        check_padding((x.shape[0], tokens), key_padding_mask)
        if self.whole_windows_only and tokens % self.window_size:
            raise InvalidInput(
                f"the reference looks at padding where windows of {self.window_size} do not divide the sequence, "
                f"got {tokens} tokens: its weights were trained with that defect"
            )
        x = x if self.norm is None else self.norm(x)
        q, k, v = (split_heads(each, self.num_heads) for each in self.to_qkv(x).chunk(3, dim=-1))
        if self.q_scale is not None and self.k_scale is not None:
            q, k = normalize(q, dim=-1) * self.q_scale, normalize(k, dim=-1) * self.k_scale
        mixed = self._by_window(q, k, v, key_padding_mask)
        if self.to_v_gate is not None:
            mixed = mixed * self.to_v_gate(x).transpose(1, 2)[..., None].sigmoid()
        out: Tensor = self.to_out(merge_heads(mixed))
        return out

    def _by_window(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """(batch, heads, tokens, dim_head) of tokens that look around in their windows."""
        tokens = q.shape[2]
        window = min(self.window_size, tokens)
        queries = _windows(q, window)
        keys, values = (_looking_around(_windows(each, window), self.causal) for each in (k, v))
        if self.turns is not None:
            ahead = window + (0 if self.causal else self.window_size)
            queries = self.turns(queries, torch.arange(window, device=q.device) + ahead)
            keys = self.turns(keys, torch.arange(keys.shape[3], device=q.device), inverse=True)
        mask = self._seen(tokens, window, q.device)[:, None]  # (windows, 1, window, keys)
        if padding is not None:
            around = _looking_around(_windows(padding[:, None, :, None], window), self.causal)
            mask = mask & ~around[:, 0, :, None, None, :, 0]
        # Windows and heads change places: masks differ by window, not by head.
        mixed = scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask,
            self.attention_dropout if self.training else 0.0,
            scale=self.scale,
        )
        return mixed.transpose(1, 2).flatten(2, 3)[:, :, :tokens]

    def _seen(self, tokens: int, window: int, device: torch.device) -> Tensor:
        """(windows, window, keys), True where a query sees a key of the windows around it."""
        count = ceil(tokens / window)
        first = torch.arange(count, device=device)[:, None, None] * window
        query = first + torch.arange(window, device=device)[:, None]
        key = first + torch.arange(-window, window * (1 if self.causal else 2), device=device)
        seen = (key >= 0) & (key < tokens)
        if self.causal:
            seen = seen & (key <= query)
        if self.exact_windowsize:
            seen = seen & ((query - key).abs() <= self.window_size)
        return seen

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return (
            f"num_heads={self.num_heads}, window_size={self.window_size}, dim_head={self.dim_head}, "
            f"causal={self.causal}, exact_windowsize={self.exact_windowsize}"
        )


class Turns(nn.Module):
    """Rotary positions: pairs of channels are turned by angles that grow with the position.

    Args:
        dim: Channels; even.
        base: Tokens over which the length of a query shrinks and that of a key grows; None leaves lengths alone.
    """

    def __init__(self, dim: int, base: float | None) -> None:
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
        """``x`` (..., positions, dim) turned; ``inverse`` is the change of length of keys."""
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        even = torch.arange(0, self.dim, 2, device=x.device, dtype=wide)
        angles = (positions[:, None] * 10000.0 ** (-even / self.dim)).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        turned = x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()
        if self.base is not None:
            shrink = (even + 0.4 * self.dim) / (1.4 * self.dim)
            power = (-positions if inverse else positions)[:, None] / self.base
            turned = turned * (shrink**power).repeat(1, 2)
        return turned.to(x.dtype)


def _windows(x: Tensor, window: int) -> Tensor:
    """(batch, heads, tokens, c) as (batch, heads, windows, window, c); what is added at the end is masked."""
    missing = -x.shape[2] % window
    batch, heads, tokens, width = x.shape
    return pad(x, (0, 0, 0, missing)).view(batch, heads, (tokens + missing) // window, window, width)


def _looking_around(x: Tensor, causal: bool) -> Tensor:
    """(batch, heads, windows, 2 or 3 windows, c): each window behind the one before it, and before the next."""
    around = pad(x, (0, 0, 0, 0, 1, 0 if causal else 1))
    count = x.shape[2]
    return torch.cat([around[:, :, at : at + count] for at in range(2 if causal else 3)], dim=3)


def _checked_head(dim: int, num_heads: int, dim_head: int | None, rotary: bool) -> int:
    if dim_head is None and dim % num_heads:
        raise InvalidInput(f"num_heads must divide dim where dim_head is not given, got {dim=}, {num_heads=}")
    width = dim // num_heads if dim_head is None else checked_count(dim_head, "dim_head")
    if rotary and width % 2:
        raise InvalidInput(f"rotary positions turn pairs of channels: dim_head must be even, got {width}")
    return width


def _checked_base(window_size: int, rotary: bool, use_xpos: bool, base: float | None) -> float | None:
    if not use_xpos:
        return None
    if not rotary:
        raise InvalidInput("use_xpos changes rotary positions: it needs rotary=True")
    base = window_size // 2 if base is None else base
    if not is_number(base) or not base > 0:
        raise InvalidInput(f"xpos_scale_base must be above 0, got {base!r} (a window of 1 has no half)")
    return float(base)

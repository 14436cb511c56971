"""Two layers side by side, each on its share of the channels: ConvNN attention, and a convolution or attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnknn.errors import InvalidInput
from attnknn.ops.masks import check_padding
from attnknn.vit.attention import MultiHeadAttention
from attnknn.vit.convnn import MultiHeadConvNNAttention
from attnknn.vit.heads import checked_count, checked_heads, checked_tokens, is_number, merge_heads, split_heads


class MultiHeadConv1d(nn.Module):
    """A convolution along the sequence in every head, between two projections; heads share its weights.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``.
        kernel_size: Tokens that each token sees; zeros stand beyond the ends.

    >>> MultiHeadConv1d(192, 3, kernel_size=9)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(self, dim: int, num_heads: int = 3, *, kernel_size: int = 9) -> None:
        super().__init__()
        head_dim = checked_heads(dim, num_heads)
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.kernel_size = checked_count(kernel_size, "kernel_size")
        self.W_x = nn.Linear(dim, dim)
        self.conv = nn.Conv1d(head_dim, head_dim, self.kernel_size)
        self.W_o = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same."""
        heads = split_heads(self.W_x(checked_tokens(x, self.dim)), self.num_heads)
        before = (self.kernel_size - 1) // 2
        padded = pad(heads.flatten(0, 1).transpose(1, 2), (before, self.kernel_size - 1 - before))
        mixed = self.conv(padded).transpose(1, 2).reshape(heads.shape)
        out: Tensor = self.W_o(merge_heads(mixed))
        return out


class _Branching(nn.Module):
    """ConvNN attention on the first channels, another layer on the rest, and a linear map of both together."""

    def __init__(self, dim: int, num_heads: int, branch_ratio: float, convnn: dict[str, Any]) -> None:
        super().__init__()
        self.first, self.branch_ratio = _share(dim, num_heads, branch_ratio), branch_ratio
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.convnn = MultiHeadConvNNAttention(self.first, num_heads, **convnn) if self.first else None
        whole = self.first in (0, dim)  # one branch alone needs no mixing
        self.pointwise_linear = None if whole else nn.Linear(dim, dim)

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        if self.pointwise_linear is None:
            return parts[0]
        mixed: Tensor = self.pointwise_linear(torch.cat(parts, dim=-1))
        return mixed

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return f"num_heads={self.num_heads}, branch_ratio={self.branch_ratio:g}"


class MultiHeadBranchingConv(_Branching):
    """A convolution along the sequence beside ConvNN attention.

    Args:
        dim: Width of the tokens.
        num_heads: Heads of both branches; must divide the channels of each.
        kernel_size: Of the convolution.
        branch_ratio: Share of the channels that go to ConvNN attention; with 0 or 1 there is one branch only.
        convnn: Options of :class:`MultiHeadConvNNAttention`.

    >>> MultiHeadBranchingConv(192, 3, branch_ratio=0.5, K=4)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self, dim: int, num_heads: int = 3, *, kernel_size: int = 9, branch_ratio: float = 0.5, **convnn: Any
    ) -> None:
        super().__init__(dim, num_heads, branch_ratio, convnn)
        rest = self.dim - self.first
        self.conv1d = MultiHeadConv1d(rest, self.num_heads, kernel_size=kernel_size) if rest else None

    def forward(
        self, x: Tensor, *, key_padding_mask: Tensor | None = None, return_indices: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """(batch, tokens, dim) to the same; with ``return_indices`` also what ConvNN attention kept, if any."""
        checked_tokens(x, self.dim)
        check_padding((x.shape[0], x.shape[1]), key_padding_mask)
        if key_padding_mask is not None:  # to the convolution, padding is what lies beyond the ends: zeros
            x = x.masked_fill(key_padding_mask[..., None], 0.0)
        parts, indices = [], None
        if self.convnn is not None:
            near = self.convnn(x[..., : self.first], key_padding_mask=key_padding_mask, return_indices=True)
            parts.append(near[0])
            indices = near[1]
        if self.conv1d is not None:
            parts.append(self.conv1d(x[..., self.first :]))
        out = self._mixed(parts)
        return (out, indices) if return_indices else out


class MultiHeadBranchingAttention(_Branching):
    """Plain attention beside ConvNN attention.

    Args:
        dim: Width of the tokens.
        num_heads: Heads of both branches; must divide the channels of each.
        branch_ratio: Share of the channels that go to ConvNN attention; with 0 or 1 there is one branch only.
        attention_dropout: Dropout of both branches.
        convnn: Options of :class:`MultiHeadConvNNAttention`.

    >>> MultiHeadBranchingAttention(192, 3, branch_ratio=0.5, K=4)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        branch_ratio: float = 0.5,
        attention_dropout: float = 0.0,
        **convnn: Any,
    ) -> None:
        super().__init__(dim, num_heads, branch_ratio, {"attention_dropout": attention_dropout, **convnn})
        rest, heads = self.dim - self.first, self.num_heads
        self.attention = MultiHeadAttention(rest, heads, attention_dropout=attention_dropout) if rest else None

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        return_indices: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """(batch, tokens, dim) to the same; with ``return_indices`` also what ConvNN attention kept, if any."""
        checked_tokens(x, self.dim)
        masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "is_causal": is_causal}
        parts, indices = [], None
        if self.convnn is not None:
            near = self.convnn(x[..., : self.first], return_indices=True, **masks)
            parts.append(near[0])
            indices = near[1]
        if self.attention is not None:
            parts.append(self.attention(x[..., self.first :], **masks))
        out = self._mixed(parts)
        return (out, indices) if return_indices else out


def _share(dim: int, num_heads: int, branch_ratio: float) -> int:
    """Channels of the first branch; both branches must divide into heads."""
    if not is_number(branch_ratio) or not 0 <= branch_ratio <= 1:
        raise InvalidInput(f"branch_ratio must lie within 0 and 1, got {branch_ratio!r}")
    checked_heads(dim, num_heads)
    first = int(branch_ratio * dim)
    if first % num_heads:
        raise InvalidInput(
            f"branch_ratio={branch_ratio:g} of dim={dim} gives branches of {first} and {dim - first} channels, "
            f"which num_heads={num_heads} does not divide"
        )
    return first

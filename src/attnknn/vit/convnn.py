"""ConvNN attention: the k nearest tokens, mixed by a convolution over their rank."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from attnknn.errors import InvalidInput
from attnknn.ops.token_attention import nearest_attention
from attnknn.ops.tokens import TOKEN_SIMILARITIES, TokenSimilarity
from attnknn.vit.grid import (
    SamplingType,
    checked_grid_size,
    checked_sampling,
    grid_coordinates,
    make_sampler,
    most_candidates,
    sequence_coordinates,
)
from attnknn.vit.heads import (
    Flag,
    checked_count,
    checked_flag,
    checked_heads,
    checked_rate,
    checked_tokens,
    merge_heads,
    split_heads,
)

ConvolutionType = Literal["standard", "depthwise", "depthwise-separable"]
CONVOLUTION_TYPES: Final[tuple[ConvolutionType, ...]] = get_args(ConvolutionType)

CoordinateEncoding = Literal["grid", "sequence"]


class MultiHeadConvNNAttention(nn.Module):
    """Each token takes its ``K`` most similar tokens, weighs them and convolves them by rank.

    New, with ``depthwise``, it is top-K softmax attention; once ``K`` reaches the number of tokens, attention.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``. They share the weights of the convolution.
        K: Tokens that each token keeps; all, where there are fewer, and then only the first ranks are used.
        attention_dropout: Dropout on the features that the convolution gives.
        sampling_type: Which tokens may be kept: ``all``, or those that ``random`` or ``spatial`` sample. Where
            they are sampled, rank 0 is the token itself, whether it was sampled or not.
        num_samples: Tokens drawn for ``random``, the side of the grid for ``spatial``; -1 means all.
        sample_padding: For ``spatial``: patches left out at every edge.
        magnitude_type: Similarity: ``matmul`` (scaled inner product), ``cosine`` (with a learned temperature for
            each head, at first 1) or ``euclidean``.
        coordinate_encoding: Whether the place of a token is appended to its query, key and value: True or
            ``"grid"`` for row and column of its patch, ``"sequence"`` for one number. With ``depthwise`` it helps
            the similarity only.
        convolution_type: ``depthwise``, ``standard`` or ``depthwise-separable``.
        softmax_topk_val: Whether weights are a softmax over the kept, or the similarities themselves.
        grid_size: Rows and columns of patches, where they are not a square.
        eval_sampling: What ``random`` does in evaluation: ``fixed``, ``all`` or ``resample``.
        generator: What ``random`` draws from; by default one of its own.

    >>> MultiHeadConvNNAttention(192, 3, K=9)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 3,
        *,
        K: int = 9,
        attention_dropout: float = 0.0,
        sampling_type: str = "all",
        num_samples: int = -1,
        sample_padding: int = 0,
        magnitude_type: str = "matmul",
        coordinate_encoding: bool | CoordinateEncoding = False,
        convolution_type: str = "depthwise",
        softmax_topk_val: bool = True,
        grid_size: int | tuple[int, int] | None = None,
        eval_sampling: str = "fixed",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        head_dim = checked_heads(dim, num_heads)
        self.dim, self.num_heads = dim, num_heads = int(dim), int(num_heads)
        self.scale = head_dim**-0.5
        self.K = checked_count(K, "K")
        self.magnitude_type = _checked_magnitude(magnitude_type)
        self.coordinate_encoding = _checked_encoding(coordinate_encoding)
        self.softmax_topk_val = checked_flag(softmax_topk_val, "softmax_topk_val")
        self.grid_size = checked_grid_size(grid_size)
        self.convolution_type = _checked_convolution(convolution_type)
        kind = checked_sampling(sampling_type, num_samples, sample_padding, self.grid_size, eval_sampling)
        self._check_k(kind, int(num_samples))  # before anything so large is made
        rate = checked_rate(attention_dropout, "attention_dropout")
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.W_o = nn.Linear(dim, dim, bias=False)
        extra = {None: 0, "sequence": 1, "grid": 2}[self.coordinate_encoding]
        self.conv = _convolution(self.convolution_type, head_dim, head_dim + extra, self.K)
        self.dropout = nn.Dropout(rate)
        self.log_temperature = nn.Parameter(torch.zeros(num_heads)) if magnitude_type == "cosine" else None
        self.sampler = make_sampler(
            sampling_type,
            num_samples,
            sample_padding,
            grid_size=self.grid_size,
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
        return_indices: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, tokens, dim) to the same; masks as in :func:`attnknn.vit.knn_attention`.

        With ``return_indices`` also the kept tokens (batch, heads, tokens, K), by rank, -1 where it sees fewer;
        of fewer tokens than K, as many columns as there are to keep.
        """
        checked_tokens(x, self.dim)
        q, k, v = (split_heads(each, self.num_heads) for each in (self.W_q(x), self.W_k(x), self.W_v(x)))
        mixed, indices = self._mixed(
            q, k, v, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal
        )
        out: Tensor = self.W_o(merge_heads(self.dropout(mixed)))
        return (out, indices.long()) if return_indices else out

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        """What each token makes of those it keeps (batch, heads, tokens, dim), and which they are.

        ``given`` are masks and dropout, as :func:`~attnknn.ops.token_attention.knn_attention` takes them.
        """
        tokens, device = q.shape[2], q.device
        if self.coordinate_encoding is not None:
            q, k, v = self._with_places(q, k, v)
        mixed, indices = nearest_attention(
            *(q, k, v, self.K),
            similarity=self.magnitude_type,
            softmax=self.softmax_topk_val,
            scale=self._scale(),
            rank_weights=self._rank_weights(),
            candidates=None if self.sampler is None else self.sampler(tokens, device),
            **given,
        )
        if isinstance(self.conv, nn.Sequential):
            mixed = linear(mixed, self.conv.get_parameter("1.weight")[..., 0])
        return mixed, indices

    @property
    def temperature(self) -> Tensor | None:
        """(heads,) what cosines are divided by; None for another similarity."""
        return None if self.log_temperature is None else self.log_temperature.exp()

    def _with_places(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = sequence_coordinates(q.shape[2], q)
        if self.coordinate_encoding == "grid":
            places = grid_coordinates(q.shape[2], self.grid_size, q)
        places = places.expand(*q.shape[:2], -1, -1)
        q, k = torch.cat([q, places], dim=-1), torch.cat([k, places], dim=-1)
        return q, k, v if self.convolution_type == "depthwise" else torch.cat([v, places.to(v.dtype)], dim=-1)

    def _scale(self) -> float | Tensor:
        if self.log_temperature is not None:
            return (-self.log_temperature).exp()[:, None, None]
        return self.scale if self.magnitude_type == "matmul" else 1.0

    def _rank_weights(self) -> Tensor:
        """(dim, K) factors, or (dim_out, dim, K) matrices."""
        if isinstance(self.conv, nn.Sequential):
            return self.conv.get_parameter("0.weight")[:, 0]
        return self.conv.weight[:, 0] if self.convolution_type == "depthwise" else self.conv.weight

    def _check_k(self, sampling_type: SamplingType, num_samples: int) -> None:
        """Refuse a K that no input could fill."""
        most = most_candidates(sampling_type, num_samples, self.grid_size)
        if most is not None and most < self.K:
            raise InvalidInput(
                f"K={self.K} is more than the {most} tokens there are to keep "
                f"({sampling_type=}, {num_samples=}, grid_size={self.grid_size})"
            )

    def extra_repr(self) -> str:
        """Settings that no submodule shows."""
        return (
            f"num_heads={self.num_heads}, K={self.K}, magnitude_type={self.magnitude_type!r}, "
            f"coordinate_encoding={self.coordinate_encoding!r}, softmax_topk_val={self.softmax_topk_val}"
        )


def _convolution(kind: ConvolutionType, dim: int, dim_in: int, ranks: int) -> nn.Conv1d | nn.Sequential:
    """The weights of the convolution over rank; their names and shapes are those of the reference."""
    if kind == "standard":
        return nn.Conv1d(dim_in, dim, ranks, stride=ranks, bias=False)
    if kind == "depthwise":  # coordinates are dropped before it
        conv = nn.Conv1d(dim, dim, ranks, stride=ranks, groups=dim, bias=False)
        nn.init.ones_(conv.weight)
        return conv
    depthwise = nn.Conv1d(dim_in, dim_in, ranks, stride=ranks, groups=dim_in, bias=False)
    return nn.Sequential(depthwise, nn.Conv1d(dim_in, dim, 1, bias=False))


def _checked_magnitude(magnitude_type: str) -> TokenSimilarity:
    if magnitude_type not in TOKEN_SIMILARITIES:
        raise InvalidInput(
            f"magnitude_type must be one of {', '.join(TOKEN_SIMILARITIES)}, got {magnitude_type!r}"
        )
    return magnitude_type


def _checked_convolution(convolution_type: str) -> ConvolutionType:
    if convolution_type not in CONVOLUTION_TYPES:
        raise InvalidInput(
            f"convolution_type must be one of {', '.join(CONVOLUTION_TYPES)}, got {convolution_type!r}"
        )
    return convolution_type


def _checked_encoding(encoding: bool | str) -> CoordinateEncoding | None:
    if isinstance(encoding, Flag):
        return "grid" if encoding else None
    if encoding not in get_args(CoordinateEncoding):
        raise InvalidInput(f"coordinate_encoding must be True, False, 'grid' or 'sequence', got {encoding!r}")
    return "grid" if encoding == "grid" else "sequence"

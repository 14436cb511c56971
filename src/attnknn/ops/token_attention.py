"""Attention that keeps the k nearest tokens of each query: select, weigh, combine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize

from attnknn.errors import InvalidInput
from attnknn.ops.backends import Backend, served
from attnknn.ops.fused_tokens import fused_attention, unfit
from attnknn.ops.links import Links, combine_at, linked, scores_at, squared_distances_at, without_autocast
from attnknn.ops.masks import check_masks, masks_of
from attnknn.ops.similarity import FLOATS
from attnknn.ops.tokens import TokenSimilarity, checked_similarity, readable, select_tokens, wide
from attnknn.ops.weigh import softmax as softmax_of

_NEAR = 1e-8  # added to a distance before it is inverted
_MOST = 2**1000  # of a whole number, to be a float


@overload
def knn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_neighbors: int,
    *,
    similarity: TokenSimilarity = ...,
    softmax: bool = ...,
    scale: float | Tensor | None = ...,
    rank_weights: Tensor | None = ...,
    attn_mask: Tensor | None = ...,
    key_padding_mask: Tensor | None = ...,
    is_causal: bool = ...,
    candidates: Tensor | None = ...,
    dropout_p: float = ...,
    backend: Backend = ...,
    return_indices: Literal[False] = ...,
) -> Tensor: ...
@overload
def knn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_neighbors: int,
    *,
    similarity: TokenSimilarity = ...,
    softmax: bool = ...,
    scale: float | Tensor | None = ...,
    rank_weights: Tensor | None = ...,
    attn_mask: Tensor | None = ...,
    key_padding_mask: Tensor | None = ...,
    is_causal: bool = ...,
    candidates: Tensor | None = ...,
    dropout_p: float = ...,
    backend: Backend = ...,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def knn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_neighbors: int,
    *,
    similarity: TokenSimilarity = "matmul",
    softmax: bool = True,
    scale: float | Tensor | None = None,
    rank_weights: Tensor | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    candidates: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: Backend = "auto",
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Each query's sum over its ``k_neighbors`` most similar keys, weighted by similarity and by rank.

    With all keys kept this is ``scaled_dot_product_attention``. Ties go to the lower index. Nothing quadratic in
    the number of tokens outlives the search, and gradients flow through the similarities of the keys kept.

    Args:
        q: (batch, heads, queries, dim).
        k: (batch, heads, keys, dim).
        v: (batch, heads, keys, dim of values).
        k_neighbors: Keys that each query keeps, a whole number; all, if there are fewer.
        similarity: ``matmul`` (inner product), ``cosine`` or ``euclidean`` (minus the distance).
        softmax: Whether weights are the softmax of the similarities, or these themselves (for ``euclidean`` the
            inverse of the distance).
        scale: Factor of the similarities, finite and above 0; a number, or a tensor that broadcasts to
            (heads, 1, 1). By default 1 / sqrt(dim) for ``matmul``, else 1. Inverse distances are not scaled.
        rank_weights: (dim, k) or (dim_out, dim, k), what a value is multiplied with by its rank.
        attn_mask: Broadcasts as (batch, heads, queries, keys): True where a query may look, or numbers that are
            added to scaled similarities (to raw weights they are not added; they choose and hide).
        key_padding_mask: (batch, keys), boolean, True where a key is padding.
        is_causal: Whether a query sees only keys up to its own index.
        candidates: (m,) indices of the only keys that are looked at, each once; the query itself comes first in
            any case. Where a compiler or a CUDA graph is at work they are not checked, and must be right.
        dropout_p: Probability that a weight becomes 0.
        backend: ``torch``, ``triton`` (one fused kernel; on a GPU, without an ``attn_mask`` and without matrices
            as ``rank_weights``), or ``auto``: the kernel where it serves. Results agree up to rounding; only
            torch has second derivatives.
        return_indices: Whether to return the keys that were kept too.

    Returns:
        (batch, heads, queries, dim of values), 0 for a query that sees nothing; with ``return_indices`` also
        the indices (batch, heads, queries, k), best first, -1 where a query sees fewer; with fewer than k keys,
        or candidates and the query itself, as many columns as there are.

    >>> q, k, v = torch.randn(3, 2, 4, 10, 8).unbind()
    >>> knn_attention(q, k, v, 3).shape
    torch.Size([2, 4, 10, 8])
    """
    _check_tensors(
        {"q": q, "k": k, "v": v, "rank_weights": rank_weights, "scale": scale if torch.is_tensor(scale) else None},
        {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask, "candidates": candidates},
    )
    _check(q, k, v, similarity, rank_weights)
    given: Any = dropout_p  # whatever it was called with
    if not isinstance(given, Real) or not 0 <= dropout_p <= 1:
        raise InvalidInput(f"dropout_p must be from 0 to 1, got {dropout_p!r}")
    mixed, indices = nearest_attention(
        *(q, k, v, _checked_k(k_neighbors)),
        similarity=similarity,
        softmax=softmax,
        scale=_checked_scale(scale, q.shape[1], q.shape[-1] ** -0.5 if similarity == "matmul" else 1.0),
        rank_weights=rank_weights,
        attn_mask=attn_mask,
        key_padding_mask=key_padding_mask,
        is_causal=is_causal,
        candidates=None if candidates is None else _checked_candidates(candidates, k.shape[2]),
        dropout_p=dropout_p,
        backend=backend,
    )
    return (mixed, indices.long()) if return_indices else mixed


def nearest_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_neighbors: int,
    *,
    scale: float | Tensor,
    similarity: TokenSimilarity = "matmul",
    softmax: bool = True,
    rank_weights: Tensor | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    candidates: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """:func:`knn_attention` with the indices, for layers, which know their shapes: those are not checked again.

    No value is looked at, so that nobody waits for a GPU. ``candidates`` must be ascending, each once, and a
    tensor as ``scale`` (heads, 1, 1), finite and above 0. The indices may be int32.
    """
    if not isinstance(scale, Tensor) and not 0 < scale < math.inf:
        raise InvalidInput(f"scale must be finite and above 0, got {scale!r}")
    check_masks((*q.shape[:3], k.shape[2]), attn_mask, key_padding_mask)
    if q.dtype != k.dtype:
        both = torch.promote_types(q.dtype, k.dtype)
        q, k = q.to(both), k.to(both)
    if key_padding_mask is not None:
        k, v = _without_padding(k, v, key_padding_mask, similarity)
    kept = min(k_neighbors, _most(q, k, candidates))
    if rank_weights is not None and rank_weights.shape[-1] < kept:
        raise InvalidInput(f"rank_weights has {rank_weights.shape[-1]} ranks, but {kept} keys are kept")
    matrices = rank_weights is not None and rank_weights.ndim == 3
    reason = unfit(q, k, v, kept, matrices=matrices, masked=attn_mask is not None)
    with without_autocast(q.device):
        if similarity == "cosine":
            q, k = normalize(wide(q), dim=-1), normalize(wide(k), dim=-1)
        if served(backend, q.device, reason, "token attention"):
            return _fused(
                *(q, k, v, kept, similarity, scale, softmax, rank_weights, dropout_p),
                padding=key_padding_mask,
                candidates=candidates,
                causal=is_causal,
            )
        masks = masks_of(attn_mask, key_padding_mask, is_causal)
        chosen = select_tokens(
            *(q, k, kept),
            euclidean=similarity == "euclidean",
            scale=scale.detach() if isinstance(scale, Tensor) else float(scale),
            masks=masks,
            candidates=candidates,
        )
        found = chosen.scores > -torch.inf if masks or candidates is not None else None
        known = chosen.scores if found is None else chosen.scores.masked_fill(~found, 0.0)
        links = linked(chosen.indices, k.shape[2], backward=torch.is_grad_enabled())
        weights = _weights(q, k, links, known, similarity, scale, softmax, masks.added_at(chosen.indices), found)
        weights = dropout(weights, dropout_p) if dropout_p else weights
        mixed = combine_at(weights, v, links, None if rank_weights is None else rank_weights[..., :kept])
    return mixed, chosen.indices if found is None else chosen.indices.masked_fill(~found, -1)


def _without_padding(k: Tensor, v: Tensor, padding: Tensor, similarity: TokenSimilarity) -> tuple[Tensor, Tensor]:
    """Keys and values in which padding is harmless: it may hold what is no number, or be far from all else."""
    hidden = padding[:, None, :, None]
    k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    if similarity == "euclidean":  # where distances have their origin in the mean of the keys
        others = (~hidden).sum(dim=2, keepdim=True).clamp(min=1)
        middle = (wide(k.detach()).sum(dim=2, keepdim=True) / others).to(k.dtype)
        k = torch.where(hidden, middle, k)
    return k, v


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: int,
    similarity: TokenSimilarity,
    factor: float | Tensor,
    softmax: bool,
    rank_weights: Tensor | None,
    dropout_p: float,
    **hidden: Any,
) -> tuple[Tensor, Tensor]:
    """By one kernel, which takes a number for a scale: what is learned is multiplied into its queries."""
    euclidean = similarity == "euclidean"
    if isinstance(factor, Tensor):
        if softmax or not euclidean:  # inverse distances are not scaled
            factor = factor.to(wide(q).dtype)
            q, k = wide(q) * factor, wide(k) * factor if euclidean else wide(k)
        factor = 1.0
    keep = q.new_ones(*q.shape[:3], kept, dtype=torch.float32) if dropout_p else None
    return fused_attention(
        *(q, k, v, kept),
        scale=float(factor),
        euclidean=euclidean,
        softmax=softmax,
        factors=rank_weights,
        keep=None if keep is None else dropout(keep, dropout_p),
        **hidden,
    )


def _weights(
    q: Tensor,
    k: Tensor,
    links: Links,
    known: Tensor,
    similarity: TokenSimilarity,
    scale: float | Tensor,
    softmax: bool,
    added: Tensor | None,
    found: Tensor | None,
) -> Tensor:
    """(batch, heads, queries, k) weights, 0 where there is no key."""
    if similarity == "euclidean":
        squares = squared_distances_at(q, k, links)
        zero = squares == 0
        # The square root has no finite slope at 0; there the distance is a constant.
        gaps = squares.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
        raw = -scale * gaps if softmax else 1 / (gaps + _NEAR)
    else:
        scores = scores_at(q, k, links, known)
        # Divided by sqrt(dim), as is usual: multiplied with 1 / sqrt(dim) the last bit would be another.
        raw = scale * scores if isinstance(scale, Tensor) else scores / (1 / scale)
    if not softmax:
        return raw if found is None else raw.masked_fill(~found, 0.0)
    if added is not None:
        raw = raw + added.masked_fill(added == -torch.inf, 0.0)
    return raw.softmax(dim=-1) if found is None else softmax_of(raw, found=found)


def _most(q: Tensor, k: Tensor, candidates: Tensor | None) -> int:
    """How many keys a query can keep."""
    if candidates is None:
        return k.shape[2]
    if q.shape[2] != k.shape[2]:
        raise InvalidInput(
            f"with candidates queries and keys are the same tokens, got {q.shape[2]} and {k.shape[2]} of them"
        )
    return len(candidates) + 1


def _checked_candidates(candidates: Tensor, tokens: int) -> Tensor:
    """Candidates in ascending order, if they are indices of tokens, each once."""
    if candidates.is_floating_point() or candidates.is_complex() or candidates.dtype == torch.bool:
        raise InvalidInput(f"candidates must be whole numbers, got {candidates.dtype}")
    if candidates.ndim != 1:
        raise InvalidInput(f"candidates must be (m,), got {tuple(candidates.shape)}")
    ascending = candidates.long().sort().values
    if not (readable(candidates) and len(candidates)):
        return ascending
    again = ascending[1:] == ascending[:-1]
    least, most, repeats = torch.stack([ascending[0], ascending[-1], again.sum()]).tolist()  # at one look
    if least < 0 or most >= tokens:
        strange = least if least < 0 else most
        raise InvalidInput(f"candidates must be indices from 0 to {tokens - 1}, got {strange}")
    if repeats:
        raise InvalidInput(
            f"candidates must be there once each, got {int(ascending[1:][again][0])} more than once"
        )
    return ascending


def _checked_k(k_neighbors: int) -> int:
    given: Any = k_neighbors  # whatever it was called with
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise InvalidInput(f"k_neighbors must be a whole number of at least 1, got {given!r}")
    return int(given)


def _checked_scale(scale: float | Tensor | None, heads: int, usual: float) -> float | Tensor:
    """A number, or a tensor (heads, 1, 1)."""
    if scale is None:
        return usual
    if not isinstance(scale, Tensor):
        told: Any = scale  # whatever it was called with
        if isinstance(scale, int) and scale > _MOST:
            raise InvalidInput("scale must be finite and above 0, got a number beyond all floats")
        if isinstance(told, bool) or not isinstance(told, Real | torch.SymFloat):
            raise InvalidInput(f"scale must be a number or a tensor, got {scale!r}")
        return scale
    given = tuple(scale.shape)
    if len(given) > 3 or any(
        one not in (1, whole) for one, whole in zip(given[::-1], (1, 1, heads), strict=False)
    ):
        raise InvalidInput(f"scale must be a number or broadcast to ({heads}, 1, 1), got {given}")
    if readable(scale):
        wrong = scale.detach()[~((scale > 0) & scale.isfinite())]
        if len(wrong):
            raise InvalidInput(f"scale must be finite and above 0, got {wrong[0].item()!r}")
    return scale.expand(heads, 1, 1)


def _check_tensors(real: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """All on one device, and the first of them real floating-point numbers; None is not there."""
    place = real["q"].device if isinstance(real["q"], Tensor) else None
    for name, each in {**real, **whole}.items():
        if each is None:
            continue
        if not isinstance(each, Tensor):
            raise InvalidInput(f"{name} must be a tensor, got {type(each).__name__}")
        if name in real and each.dtype not in FLOATS:
            raise InvalidInput(f"{name} must be real floating-point numbers of 16 to 64 bits, got {each.dtype}")
        if each.device != place:
            raise InvalidInput(f"q is on {place}, {name} on {each.device}")


def _check(q: Tensor, k: Tensor, v: Tensor, similarity: str, rank_weights: Tensor | None) -> None:
    checked_similarity(similarity)
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[:2] == k.shape[:2] == v.shape[:2]
    if not (fits and k.shape[2] == v.shape[2] > 0 and q.shape[3] == k.shape[3] > 0):
        raise InvalidInput(
            "expected q (b, h, queries, dim), k (b, h, keys, dim), v (b, h, keys, dim_v) with at least one key "
            f"of at least one number, got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if rank_weights is None:
        return
    if rank_weights.ndim not in (2, 3) or rank_weights.shape[-2] != v.shape[3]:
        raise InvalidInput(
            f"rank_weights must be (dim, k) or (dim_out, dim, k) with dim {v.shape[3]}, "
            f"got {tuple(rank_weights.shape)}"
        )

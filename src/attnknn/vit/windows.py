"""Attention to keys that are known beforehand: windows, strides, neighborhoods."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from attnknn.ops.links import combine_at, linked, scores_at, without_autocast
from attnknn.ops.weigh import softmax

WORTH = 8  # following links pays where a query sees at most one in so many keys


def attend_to(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, *, scale: float, dropout_p: float = 0.0) -> Tensor:
    """Attention of each query to the keys ``seen`` (queries, m), -1 for none.

    Where a query sees few of the keys, only those are touched; else all are, and the others masked.

    Args:
        q: (batch, heads, queries, dim).
        k: (batch, heads, keys, dim).
        v: (batch, heads, keys, dim).
        seen: (queries, m) indices of keys; each at most once in a row.
        scale: Factor of the scores.
        dropout_p: Probability that a weight becomes 0.
    """
    keys = k.shape[2]
    if WORTH * seen.shape[1] > keys:
        return scaled_dot_product_attention(q, k, v, seen_mask(seen, keys), dropout_p, scale=scale)
    with without_autocast(q.device):
        found = (seen >= 0).expand(*q.shape[:2], -1, -1)
        links = linked(seen.clamp(min=0).expand(*q.shape[:2], -1, -1), keys, backward=torch.is_grad_enabled())
        weights = softmax(scale * scores_at(q, k, links), found=found)
        return combine_at(dropout(weights, dropout_p) if dropout_p else weights, v, links)


def seen_mask(seen: Tensor, keys: int) -> Tensor:
    """(queries, keys), True where a query sees a key, from indices (queries, m) with -1 for none.

    >>> seen_mask(torch.tensor([[1, -1], [0, 2]]), 3).tolist()
    [[False, True, False], [True, False, True]]
    """
    mask = torch.zeros(len(seen), keys + 1, dtype=torch.bool, device=seen.device)
    return mask.scatter(1, seen.masked_fill(seen < 0, keys), True)[:, :keys]


def window_starts(tokens: int, size: int, device: torch.device) -> Tensor:
    """(tokens,) where the window of each token starts: around it, but within the sequence."""
    return (torch.arange(tokens, device=device) - size // 2).clamp(0, tokens - size)

"""Weigh: distances of the neighbors -> weights that sum to 1, exactly 0 where there is no neighbor.

Each function takes (queries, k) tensors. ``found`` says which neighbors exist; without it, those at a finite
distance do. ``prior`` multiplies the weights before they are normalized (sample and class weights).
A row whose neighbors all weigh nothing gets weights of 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(gaps: Tensor, found: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """Every neighbor the same.

    >>> uniform(torch.tensor([[1.0, 2.0, torch.inf]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    return _normalized(torch.ones_like(gaps), _present(gaps, found, prior), prior)


def inverse_distance(gaps: Tensor, found: Tensor | None = None, prior: Tensor | None = None) -> Tensor:
    """1 / distance; where some distance is 0, those neighbors share everything, as in scikit-learn.

    >>> inverse_distance(torch.tensor([[1.0, 4.0], [0.0, 4.0]]).double()).tolist()
    [[0.8, 0.2], [1.0, 0.0]]
    """
    present = _present(gaps, found, prior)
    # Relative to the nearest, so that 1 / d cannot overflow; normalizing cancels the factor.
    nearest = gaps.masked_fill(~present, torch.inf).amin(dim=-1, keepdim=True)
    raw = torch.where(nearest > 0, nearest / gaps.clamp(min=torch.finfo(gaps.dtype).tiny), (gaps == 0).to(gaps))
    return _normalized(raw, present, prior)


def softmax(
    similarities: Tensor,
    scale: float | Tensor = 1.0,
    *,
    bias: Tensor | None = None,
    found: Tensor | None = None,
    prior: Tensor | None = None,
) -> Tensor:
    """The softmax of scale * similarity + bias over the neighbors that exist.

    >>> softmax(torch.tensor([[0.0, 0.0, -torch.inf]]), 3.0).tolist()
    [[0.5, 0.5, 0.0]]
    """
    present = _present(similarities, found, prior)
    logits = scale * similarities.masked_fill(~present, 0.0)
    if bias is not None:
        logits = logits + bias.masked_fill(~present, 0.0)
    if prior is not None:
        logits = logits + prior.masked_fill(~present, 1.0).log()
    some = present.any(dim=-1, keepdim=True)
    return logits.masked_fill(~present & some, -torch.inf).softmax(dim=-1).masked_fill(~present, 0.0)


def _present(values: Tensor, found: Tensor | None, prior: Tensor | None) -> Tensor:
    """Who has a say. One that a prior of 0 silences must not be the nearest that others are measured by."""
    there = values.isfinite() if found is None else found
    return there if prior is None else there & (prior > 0)


def _normalized(raw: Tensor, present: Tensor, prior: Tensor | None) -> Tensor:
    raw = raw if prior is None else raw * prior
    raw = raw.masked_fill(~present, 0.0)
    total = raw.sum(dim=-1, keepdim=True)
    return raw / torch.where(total > 0, total, torch.ones_like(total))

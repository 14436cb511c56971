"""Combine: the neighbors' labels, weighted -> evidence for each class -> a vote with prior mass."""

from __future__ import annotations

import torch
from torch import Tensor


def evidence(weights: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(queries, classes) sums of the weights of each class; labels outside the classes count for nothing.

    Adds in float64 where the device has it: in float32 ten times 0.1 exceeds 1.

    >>> evidence(torch.tensor([[0.75, 0.25]]), torch.tensor([[1, 0]]), 3).tolist()
    [[0.25, 0.75, 0.0]]
    """
    wide = weights if weights.device.type == "mps" else weights.double()
    known = (labels >= 0) & (labels < classes)
    sums = wide.new_zeros(len(weights), classes)
    return sums.scatter_add(1, labels.where(known, 0), wide.masked_fill(~known, 0.0))


def vote(weighed: Tensor, prior: Tensor, mass: float) -> Tensor:
    """Class probabilities: (evidence + mass * prior) / (1 + mass); without evidence, the prior alone.

    Args:
        weighed: (queries, classes) from :func:`evidence`, each row summing to 1 or, without neighbors, to 0.
        prior: (classes,) or (queries, classes), summing to 1.
        mass: How many neighborhoods the prior is worth; 0 leaves it out.

    >>> vote(torch.tensor([[1.0, 0.0]]), torch.tensor([0.5, 0.5]), 1.0).tolist()
    [[0.75, 0.25]]
    """
    total = weighed.sum(dim=-1, keepdim=True)
    mixed = torch.where(total > 0, weighed + mass * prior, prior.expand_as(weighed))
    return mixed / mixed.sum(dim=-1, keepdim=True)

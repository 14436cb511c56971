"""Weights of neighbors from at most two fitted numbers: the baselines that a learned attention must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.bank import MemoryBank, Neighbors
from attnknn.ops import inverse_distance, similarity, softmax, uniform

WeightingKind = Literal["uniform", "distance", "softmax", "reliability"]
KINDS: Final[tuple[WeightingKind, ...]] = get_args(WeightingKind)


@dataclass(frozen=True, slots=True)
class Weighting:
    """How much each neighbor counts.

    Args:
        kind: ``uniform``; ``distance`` (1 / distance); ``softmax`` (of scale * similarity); ``reliability``
            (softmax of scale * similarity + trust * log reliability).
        scale: Inverse temperature of the softmax.
        trust: How much a neighbor's own reliability counts.
    """

    kind: WeightingKind
    scale: float = 1.0
    trust: float = 0.0

    @property
    def fitted(self) -> bool:
        """Whether the weights depend on ``scale``."""
        return self.kind in ("softmax", "reliability")

    def __call__(
        self,
        near: Neighbors,
        bank: MemoryBank,
        queries: NDArray[Any],
        *,
        class_weight: NDArray[np.float64] | None = None,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Weights (queries, k) in float64 that sum to 1 over the neighbors found.

        Args:
            near: The neighbors.
            bank: Where they were found.
            queries: (queries, dim) whose neighbors they are; a learned weighting reads them.
            class_weight: (classes,) factor for the neighbors of each class.
            leaving_out: (queries,) rows of the queries themselves, when they are rows of the bank.
        """
        gaps, found = torch.from_numpy(near.distances), torch.from_numpy(near.found)
        prior = row_weights(near, class_weight)
        factor = None if prior is None else torch.from_numpy(prior)
        if self.kind == "uniform":
            return uniform(gaps, found, factor)
        if self.kind == "distance":
            return inverse_distance(gaps, found, factor)
        bias = None
        if self.kind == "reliability" and self.trust:
            bias = torch.from_numpy(self.trust * log_reliability(near, bank, leaving_out))
        return softmax(similarity(gaps, bank.metric), self.scale, bias=bias, found=found, prior=factor)

    def state(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {"kind": self.kind, "scale": self.scale, "trust": self.trust}


def row_weights(near: Neighbors, class_weight: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """(queries, k) product of sample and class weight of each neighbor; None where all are 1."""
    if class_weight is None:
        return near.weights
    factor: NDArray[np.float64] = class_weight[np.where(near.found, near.labels, 0)]
    return factor if near.weights is None else factor * near.weights


def log_reliability(
    near: Neighbors, bank: MemoryBank, leaving_out: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """(queries, k) logarithm of each neighbor's reliability; 0 where there is no neighbor."""
    logs = np.zeros(near.rows.shape)
    if near.found.any():
        queries = np.broadcast_to(np.arange(len(near))[:, None], near.rows.shape)[near.found]
        out = None if leaving_out is None else leaving_out[queries]
        logs[near.found] = np.log(bank.reliability(near.rows[near.found], out))
    return logs

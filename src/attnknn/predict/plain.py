"""The plain prediction: search, weigh, sum the evidence; of several members, the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import Weigher
from attnknn.bank import Id, MemoryBank, Neighbors
from attnknn.ops import Metric, evidence, similarity

CELLS: Final = 4_000_000
"""Queries x neighbors held at once: about 400 MB with weights and labels."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a bank says of some queries, before prior and calibration."""

    near: Neighbors
    weights: Tensor  # (queries, k)
    evidence: Tensor  # (queries, classes)
    metric: Metric

    @property
    def density(self) -> NDArray[np.float64]:
        """(queries,) mean similarity of the neighbors."""
        found = self.near.found
        close = similarity(torch.from_numpy(np.where(found, self.near.distances, 0.0)), self.metric).numpy()
        total = np.where(found, close, 0.0).sum(axis=1)
        return np.asarray(total / np.maximum(found.sum(axis=1), 1))


@dataclass(frozen=True, slots=True)
class Poll:
    """What all members say of some queries, of each view of them: the mean of their answers."""

    answers: Sequence[Answer]
    head: NDArray[np.float64] | None = None  # (queries, outputs) what the heads of their networks think, if asked

    def __len__(self) -> int:
        return len(self.answers[0].near)

    @property
    def evidence(self) -> Tensor:
        """(queries, classes)."""
        return mean_evidence([each.evidence for each in self.answers])

    @property
    def density(self) -> NDArray[np.float64]:
        """(queries,) mean similarity of the neighbors."""
        return np.asarray(np.mean([each.density for each in self.answers], axis=0))

    def shares(self, query: int) -> list[tuple[Id, int, float, float]]:
        """(id, label, distance, weight) of each neighbor of a query, the heaviest first.

        Weights are means over the answers; a distance is the mean over those that found the neighbor.
        """
        merged: dict[Id, tuple[int, list[float], float]] = {}
        for said in self.answers:
            weights, near = said.weights[query].numpy(), said.near
            for at in np.flatnonzero(near.found[query]).tolist():
                name = near.ids[query, at]
                label, gaps, weight = merged.get(name, (int(near.labels[query, at]), [], 0.0))
                gaps.append(float(near.distances[query, at]))
                merged[name] = label, gaps, weight + float(weights[at])
        count = len(self.answers)
        each = [(name, label, float(np.mean(g)), weight / count) for name, (label, g, weight) in merged.items()]
        return sorted(each, key=lambda share: -share[3])  # stable: equal weights stay nearest first


def mean_evidence(voices: Sequence[Tensor]) -> Tensor:
    """(queries, classes) mean of what several voices say; one that has no evidence of a query says nothing."""
    if len(voices) == 1:
        return voices[0]
    total = torch.stack(list(voices)).sum(dim=0)
    spoken = sum((each.sum(dim=1, keepdim=True) > 0).to(total) for each in voices)
    return total / torch.as_tensor(spoken).clamp(min=1.0)


def answer(
    near: Neighbors,
    bank: MemoryBank,
    queries: NDArray[Any],
    weigher: Weigher,
    classes: int,
    class_weight: NDArray[np.float64] | None = None,
    leaving_out: NDArray[np.int64] | None = None,
) -> Answer:
    """Weigh neighbors and sum their evidence."""
    weights = weigher(near, bank, queries, class_weight=class_weight, leaving_out=leaving_out)
    weighed = evidence(weights, torch.from_numpy(near.labels), classes)
    return Answer(near, weights, weighed, bank.metric)

"""The plain prediction: search, weigh, sum the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import Weighting
from attnknn.bank import MemoryBank, Neighbors
from attnknn.ops import Metric, evidence, similarity

_CELLS: Final = 1_000_000  # queries x neighbors held at once: about 100 MB with weights and labels


@dataclass(frozen=True, slots=True)
class Answer:
    """What the bank says of some queries, before prior and calibration."""

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


def answers(
    bank: MemoryBank,
    queries: NDArray[Any],
    k: int,
    weighting: Weighting,
    classes: int,
    class_weight: NDArray[np.float64] | None = None,
) -> Iterator[Answer]:
    """Answers for a bounded number of queries at a time."""
    step = max(1, _CELLS // max(1, min(k, len(bank))))
    for start in range(0, len(queries), step):
        near = bank.search(queries[start : start + step], k)
        yield answer(near, bank, weighting, classes, class_weight)


def answer(
    near: Neighbors,
    bank: MemoryBank,
    weighting: Weighting,
    classes: int,
    class_weight: NDArray[np.float64] | None = None,
    leaving_out: NDArray[np.int64] | None = None,
) -> Answer:
    """Weigh neighbors and sum their evidence."""
    weights = weighting(near, bank, class_weight=class_weight, leaving_out=leaving_out)
    weighed = evidence(weights, torch.from_numpy(near.labels), classes)
    return Answer(near, weights, weighed, bank.metric)

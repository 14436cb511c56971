"""A trained attention at work on the neighbors that a bank finds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend.attention import MultiHeadNeighborAttention, usual_length
from attnknn.attend.biases import prototype_alignment
from attnknn.attend.options import AttentionOptions
from attnknn.attend.weighting import Weighting, log_reliability, row_weights
from attnknn.bank import MemoryBank, Neighbors
from attnknn.errors import InvalidInput


class LearnedWeighting:
    """Weights of neighbors by a :class:`MultiHeadNeighborAttention`, with all that it asks of the bank.

    Args:
        attention: Trained; it is used in eval mode.
    """

    kind = "attention"

    def __init__(self, attention: MultiHeadNeighborAttention) -> None:
        self.attention = attention.eval()
        self._sums: tuple[int, int, _Sums] | None = None  # of a bank, after so many edits

    @property
    def scale(self) -> float:
        """Mean inverse temperature of the heads."""
        return float(self.attention.scales.mean())

    @torch.no_grad()
    def __call__(
        self,
        near: Neighbors,
        bank: MemoryBank,
        queries: NDArray[Any],
        *,
        class_weight: NDArray[np.float64] | None = None,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Weights (queries, k) in float64; arguments as for :class:`Weighting`."""
        if near.k == 0 or len(near) == 0:
            return torch.zeros(near.rows.shape, dtype=torch.float64)
        facts = self.facts(near, bank, queries, leaving_out=leaving_out)
        prior = row_weights(near, class_weight)
        factor = None if prior is None else torch.from_numpy(prior)
        device = self.attention.unit.device
        given = {name: value.to(device) for name, value in facts.items()}
        weights: Tensor = self.attention(**given, prior=None if factor is None else factor.to(device))
        return weights.cpu().double()

    def facts(
        self,
        near: Neighbors,
        bank: MemoryBank,
        queries: NDArray[Any],
        *,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> dict[str, Tensor]:
        """The arguments of the attention, on the CPU; only what its parts read.

        ``leaving_out`` has the rows of the queries where the bank holds them: their own votes are taken out of
        the reliability of their neighbors and of the prototypes.
        """
        options = self.attention.options
        found = torch.from_numpy(near.found)
        vectors = None
        if options.projections or options.prototypes:
            vectors = bank.vectors(np.where(near.found, near.rows, bank.live[0]))  # any, where there is none
        facts = {
            "query": torch.from_numpy(np.asarray(queries, np.float32)),
            "neighbors": torch.zeros(*near.rows.shape, 1).expand(-1, -1, bank.dim)
            if vectors is None
            else torch.from_numpy(vectors),
            "dists": torch.from_numpy(near.distances),
            "neigh_labels": torch.from_numpy(np.where(near.found, near.labels, -1)),
            "found": found,
        }
        if options.label_bias:
            facts["reliability"] = torch.from_numpy(np.exp(log_reliability(near, bank, leaving_out)))
        if options.prototypes:
            sums, own, query = self._summed(bank), None, None
            if leaving_out is not None:
                own = torch.from_numpy(bank.labels(leaving_out))
                query = torch.from_numpy(sums.of_own(leaving_out))
            facts["alignment"] = prototype_alignment(
                facts["neighbors"], facts["neigh_labels"], torch.from_numpy(sums.classes), own, query
            )
        return facts

    def __getstate__(self) -> dict[str, Any]:
        return {"attention": self.attention, "_sums": None}  # another process has other banks

    def state(self) -> dict[str, Any]:
        """Shape of the attention, for JSON; its weights are ``attention.state_dict()``."""
        attention = self.attention
        return {
            "kind": self.kind,
            "embed_dim": attention.embed_dim,
            "metric": attention.metric,
            "normalized": attention.normalized,
            "options": attention.options.state(),
        }

    def _summed(self, bank: MemoryBank) -> _Sums:
        """The sums of a bank, until it is next edited."""
        if self._sums is None or self._sums[:2] != (id(bank), bank.edits):
            self._sums = id(bank), bank.edits, _Sums(bank)
        return self._sums[2]


class Weigher(Protocol):
    """Neighbors -> weights: :class:`Weighting` or :class:`LearnedWeighting`."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def scale(self) -> float:
        """Inverse temperature."""

    def __call__(
        self,
        near: Neighbors,
        bank: MemoryBank,
        queries: NDArray[Any],
        *,
        class_weight: NDArray[np.float64] | None = None,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Weights (queries, k) in float64 that sum to 1 over the neighbors found."""

    def state(self) -> dict[str, Any]:
        """What describes it, for JSON."""


def weigher_from_state(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Weighting | LearnedWeighting:
    """The weighting whose ``state()`` and, if it is learned, weights these are."""
    if state.get("kind") != LearnedWeighting.kind:
        return Weighting(**state)
    attention = MultiHeadNeighborAttention(
        state["embed_dim"],
        AttentionOptions(**state["options"]),
        metric=state["metric"],
        normalized=state["normalized"],
    )
    # Before attentions kept where vectors lie, they were taken to lie around 0, as far out as the unit says.
    earlier = {"center": torch.zeros(attention.embed_dim)}
    if "unit" in tensors:
        earlier["length"] = usual_length(tensors["unit"], attention.metric, attention.normalized)
    try:
        attention.load_state_dict(earlier | dict(tensors))
    except RuntimeError as problem:
        raise InvalidInput(f"the weights do not fit the attention: {problem}") from problem
    return LearnedWeighting(attention)


class _Sums:
    """Sums of a bank's vectors by class; and by group, once a row asks to be left out."""

    def __init__(self, bank: MemoryBank) -> None:
        self._bank = bank
        labels = bank.labels(bank.live)
        self._many = int(labels.max(initial=-1)) + 1
        self.classes = _summed_by(labels, self._many, bank.vectors(bank.live))  # (classes, dim)

    def of_own(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(rows, dim) what each row and the rows of its group and label add to the sum of their class."""
        live, sums, place = self._groups
        part: NDArray[np.float32] = sums[place[np.searchsorted(live, rows)]]
        return part

    @cached_property
    def _groups(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
        """Live rows, the sums of groups of one label (a row without a group is its own), each row's group."""
        live = self._bank.live
        groups, labels = self._bank.groups(live), self._bank.labels(live)
        keys = np.where(groups < 0, -1 - live, groups * self._many + labels)
        distinct, place = np.unique(keys, return_inverse=True)
        return live, _summed_by(place, len(distinct), self._bank.vectors(live)), place


def _summed_by(keys: NDArray[np.int64], many: int, vectors: NDArray[Any]) -> NDArray[np.float32]:
    sums = np.zeros((many, vectors.shape[1]), np.float64)
    np.add.at(sums, keys, vectors)
    return sums.astype(np.float32)

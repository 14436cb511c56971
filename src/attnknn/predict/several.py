"""Weights from several k at once: the neighbors of each are among those of the largest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import LearnedWeighting, Weighting
from attnknn.bank import MemoryBank, Neighbors
from attnknn.errors import InvalidInput
from attnknn.predict.options import checked_ks

Floats = NDArray[np.float64]
BaseWeigher = Weighting | LearnedWeighting

_LEAST_SHARE: Final = 1e-6  # a member is never quite silent
_STEPS: Final = 1000


@dataclass(frozen=True)
class KEnsemble:
    """The mean of what a weigher says with several numbers of neighbors; see :class:`~attnknn.attend.Weigher`.

    Args:
        base: Weighs the neighbors of each k.
        ks: Ascending; neighbors are searched for the last.
        shares: Of each k in the mean, at least 0, with a sum above 0; kept so that they sum to 1.
    """

    kind: ClassVar[str] = "k-ensemble"

    base: BaseWeigher
    ks: tuple[int, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ks", checked_ks("ks", self.ks))
        given = np.asarray(self.shares, np.float64)
        total = float(given.sum())
        if given.shape != (len(self.ks),) or not (given >= 0).all() or not 0 < total < np.inf:
            raise InvalidInput(f"shares must be {len(self.ks)} numbers of at least 0, got {self.shares!r}")
        if abs(total - 1) > 1e-12:  # what sums to 1 stays as it is, to the last bit
            given = given / total
        object.__setattr__(self, "shares", tuple(given.tolist()))

    @property
    def scale(self) -> float:
        """Inverse temperature of the base."""
        return self.base.scale

    def __call__(
        self,
        near: Neighbors,
        bank: MemoryBank,
        queries: NDArray[Any],
        *,
        class_weight: Floats | None = None,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Weights (queries, k) in float64; arguments as for :class:`~attnknn.attend.Weighting`."""
        mixed = torch.zeros(near.rows.shape, dtype=torch.float64)
        spoken = torch.zeros(len(near), 1, dtype=torch.float64)
        for k, share in zip(self.ks, self.shares, strict=True):
            own = self.base(nearest(near, k), bank, queries, class_weight=class_weight, leaving_out=leaving_out)
            mixed[:, : own.shape[1]] += share * own
            spoken += share * (own.sum(dim=1, keepdim=True) > 0).double()  # of a small k all may weigh nothing
        return mixed / torch.where(spoken > 0, spoken, 1.0)

    def state(self) -> dict[str, Any]:
        """What describes it, for JSON."""
        return {"kind": self.kind, "ks": list(self.ks), "shares": list(self.shares), "base": self.base.state()}


def nearest(near: Neighbors, k: int) -> Neighbors:
    """Only the k nearest of each query."""
    if k >= near.k:
        return near
    weights = None if near.weights is None else near.weights[:, :k]
    cut = {name: getattr(near, name)[:, :k] for name in ("rows", "labels", "distances", "found")}
    return replace(near, **cut, weights=weights)


def fit_shares(evidence: Floats, prior: Floats, importance: Floats) -> tuple[float, ...]:
    """The shares of least NLL of a mixture of members and prior, by expectation and maximization.

    The NLL is convex in the shares, so there is one best answer. The share of the prior is found beside them and
    left out: prior mass is fitted once more, on the mixture.

    Args:
        evidence: (judges, members) that each member has for the judge's label.
        prior: (judges,) of that label.
        importance: (judges,).

    >>> fit_shares(np.array([[1.0, 0.5], [0.0, 0.5]]), np.array([0.5, 0.5]), np.ones(2))[1] > 0.5
    True
    """
    parts = np.column_stack([evidence, prior])
    told = parts.sum(axis=1) > 0
    parts, weight = parts[told], importance[told] / max(float(importance[told].sum()), 1e-300)
    shares = np.full(parts.shape[1], 1 / parts.shape[1])
    for _ in range(_STEPS if told.any() else 0):
        owned = parts * shares
        after = weight @ (owned / np.maximum(owned.sum(axis=1, keepdims=True), 1e-300))
        moved, shares = float(np.abs(after - shares).max()), after
        if moved < 1e-8:
            break
    members = np.maximum(shares[:-1], _LEAST_SHARE)
    return tuple((members / members.sum()).tolist())

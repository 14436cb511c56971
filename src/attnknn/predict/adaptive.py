"""A k for each query: by how evenly its weights are spread, or by what all other rows can weigh at most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import Weighting, log_reliability, row_weights
from attnknn.bank import MemoryBank, Neighbors
from attnknn.errors import InvalidInput
from attnknn.ops import similarity
from attnknn.predict.options import checked_ks
from attnknn.predict.several import BaseWeigher, Floats, nearest

EXACT: Final = ("exact", "flat")
"""Indexes that miss no neighbor; only for them a certificate holds."""

_QUANTILES: Final = np.linspace(0.05, 0.95, 19)
_MASSES: Final = np.geomspace(1e-4, 10.0, 11)
_SWEEPS: Final = 10


@dataclass(frozen=True)
class ByEntropy:
    """The more evenly the weights of the largest tier are spread, the larger the tier that a query gets.

    See :class:`~attnknn.attend.Weigher`.

    Args:
        base: Weighs the neighbors of each tier.
        tiers: Numbers of neighbors, ascending.
        thresholds: One fewer, ascending, from 0 to 1: up to the first of them the first tier is taken.
    """

    kind: ClassVar[str] = "entropy-k"

    base: BaseWeigher
    tiers: tuple[int, ...]
    thresholds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", checked_ks("tiers", self.tiers))
        given = np.asarray(self.thresholds, np.float64)
        if given.shape != (len(self.tiers) - 1,) or not np.isfinite(given).all() or (np.diff(given) < 0).any():
            wanted = f"{len(self.tiers) - 1} thresholds, ascending"
            raise InvalidInput(f"{len(self.tiers)} tiers need {wanted}, got {self.thresholds!r}")
        object.__setattr__(self, "thresholds", tuple(given.tolist()))

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
        given: dict[str, Any] = {"class_weight": class_weight, "leaving_out": leaving_out}
        widest = self.base(nearest(near, self.tiers[-1]), bank, queries, **given)
        return _by_tier(self, self.picked(widest), widest, near, bank, queries, **given)

    def picked(self, weights: Tensor) -> NDArray[np.int64]:
        """(queries,) the place of each query's tier, by its weights (queries, k) at the largest."""
        return np.searchsorted(self.thresholds, entropy_share(weights), side="left")

    def state(self) -> dict[str, Any]:
        """What describes it, for JSON."""
        rule = {"tiers": list(self.tiers), "thresholds": list(self.thresholds)}
        return {"kind": self.kind, **rule, "base": self.base.state()}


@dataclass(frozen=True)
class ByCertificate:
    """The smallest tier whose neighbors provably have all but ``error`` of the weight; the largest where none has.

    See :class:`~attnknn.attend.Weigher`. The bank must find every neighbor.

    Args:
        base: Softmax weights, with trust in reliable neighbors or without.
        tiers: Numbers of neighbors, ascending.
        error: Total variation to the softmax over all rows that is put up with.
    """

    kind: ClassVar[str] = "certificate-k"

    base: Weighting
    tiers: tuple[int, ...]
    error: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiers", checked_ks("tiers", self.tiers))
        if not isinstance(self.base, Weighting) or not self.base.fitted or self.base.trust < 0:
            raise InvalidInput(f"a certificate is of softmax weights, got {self.base!r}")
        if isinstance(self.error, bool) or not 0 < float(self.error) < 1:
            raise InvalidInput(f"error must be between 0 and 1, got {self.error!r}")

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
        if bank.index not in EXACT:
            raise InvalidInput(f"no certificate holds for an index that may miss neighbors, as {bank.index!r} may")
        given: dict[str, Any] = {"class_weight": class_weight, "leaving_out": leaving_out}
        kept = self.bounds(near, bank, **given) <= self.error
        kept[:, -1] = True
        widest = self.base(nearest(near, self.tiers[-1]), bank, queries, **given)
        return _by_tier(self, kept.argmax(axis=1), widest, near, bank, queries, **given)

    def bounds(
        self,
        near: Neighbors,
        bank: MemoryBank,
        *,
        class_weight: Floats | None = None,
        leaving_out: NDArray[np.int64] | None = None,
    ) -> Floats:
        """(queries, tiers) the most that the neighbors outside each tier can have of the weight of all rows.

        A row outside is no nearer than the last one inside, and reliability never adds to a logit, its logarithm
        being below 0. Rows that are left out of the search count as outside, which only makes the bound larger.
        """
        logits = self.scale * similarity(torch.from_numpy(near.distances), bank.metric).numpy()
        factor = row_weights(near, class_weight)
        factor = np.where(near.found, 1.0 if factor is None else factor, 0.0)
        top = np.where(near.found, logits, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
        logits = np.where(near.found, logits - np.where(np.isfinite(top), top, 0.0), -np.inf)
        own = logits
        if self.base.kind == "reliability":
            own = logits + self.base.trust * log_reliability(near, bank, leaving_out)
        inside = np.cumsum(factor * np.exp(own), axis=1)
        at = np.minimum(self.tiers, near.k) - 1
        left = np.maximum(_total(near, bank, class_weight) - np.cumsum(factor, axis=1)[:, at], 0.0)
        outside = left * np.exp(logits[:, at])
        both = inside[:, at] + outside
        unknown = (left > 0).astype(np.float64)  # where nothing inside weighs anything
        bounds: Floats = np.divide(outside, both, out=unknown, where=both > 0)
        return bounds

    def state(self) -> dict[str, Any]:
        """What describes it, for JSON."""
        return {"kind": self.kind, "tiers": list(self.tiers), "error": self.error, "base": self.base.state()}


def _by_tier(
    weigher: ByEntropy | ByCertificate,
    picked: NDArray[np.int64],
    widest: Tensor,
    near: Neighbors,
    bank: MemoryBank,
    queries: NDArray[Any],
    class_weight: Floats | None,
    leaving_out: NDArray[np.int64] | None,
) -> Tensor:
    """The base's weights of each query with the neighbors of its own tier; ``widest`` are those of the last."""
    weights = F.pad(widest, (0, near.k - widest.shape[1]))
    for place, k in enumerate(weigher.tiers[:-1]):
        rows = np.flatnonzero(picked == place)
        if not len(rows):
            continue
        few = nearest(near.take(rows), k)
        out = None if leaving_out is None else leaving_out[rows]
        own = weigher.base(few, bank, queries[rows], class_weight=class_weight, leaving_out=out)
        weights[rows] = F.pad(own, (0, near.k - own.shape[1]))
    return weights


def entropy_share(weights: Tensor) -> Floats:
    """(queries,) entropy of weights (queries, k) as a share of the most that k of them can have.

    >>> entropy_share(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    spread: Floats = torch.special.entr(weights.double()).sum(dim=1).numpy()
    return spread / math.log(max(2, weights.shape[1]))


def usual_tiers(k: int, most: int) -> tuple[int, ...]:
    """About k / 4, k and 4 k, as far as ``most`` neighbors can be had.

    >>> usual_tiers(16, 1000), usual_tiers(1, 1000), usual_tiers(50, 50)
    ((4, 16, 64), (1, 4), (12, 50))
    """
    return tuple(sorted({min(max(1, each), most) for each in (k // 4, k, 4 * k)}))


def fit_thresholds(evidence: Floats, entropy: Floats, prior: Floats, importance: Floats) -> tuple[float, ...]:
    """The thresholds of least NLL on a grid of quantiles, such that each tier is taken by some judge.

    They are entropies of judges, ascending and below the largest: so each tier holds at least the judges whose
    entropy is its upper threshold, and the last those above. One is moved at a time, until none moves.

    Args:
        evidence: (views, judges, tiers) that each tier has for the judge's label.
        entropy: (views, judges) as a share, of the weights at the largest tier.
        prior: (judges,) of that label.
        importance: (judges,).

    Raises:
        InvalidInput: The judges have fewer different entropies than there are tiers.
    """
    tiers = evidence.shape[2]
    values = np.unique(entropy)
    if len(values) < tiers:
        raise InvalidInput(
            f"adaptive_k='entropy' with {tiers} tiers: the rows that judge show only {len(values)} different "
            "entropies; use fewer tiers, or a k_ensemble"
        )
    grid = _grid(values, entropy, tiers - 1)
    places = [int((which + 0.5) * len(grid) / (tiers - 1)) for which in range(tiers - 1)]
    best = _loss(grid[places], evidence, entropy, prior, importance)
    for _ in range(_SWEEPS):
        before = list(places)
        for which in range(len(places)):
            low = places[which - 1] + 1 if which else 0
            high = places[which + 1] if which + 1 < len(places) else len(grid)
            for tried in range(low, high):
                moved = [*places[:which], tried, *places[which + 1 :]]
                loss = _loss(grid[moved], evidence, entropy, prior, importance)
                if loss < best:
                    best, places = loss, moved
        if places == before:
            break
    return tuple(grid[places].tolist())


def _grid(values: Floats, entropy: Floats, least: int) -> Floats:
    """Values that thresholds may have, all but the largest; at least so many."""
    grid: Floats = np.unique(np.quantile(entropy, _QUANTILES, method="lower"))
    grid = grid[grid < values[-1]]
    if len(grid) >= least:
        return grid
    grid = values[:-1]
    return grid[:: max(1, len(grid) // max(least, len(_QUANTILES)))]


def _loss(thresholds: Floats, evidence: Floats, entropy: Floats, prior: Floats, importance: Floats) -> float:
    """Mean NLL with the prior mass that suits best."""
    picked = np.searchsorted(thresholds, entropy, side="left")
    share = np.take_along_axis(evidence, picked[..., None], axis=2)[..., 0].mean(axis=0)
    chances = (share[:, None] + _MASSES * prior[:, None]) / (1 + _MASSES)
    losses = importance @ -np.log(np.maximum(chances, 1e-300)) / importance.sum()
    return float(losses.min())


def _total(near: Neighbors, bank: MemoryBank, class_weight: Floats | None) -> float:
    """What all rows weigh together, before distances count."""
    if class_weight is not None:
        return float((bank.label_weights(len(class_weight)) * class_weight).sum())
    return float(len(bank) if near.weights is None else bank.weights(bank.live).sum())

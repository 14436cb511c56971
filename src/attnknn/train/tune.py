"""Choose k, scale, trust and prior mass by what the judges say: rows held out, or rows that leave themselves out.

A judge never sees itself, its duplicates, or its own vote in the reliability of its neighbors and in the prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from attnknn.attend import Weighting, log_reliability, row_weights
from attnknn.bank import MemoryBank, Neighbors
from attnknn.data import duplicate_groups
from attnknn.train.judges import Hearing, Judges

Floats = NDArray[np.float64]

FIRST_WIDTH: Final = 64  # neighbors looked at before it is known whether more would help
MOST_CELLS: Final = 8_000_000  # judges x neighbors held at once
MOST_NEIGHBORS: Final = 4096
"""The largest k that is tried: beyond it searches get slow, and no table was seen to gain."""

_MASSES = np.geomspace(1e-4, 10.0, 26)
_SCALES = 2.0 ** np.arange(-4.0, 8.5)
_TRUSTS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen, and the evidence: ``curve`` has (k, mean NLL, standard error against the best)."""

    k: int
    weighting: Weighting
    mass: float
    curve: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, slots=True)
class _Panel:
    """What the judges see: (judges, width) per neighbor, (judges,) per judge."""

    labels: NDArray[np.int64]  # of the neighbors
    closeness: Floats  # similarity, relative to the nearest; -inf where there is no neighbor
    gaps: Floats
    factor: Floats | None  # sample and class weights of the neighbors
    trust: Floats | None  # log reliability of the neighbors
    own: NDArray[np.int64]  # the judge's label
    prior: Floats  # of that label, without the judge
    importance: Floats  # of the judge, summing to 1

    def grid(self) -> list[int]:
        """1, 2, 4, ... and the width itself."""
        width = self.labels.shape[1]
        return [*(2**power for power in range(width.bit_length()) if 2**power < width), width]

    def spread(self) -> float:
        """A typical difference in similarity among the first neighbors: the unit in which scales are tried."""
        near = self.closeness[:, min(16, self.labels.shape[1]) - 1]
        near = -near[np.isfinite(near)]
        return float(np.median(near)) if len(near) else 0.0

    def same_mass(self, weighting: Weighting, ks: list[int]) -> Floats:
        """(judges, ks) share of the weight of the k nearest that goes to the judge's label."""
        raw = self._raw(weighting)
        total = _sums(raw, ks)
        right = _sums(raw * torch.from_numpy(self.labels == self.own[:, None]), ks)
        share: Floats = np.divide(right, total, out=np.zeros_like(right), where=total > 0)
        return share

    def right(self, weighting: Weighting) -> NDArray[np.bool_]:
        """(judges,) whether the heaviest label among all neighbors here is the judge's."""
        raw = self._raw(weighting).numpy()
        labels = np.where(raw > 0, self.labels, 0)
        classes = 1 + max(int(self.own.max()), int(labels.max()))
        places = np.arange(len(labels))[:, None] * classes + labels
        votes = np.bincount(places.ravel(), raw.ravel(), minlength=len(labels) * classes)
        return np.asarray(votes.reshape(-1, classes).argmax(axis=1) == self.own)

    def nearest(self, k: int) -> _Panel:
        """The same judges with only the k nearest neighbors."""
        factor = None if self.factor is None else self.factor[:, :k]
        trust = None if self.trust is None else self.trust[:, :k]
        first = self.labels[:, :k], self.closeness[:, :k], self.gaps[:, :k]
        return _Panel(*first, factor, trust, self.own, self.prior, self.importance)

    def _raw(self, weighting: Weighting) -> torch.Tensor:
        """(judges, width) weights before they are made to sum to 1. By torch: all cores take part."""
        if weighting.kind == "uniform":
            raw = torch.from_numpy(np.isfinite(self.closeness)).double()
        elif weighting.kind == "distance":
            nearest = np.where(np.isfinite(self.closeness[:, :1]), self.gaps[:, :1], 0.0)
            ratio = nearest / np.maximum(self.gaps, np.finfo(np.float64).tiny)
            raw = torch.from_numpy(np.where(nearest > 0, ratio, self.gaps == 0))
        else:
            raw = weighting.scale * torch.from_numpy(self.closeness)
            if self.trust is not None and weighting.trust:
                raw += weighting.trust * torch.from_numpy(self.trust)
                raw -= raw.amax(dim=1, keepdim=True).clamp(min=-1e300)
            raw.exp_()
        return raw if self.factor is None else raw * torch.from_numpy(self.factor)


def _sums(values: torch.Tensor, ks: list[int]) -> Floats:
    """(rows, ks) sums of the first k values of each row; ks ascend."""
    parts = [values[:, low:high].sum(dim=1) for low, high in pairwise([0, *ks])]
    result: Floats = torch.stack(parts, dim=1).cumsum(dim=1).numpy()
    return result


def choose_judges(bank: MemoryBank, fraction: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows whose leave-one-out predictions are to be used: ``fraction`` of the bank, never fewer than 2,000."""
    rows = bank.live
    count = max(2000, round(fraction * len(rows)))
    if count < len(rows):
        rows = random.choice(rows, count, replace=False)  # in random order: a cut of them is a fair sample
    return rows


def tune(
    hearings: Sequence[Hearing],
    weighting: Weighting,
    *,
    k: int | None,
    class_weight: Floats,
    calibrated: bool,
    most: int = MOST_NEIGHBORS,
) -> Tuning:
    """Fit what is free: k when it is None, scale and trust where ``weighting`` has them, the prior mass.

    k is the smallest of 1, 2, 4, ..., all (4,096 of more) whose NLL is within one standard error (of the paired
    difference) of the best. Larger values are tried only while they help. Trust is chosen by accuracy: see
    ``_trusting``.

    Args:
        hearings: Banks with those who judge them, each able to: see ``Judges.able``.
        weighting: Its kind says what is to be fitted.
        k: A given number of neighbors, or None.
        class_weight: (classes,) factors.
        calibrated: Whether a prior mass is fitted; otherwise the mass is 0.
        most: The largest k that is tried.
    """
    held = min(len(hearing.bank) for hearing in hearings)
    most = held if k is not None else min(held, most)
    if not any(len(hearing.judges) for hearing in hearings) or held < 2:
        return Tuning(k or _most_alike(hearings[0].bank), weighting, 0.0 if not calibrated else 1.0, ())
    width = min(k or FIRST_WIDTH, most)
    while True:
        panel = _panel(hearings, weighting, width, class_weight)
        ks = panel.grid() if k is None else [width]
        losses, settings = _fit_grid(panel, weighting, ks)
        if k is not None or int(losses.mean_.argmin()) < len(ks) - 1 or width == most:
            break
        width = min(4 * width, most)
    chosen = losses.smallest_within_one_error()
    weighting, mass = _refined(panel.nearest(ks[chosen]), *settings[chosen])
    curve = tuple((at, float(m), float(e)) for at, m, e in zip(ks, losses.mean_, losses.error_, strict=True))
    # A given k is kept even where the bank is smaller: it may grow.
    return Tuning(k or ks[chosen], weighting, mass if calibrated else 0.0, curve)


@dataclass(frozen=True, slots=True)
class _Losses:
    mean_: Floats  # (ks,) weighted mean NLL
    error_: Floats  # (ks,) standard error of the difference to the best

    @classmethod
    def of(cls, each: Floats, importance: Floats) -> _Losses:
        mean = importance @ each
        gap = each - each[:, [int(mean.argmin())]]
        variance = importance**2 @ (gap - importance @ gap) ** 2
        return cls(mean, np.sqrt(variance))

    def smallest_within_one_error(self) -> int:
        return int(np.flatnonzero(self.mean_ <= self.mean_.min() + self.error_)[0])


def _fit_grid(panel: _Panel, weighting: Weighting, ks: list[int]) -> tuple[_Losses, list[tuple[Weighting, float]]]:
    """For each k the best setting on a grid, with the losses of the judges under it."""
    best = np.full(len(ks), np.inf)
    settings: list[tuple[Weighting, float]] = [(weighting, 1.0)] * len(ks)
    each = np.zeros((len(panel.prior), len(ks)))
    for candidate in _candidates(panel, weighting):
        share = panel.same_mass(candidate, ks)
        for at in range(len(ks)):
            mass, loss = _best_mass(share[:, at], panel)
            if loss < best[at]:
                best[at], settings[at] = loss, (candidate, mass)
                each[:, at] = _nll(share[:, at], mass, panel.prior)
    return _Losses.of(each, panel.importance), settings


def _candidates(panel: _Panel, weighting: Weighting) -> Iterator[Weighting]:
    spread = panel.spread()
    if not weighting.fitted or spread <= 0 or not np.isfinite(1 / spread):
        yield weighting
        return
    for scale in _SCALES / spread:
        yield replace(weighting, scale=float(scale))


def _best_mass(share: Floats, panel: _Panel) -> tuple[float, float]:
    losses = _loss(share, _MASSES, panel)
    at = int(losses.argmin())
    return float(_MASSES[at]), float(losses[at])


def _loss(share: Floats, masses: Floats, panel: _Panel) -> Floats:
    """(masses,) mean NLL of the judges and of one more, who finds none of its class.

    Without that one, n right answers in n would ask for a prior mass of 0.
    """
    seen = panel.importance @ _nll(share[:, None], masses, panel.prior[:, None])
    unseen = _nll(np.zeros(1), masses, np.asarray(panel.importance @ panel.prior))
    return np.asarray((len(share) * seen + unseen) / (len(share) + 1))


def _nll(share: Floats, mass: float | Floats, prior: Floats) -> Floats:
    return np.asarray(-np.log((share + mass * prior) / (1 + mass)))


def _refined(panel: _Panel, weighting: Weighting, mass: float) -> tuple[Weighting, float]:
    """Polish scale and mass between the points of the grid, then see whether trust helps."""
    width = panel.labels.shape[1]

    def at(log_scale: float) -> tuple[float, float, Weighting]:
        tried = replace(weighting, scale=float(np.exp(log_scale)))
        return *_polished(panel.same_mass(tried, [width])[:, 0], panel), tried

    start = np.log(weighting.scale)
    loss, mass, _ = at(start)
    if weighting.fitted:
        found = minimize_scalar(
            lambda point: at(point)[0],
            bounds=(start - 1, start + 1),
            method="bounded",
            options={"xatol": 1e-3, "maxiter": 30},
        )
        if found.fun < loss:
            _, mass, weighting = at(found.x)
    return _trusting(panel, weighting, mass)


def _polished(share: Floats, panel: _Panel) -> tuple[float, float]:
    """Least loss of these shares over the masses, and the mass that has it."""
    at = int(_loss(share, _MASSES, panel).argmin())
    around = np.log([1e-6, *_MASSES, 1e3])[[at, at + 2]]  # the points of the grid beside it
    found = minimize_scalar(
        lambda point: float(_loss(share, np.exp([point]), panel)[0]),
        bounds=tuple(around),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(found.fun), float(np.exp(found.x))


def _trusting(panel: _Panel, weighting: Weighting, mass: float) -> tuple[Weighting, float]:
    """Trust reliable neighbors more if that makes more judges right, by more than half a standard error.

    By accuracy, not NLL: under label noise the wrongly labelled judges dominate the NLL, and would rather
    keep the wrongly labelled neighbors; the most accurate rule stays the same.
    """
    spread = panel.spread()
    if panel.trust is None or spread <= 0:
        return weighting, mass
    before = panel.right(weighting).astype(np.float64)
    best, most = weighting, 0.0
    for scale, trust in product(_SCALES / spread, _TRUSTS):
        tried = replace(weighting, scale=float(scale), trust=trust)
        each = panel.right(tried) - before
        gain = float(panel.importance @ each)
        error = float(np.sqrt(panel.importance**2 @ (each - gain) ** 2))
        if gain > max(most, error / 2):
            best, most = tried, gain
    if best is weighting:
        return weighting, mass
    return best, _best_mass(panel.same_mass(best, [panel.labels.shape[1]])[:, 0], panel)[0]


def _most_alike(bank: MemoryBank) -> int:
    """How many rows share one place, at most: with nothing to go by, those at the same place share the vote."""
    return int(np.bincount(duplicate_groups(bank.vectors(bank.live))).max(initial=1))


def _panel(hearings: Sequence[Hearing], weighting: Weighting, width: int, class_weight: Floats) -> _Panel:
    """What the judges of all hearings see, so many of them that the panel stays small."""
    most = max(256, MOST_CELLS // width) // len(hearings)
    parts = [_seen(each.bank, each.judges.take(slice(most)), weighting, width, class_weight) for each in hearings]
    rows = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("labels", "closeness", "gaps", "own", "prior", "importance")
    }
    factor = None
    if any(part.factor is not None for part in parts):
        factor = np.concatenate(
            [np.ones(part.gaps.shape) if part.factor is None else part.factor for part in parts]
        )
    trust = None if parts[0].trust is None else np.concatenate([np.asarray(part.trust) for part in parts])
    rows["importance"] = rows["importance"] / rows["importance"].sum()
    return _Panel(factor=factor, trust=trust, **rows)


def _seen(bank: MemoryBank, judges: Judges, weighting: Weighting, width: int, class_weight: Floats) -> _Panel:
    near = judges.neighbors(bank, width)
    trusted = weighting.kind == "reliability"
    return _Panel(
        labels=near.labels,
        closeness=_closeness(near),
        gaps=near.distances,
        factor=row_weights(near, class_weight if (class_weight != 1).any() else None),
        trust=log_reliability(near, bank, judges.rows) if trusted else None,
        own=judges.labels,
        prior=judges.prior(bank, class_weight)[np.arange(len(judges)), judges.labels],
        importance=judges.weights * class_weight[judges.labels],
    )


def _closeness(near: Neighbors) -> Floats:
    """Similarity relative to the nearest: differences of distances, whatever the metric."""
    first = np.where(near.found[:, :1], near.distances[:, :1], 0.0)
    result: Floats = first - near.distances
    return result

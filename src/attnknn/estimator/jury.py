"""Judges who hear answers as they will be served, so that what is fitted on them holds for the answers to come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.bank import MemoryBank, Neighbors
from attnknn.errors import InvalidInput
from attnknn.estimator.voter import Floats, believed
from attnknn.predict import CELLS, AnyWeigher, Lens, PredictionOptions, answer, mean_evidence
from attnknn.predict.adaptive import ByCertificate, ByEntropy, entropy_share, fit_thresholds, usual_tiers
from attnknn.predict.options import ERROR
from attnknn.predict.several import BaseWeigher, KEnsemble, fit_shares, nearest
from attnknn.predict.views import Asked
from attnknn.train import Judges
from attnknn.train.judges import Given

_MOST_CELLS: Final = 16_000_000  # judges x neighbors that are looked at, a part of them at a time

Rule = Callable[[BaseWeigher], AnyWeigher]
"""What becomes of a weigher of one k."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The judges of a hearing as one member sees them, and what weighs their neighbors."""

    bank: MemoryBank
    judges: Judges
    asked: Asked
    weigher: BaseWeigher

    @classmethod
    def by(cls, lens: Lens, network: Any, bank: MemoryBank, judges: Judges, weigher: BaseWeigher) -> Heard:
        """What a lens shows; judges whose rows were not kept are seen as they are."""
        if lens.plain or judges.features is None:
            return cls(bank, judges, Asked([judges.vectors], None), weigher)
        return cls(bank, judges, lens(network, judges.features), weigher)

    def seen(self, vectors: NDArray[Any], k: int) -> Iterator[tuple[Judges, Neighbors]]:
        """The judges under these vectors and their neighbors, a bounded number at a time."""
        everyone = replace(self.judges, vectors=vectors)
        step = max(1, CELLS // max(1, min(k, len(self.bank))))
        for at in range(0, max(1, len(everyone)), step):
            some = everyone.take(slice(at, at + step))
            yield some, some.neighbors(self.bank, k)


@dataclass(frozen=True, slots=True)
class Polled:
    """What is said of the judges, all members and views averaged, and what should have been said."""

    evidence: Floats  # (judges, classes)
    density: Floats
    labels: NDArray[np.int64]
    prior: Floats  # (judges, classes)
    importance: Floats
    given: Given | None = None  # None where labels are as they were given


@dataclass(frozen=True, slots=True)
class Jury:
    """The judges of each hearing as each member sees them; hearings are the same for all members."""

    heard: Sequence[Sequence[Heard]]  # by member, then by hearing
    lens: Lens
    class_weight: Floats

    def polled(self, rules: Sequence[tuple[int, Rule]]) -> Polled:
        """What members say that search for so many neighbors and weigh by these rules."""
        parts = []
        for number in range(len(self.heard[0])):
            said = [
                self._answers(each[number], k, rule(each[number].weigher))
                for each, (k, rule) in zip(self.heard, rules, strict=True)
            ]
            voices = [pair for member in said for pair in member]
            mean = mean_evidence([evidence for evidence, _ in voices])
            parts.append((mean.numpy(), np.mean([density for _, density in voices], axis=0)))
        evidence, density = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Polled(evidence, density, self.labels, self.prior, self.importance, self.given)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(judges,)."""
        return np.concatenate([each.judges.labels for each in self.heard[0]])

    @property
    def given(self) -> Given | None:
        """(judges,) labels before the training revised them; None where it did not."""
        each = [heard.judges.given for heard in self.heard[0]]
        known = [given for given in each if given is not None]
        if len(known) < len(each):
            return None
        return replace(known[0], labels=np.concatenate([given.labels for given in known]))

    @property
    def importance(self) -> Floats:
        """(judges,)."""
        weights = np.concatenate([each.judges.weights for each in self.heard[0]])
        return np.asarray(weights * self.class_weight[self.labels])

    @property
    def prior(self) -> Floats:
        """(judges, classes)."""
        parts = []
        for number, first in enumerate(self.heard[0]):
            prior = first.judges.prior(first.bank, self.class_weight)
            heads = [each[number].asked.head for each in self.heard if each[number].asked.head is not None]
            if heads and self.lens.outputs is not None:
                mean = np.mean(np.stack([np.asarray(head) for head in heads]), axis=0)
                prior = believed(mean, self.lens.outputs, prior, self.class_weight)
            parts.append(prior)
        return np.concatenate(parts)

    def shares(self, ks: Sequence[int]) -> tuple[float, ...]:
        """Of the members of a k-ensemble, by the evidence that all members and views have for the judges."""
        parts = []
        for number in range(len(self.heard[0])):
            each = [self._by_k(member[number], ks)[0].mean(axis=0) for member in self.heard]
            parts.append(np.mean(each, axis=0))
        return fit_shares(np.concatenate(parts), self._prior_of_own, self.importance)

    def thresholds(self, member: int, tiers: Sequence[int]) -> tuple[float, ...]:
        """That a member's entropies are compared with."""
        parts = [self._by_k(each, tiers) for each in self.heard[member]]
        evidence, entropy = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
        return fit_thresholds(evidence, entropy, self._prior_of_own, self.importance)

    @property
    def _prior_of_own(self) -> Floats:
        """(judges,) prior of their labels."""
        labels = self.labels
        return np.asarray(self.prior[np.arange(len(labels)), labels])

    @property
    def _factor(self) -> Floats | None:
        return self.class_weight if (self.class_weight != 1).any() else None

    def _answers(self, heard: Heard, k: int, weigher: AnyWeigher) -> list[tuple[torch.Tensor, Floats]]:
        """(judges, classes) evidence and (judges,) density of each view."""
        each = []
        for vectors in heard.asked.views:
            parts = [
                answer(near, heard.bank, some.vectors, weigher, len(self.class_weight), self._factor, some.rows)
                for some, near in heard.seen(vectors, k)
            ]
            evidence = torch.cat([part.evidence for part in parts])
            each.append((evidence, np.concatenate([part.density for part in parts])))
        return each

    def _by_k(self, heard: Heard, ks: Sequence[int]) -> tuple[Floats, Floats]:
        """(views, judges, ks) evidence for the judges' own labels; (views, judges) entropy at the largest k."""
        views = []
        for vectors in heard.asked.views:
            parts = [self._told(heard, some, near, ks) for some, near in heard.seen(vectors, ks[-1])]
            views.append([np.concatenate(column) for column in zip(*parts, strict=True)])
        evidence, entropy = (np.stack(column) for column in zip(*views, strict=True))
        return evidence, entropy

    def _told(self, heard: Heard, some: Judges, near: Neighbors, ks: Sequence[int]) -> tuple[Floats, Floats]:
        columns = []
        for k in ks:
            few = nearest(near, k)
            weights = heard.weigher(
                few, heard.bank, some.vectors, class_weight=self._factor, leaving_out=some.rows
            )
            right = torch.from_numpy(few.labels == some.labels[:, None])
            columns.append(weights.where(right, 0.0).sum(dim=1).numpy())
        return np.column_stack(columns), entropy_share(weights)


def judges_heard(widest: int, hearings: int) -> int:
    """How many judges of each hearing are heard where each has so many neighbors."""
    return max(256, _MOST_CELLS // widest) // hearings


def plain_rule(weigher: BaseWeigher) -> AnyWeigher:
    """One k: the weigher itself."""
    return weigher


def widths(options: PredictionOptions, k: int, most: int) -> tuple[int, ...]:
    """The numbers of neighbors that are looked at where k was chosen and ``most`` can be had."""
    if options.adaptive_k is None:
        return options.k_ensemble or (k,)
    tiers = options.tiers or usual_tiers(k, most)
    if len(tiers) < 2:
        raise InvalidInput(f"adaptive_k={options.adaptive_k!r} has nothing to choose from: there are {most} rows")
    return tiers


def rules_of(
    options: PredictionOptions, ks: Sequence[tuple[int, ...]], jury: Jury | None
) -> list[tuple[int, Rule]]:
    """For each member how many neighbors are searched, and what becomes of its weigher.

    Args:
        options: What is wished.
        ks: The widths of each member.
        jury: Fits what is free; None where nothing is.
    """
    if options.k_ensemble is not None:
        shares = options.k_shares or (jury.shares(options.k_ensemble) if jury is not None else ())
        rule: Rule = partial(KEnsemble, ks=options.k_ensemble, shares=shares)
        return [(each[-1], rule) for each in ks]
    if options.adaptive_k == "certificate":
        error = ERROR if options.error is None else options.error
        return [(each[-1], partial(ByCertificate, tiers=each, error=error)) for each in ks]
    if options.adaptive_k == "entropy" and jury is not None:
        return [
            (each[-1], partial(ByEntropy, tiers=each, thresholds=jury.thresholds(member, each)))
            for member, each in enumerate(ks)
        ]
    return [(each[-1], plain_rule) for each in ks]

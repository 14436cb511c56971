"""Labelled rows that judge a bank: held out of it, or rows of the bank that leave themselves out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.bank import MemoryBank, Neighbors

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Given:
    """Labels before a training revised them."""

    labels: NDArray[np.int64]
    wrong: float  # the share of wrong ones among all that were given

    def take(self, at: NDArray[Any] | slice) -> Given:
        """Some of them."""
        return replace(self, labels=self.labels[at])


@dataclass(frozen=True, slots=True)
class Judges:
    """Rows whose labels are compared with what a bank says of them."""

    vectors: NDArray[Any]  # (judges, dim)
    labels: NDArray[np.int64]
    weights: Floats
    rows: NDArray[np.int64] | None = None  # where the bank holds them; None where it does not
    features: NDArray[Any] | None = None  # the encoded rows, kept of images: other views of them may be asked for
    given: Given | None = None  # None where labels are as they were given

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, bank: MemoryBank, rows: NDArray[np.int64]) -> Judges:
        """Rows of the bank itself."""
        return cls(bank.vectors(rows), bank.labels(rows), bank.weights(rows), rows)

    def take(self, at: NDArray[Any] | slice) -> Judges:
        """Some of them."""
        rows, features = (None if each is None else each[at] for each in (self.rows, self.features))
        given = None if self.given is None else self.given.take(at)
        own = self.vectors[at], self.labels[at], self.weights[at]
        return Judges(*own, rows, features, given)

    def neighbors(self, bank: MemoryBank, k: int) -> Neighbors:
        """Their neighbors in the bank: never themselves, never their duplicates."""
        return bank.search(self.vectors, k, exclude=None if self.rows is None else bank.names(self.rows))

    def prior(self, bank: MemoryBank, class_weight: Floats) -> Floats:
        """(judges, classes) class frequencies of the bank without each of them."""
        prior = np.tile(class_weight * bank.label_weights(len(class_weight)), (len(self), 1))
        if self.rows is not None:
            prior[np.arange(len(self)), self.labels] -= class_weight[self.labels] * self.weights
        result: Floats = np.maximum(prior, 0.0) / prior.sum(axis=1, keepdims=True)
        return result

    def able(self, bank: MemoryBank, class_weight: Floats) -> Judges:
        """Without those whose class has no other row in the bank: nothing could predict them."""
        inside = self.rows is not None
        totals = bank.label_weights(len(class_weight))[self.labels]
        others = np.bincount(bank.labels(bank.live), minlength=len(class_weight))[self.labels] - inside
        left = totals - self.weights * inside
        return self.take((others > 0) & (left > 0) & (self.weights > 0) & (class_weight[self.labels] > 0))


@dataclass(frozen=True, slots=True)
class Hearing:
    """A bank, and who judges it."""

    bank: MemoryBank
    judges: Judges
    taught: NDArray[np.int64] | None = None  # where the bank holds rows that may teach weights, but do not judge

    def able(self, class_weight: Floats) -> Hearing:
        """Without judges that nothing could predict: see ``Judges.able``."""
        return replace(self, judges=self.judges.able(self.bank, class_weight))

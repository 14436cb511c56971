"""The fitted heart of the classifier: encoded rows in, calibrated class probabilities and reasons out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.attend import LearnedWeighting, Weighting
from attnknn.bank import Id, MemoryBank
from attnknn.calibrate import Calibrator, DensityTemperature, Identity, Isotonic, Matrix, Temperature
from attnknn.calibrate.isotonic import Knots
from attnknn.embed import AnyNetwork, embed
from attnknn.errors import InvalidInput
from attnknn.ops import vote
from attnknn.predict import CELLS, AnyWeigher, Lens, Poll, answer, base_of

Floats = NDArray[np.float64]

AS_VOTED: Final[Knots] = ((0.0, 1.0), (0.0, 1.0))
"""The calibration curve of a class that nothing is known of."""


@dataclass(frozen=True)
class Member:
    """A bank of vectors of its own, and how its neighbors are weighed."""

    network: AnyNetwork | None  # None: the encoded rows are the vectors
    bank: MemoryBank
    weigher: AnyWeigher
    k: int

    def vectors(self, features: NDArray[Any]) -> NDArray[Any]:
        """Vectors of encoded rows."""
        return features if self.network is None else embed(self.network, features)


@dataclass(frozen=True)
class Voter:
    """Members, and all that was fitted to turn their answers into probabilities. Classes are integers here.

    Members hold the same examples under the same ids; the bank of the first also keeps the encoded rows where
    its vectors do not show them.
    """

    members: tuple[Member, ...]
    classes: int
    class_weight: Floats  # (classes,)
    mass: float = 0.0
    calibrator: Calibrator = field(default_factory=Identity)
    lens: Lens = field(default_factory=Lens)

    @property
    def bank(self) -> MemoryBank:
        """The examples, as the first member sees them."""
        return self.members[0].bank

    @property
    def weighting(self) -> Weighting | LearnedWeighting:
        """How the first member weighs the neighbors of one k."""
        return base_of(self.members[0].weigher)

    @property
    def k(self) -> int:
        """Neighbors of the first member, of the largest k where there are several."""
        return self.members[0].k

    @property
    def prior(self) -> Floats:
        """(classes,) weighted class frequencies of the examples as they stand."""
        totals = self.bank.label_weights(self.classes) * self.class_weight
        if totals.sum() <= 0:
            return np.full(self.classes, 1 / self.classes)
        return np.asarray(totals / totals.sum())

    def polls(self, features: NDArray[Any]) -> Iterator[Poll]:
        """What the members say, before prior and calibration, a bounded number of rows at a time."""
        if len(self.bank) == 0:
            raise InvalidInput("the bank is empty: add examples before predicting")
        weight = self.class_weight if (self.class_weight != 1).any() else None
        widest = max(1, *(min(member.k, len(member.bank)) for member in self.members))
        step = max(1, CELLS // (widest * self.lens.answers))
        for at in range(0, len(features), step):
            part = features[at : at + step]
            said, heads = [], []
            for member in self.members:
                asked = self.lens(member.network, part)
                for vectors in asked.views:
                    near = member.bank.search(vectors, member.k)
                    said.append(answer(near, member.bank, vectors, member.weigher, self.classes, weight))
                heads += [] if asked.head is None else [asked.head]
            yield Poll(said, np.mean(heads, axis=0) if heads else None)

    def probabilities(self, features: NDArray[Any]) -> Floats:
        """(rows, classes) calibrated probabilities."""
        each = [self.finished(poll, self.prior_of(poll)) for poll in self.polls(features)]
        return np.concatenate(each) if each else np.empty((0, self.classes))

    def prior_of(self, poll: Poll) -> Floats:
        """The prior of a poll: (classes,) frequencies, or (rows, classes) where the heads were asked."""
        if poll.head is None or self.lens.outputs is None:
            return self.prior
        return believed(poll.head, self.lens.outputs, self.prior, self.class_weight)

    def finished(self, poll: Poll, prior: Floats) -> Floats:
        """Prior, (classes,) or (rows, classes), and calibration on top of what the members say."""
        votes = vote(poll.evidence, torch.from_numpy(prior), self.mass).numpy()
        if isinstance(self.calibrator, Identity):
            return votes
        return self.calibrator.transform(votes, poll.density)

    def add(
        self, features: NDArray[Any], labels: NDArray[np.int64], ids: Sequence[Id] | None, weights: Floats | None
    ) -> list[Id]:
        """Embed and store rows in the bank of each member; what is refused changes nothing."""
        vectors = [member.vectors(features) for member in self.members]
        kept = None if self.members[0].network is None else features.reshape(len(features), -1)
        names = self.bank.add(vectors[0], labels, ids=ids, weights=weights, features=kept)
        for member, own in zip(self.members[1:], vectors[1:], strict=True):
            member.bank.add(own, labels, ids=names, weights=weights)
        return names

    def remove(self, ids: Iterable[Id]) -> None:
        """Forget rows."""
        names = ids if isinstance(ids, str) else list(ids)
        for member in self.members:
            member.bank.remove(names)

    def relabel(self, ids: Sequence[Id], labels: NDArray[np.int64]) -> None:
        """Give rows new labels."""
        for member in self.members:
            member.bank.update(ids, labels=labels)

    def encoded(self, ids: Sequence[Id]) -> NDArray[Any]:
        """The encoded rows of some ids."""
        rows = self.bank.rows(ids)
        return self.bank.vectors(rows) if self.members[0].network is None else self.bank.features(rows)

    def extended(self, place: NDArray[np.int64], classes: int) -> Voter:
        """The same voter for more classes; class i so far is class ``place[i]`` from now on."""
        weight = np.ones(classes)
        weight[place] = self.class_weight
        calibrator = self.calibrator
        if isinstance(calibrator, Isotonic):  # it holds a curve for each class; a new one keeps its vote
            curves = [AS_VOTED] * classes
            for old, new in enumerate(place.tolist()):
                curves[new] = calibrator.curves[old]
            calibrator = replace(calibrator, curves=tuple(curves))
        elif isinstance(calibrator, Matrix):
            calibrator = calibrator.extended(place, classes)
        lens = self.lens
        if lens.outputs is not None:
            lens = replace(lens, outputs=tuple(int(place[each]) for each in lens.outputs))
        return replace(self, classes=classes, class_weight=weight, calibrator=calibrator, lens=lens)

    def temperatures(self, density: Floats) -> Floats | None:
        """Temperature of each row; None where calibration is not a temperature."""
        if isinstance(self.calibrator, DensityTemperature):
            return self.calibrator.temperature(density)
        value = {Temperature: getattr(self.calibrator, "value", 1.0), Identity: 1.0}.get(type(self.calibrator))
        return None if value is None else np.full(len(density), value)


def believed(head: Floats, outputs: Sequence[int], prior: Floats, class_weight: Floats) -> Floats:
    """(rows, classes) what a head thinks in place of class frequencies.

    Classes that came after the head was trained keep their frequencies, and the head deals out the rest.

    Args:
        head: (rows, outputs) probabilities.
        outputs: The class of each output.
        prior: (classes,) or (rows, classes) class frequencies, weighted.
        class_weight: (classes,) factors.
    """
    known = np.asarray(outputs, np.int64)
    told = head * class_weight[known]
    total = told.sum(axis=1, keepdims=True)
    result = np.array(np.broadcast_to(prior, (len(head), prior.shape[-1])))
    rest = result[:, known].sum(axis=1, keepdims=True)
    result[:, known] = np.where(total > 0, rest * told / np.where(total > 0, total, 1.0), result[:, known])
    return result

"""What a trained network and the neighbors of an image make of its label, where labels may be wrong."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.ops import same_group
from attnknn.ops.keys import NO_ROW
from attnknn.ops.select import exact_topk
from attnknn.train.image_task import ImageTask, Pictures
from attnknn.train.rows import Rows

_NEIGHBORS: Final = 200  # so many that wrong labels among them, spread over the classes, do not outvote the right
_SCALE: Final = 10.0
_TRUST: Final = 2.0  # in the neighbors, who see more labels than the head's cross-entropy does of one image
_MOST_WRONG: Final = 0.9  # of the share that leaves labels as likely to name one class as another
_PRIOR: Final = 1e-3  # so that no class is impossible


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """How much of each class an image is held to be: (n, classes) of training images, (m, classes) of others."""

    rows: Tensor
    held: Tensor | None

    @property
    def digest(self) -> str:
        """Tells what a training learns from others; of held-out images it learns nothing."""
        return hashlib.sha256(self.rows.cpu().numpy().tobytes()).hexdigest()

    def keeps_classes(self, given: NDArray[np.int64]) -> bool:
        """Whether every class has a quarter of as many training images as it was given, and an eighth of those."""
        each = given, self.labels()[0], given[self.confirmed(given)]
        before, after, sure = (np.bincount(some, minlength=self.rows.shape[1]) for some in each)
        return bool(((4 * after >= before) & (8 * sure >= before)).all())

    def confirmed(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of the training images whose label is believed in, to learn from.

        What is believed of the others is wrong too often: a training that learns it learns to be of the same
        opinion as the one before.
        """
        return np.flatnonzero(self.labels()[0] == given)

    def wrong(self, given: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
        """The share of wrong labels among those given to held-out images; 0 where none were held out.

        Of the surer half nearly all is believed rightly, so it is the share of labels that disagree there. Fewer
        images would leave more to chance, more would count beliefs that are wrong as labels that are. Training
        images would not do: the confirmed ones were taught to agree with their label.

        Args:
            given: (m,) labels of the held-out images.
            weights: (m,) how much each of them counts.
        """
        if self.held is None:
            return 0.0
        held = self.held.double().cpu().numpy()
        believed = held.argmax(axis=1)
        doubt = np.sort(held, axis=1)[:, :-1].sum(axis=1)  # the largest is often 1, rounded
        sure = doubt <= np.median(doubt)
        share = np.average(believed[sure] != given[sure], weights=weights[sure])
        return float(min(share, _MOST_WRONG * (1 - 1 / held.shape[1])))

    def labels(self) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """The likeliest class of each image."""
        both = (None if each is None else each.argmax(dim=1).cpu().numpy() for each in (self.rows, self.held))
        first, second = both
        return np.asarray(first, np.int64), second


@torch.no_grad()
def beliefs_of(task: ImageTask, rows: Rows, held: Rows | None) -> Beliefs:
    """What a trained task makes of images, those that it learned from among them or not.

    Leave-one-out: an image's own label has no say in what is believed of it, but through what was trained.
    """
    task.model.eval()
    keys, _ = task.embedded(task.rows)
    network, device = task.model.network, task.device
    asked = Pictures(network, rows, device)
    own = _posterior(task, asked, keys, same_group(asked.groups, task.rows.groups))
    if held is None:
        return Beliefs(own, None)
    return Beliefs(own, _posterior(task, Pictures(network, held, device), keys, None))


def _posterior(task: ImageTask, asked: Pictures, keys: Tensor, hidden: Tensor | None) -> Tensor:
    """(q, classes): neighbors and head, combined as if they were independent witnesses."""
    rows, (queries, logits) = task.rows, task.embedded(asked)
    found = exact_topk(queries, keys, _NEIGHBORS, metric="cosine", leave_out=hidden)
    there = found.rows != NO_ROW
    at = found.rows.where(there, torch.zeros_like(found.rows))
    near = (1 - found.distances).float().masked_fill(~there, -torch.inf)
    weights = (_SCALE * near + rows.logs[at]).softmax(dim=1)
    votes = torch.stack([weights.new_zeros(len(weights))] * rows.targets.shape[1], dim=1)
    for rank in range(at.shape[1]):  # (q, k, classes) at once would not fit
        votes += weights[:, rank, None] * rows.targets[at[:, rank]]
    votes = (votes + _PRIOR / votes.shape[1]) / (1 + _PRIOR)
    return (_TRUST * votes.log() + logits.log_softmax(dim=1)).softmax(dim=1)

"""Training of the attention on top of fixed vectors, by the vote that will be served."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnknn.attend import (
    AttentionOptions,
    LearnedWeighting,
    MultiHeadNeighborAttention,
    Weigher,
    Weighting,
    logit_size,
)
from attnknn.attend.attention import SCALES
from attnknn.attend.weighting import row_weights
from attnknn.bank import MemoryBank, Neighbors
from attnknn.ops import evidence, vote
from attnknn.train.judges import Hearing, Judges
from attnknn.train.loop import History, LoopOptions, run
from attnknn.train.losses import robust_loss, served_vote, weight_entropy
from attnknn.train.rows import digest
from attnknn.train.seeds import random_kept, seed_torch
from attnknn.train.threads import threads_for
from attnknn.train.together import as_one

Floats = NDArray[np.float64]

_CELLS: Final = 600_000  # training queries x neighbors
EPOCHS: Final = 8
_BATCH: Final = 256
_LR: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Seen:
    """Judges with the neighbors that a bank found for them."""

    bank: MemoryBank
    judges: Judges
    near: Neighbors
    prior: Floats  # (judges, classes)

    @classmethod
    def by(cls, hearing: Hearing, k: int, class_weight: Floats, most: int) -> Seen:
        """The first of the judges, so many that judges x k stays below ``most``."""
        judges = hearing.judges.take(slice(max(_BATCH, most // min(k, len(hearing.bank)))))
        near = judges.neighbors(hearing.bank, k)
        return cls(hearing.bank, judges, near, judges.prior(hearing.bank, class_weight))

    def take(self, at: NDArray[np.int64] | slice) -> Seen:
        """Some of them."""
        return replace(self, judges=self.judges.take(at), near=self.near.take(at), prior=self.prior[at])

    def nll(self, weigher: Weigher, mass: float, class_weight: Floats) -> Floats:
        """(judges,) NLL of each judge's label under the vote."""
        return self.losses(self.votes(weigher, mass, class_weight), 0.0)

    def losses(self, votes: Floats, robust: float) -> Floats:
        """(judges,) robust loss of the judges' labels under votes (judges, classes)."""
        chances = votes[np.arange(len(self.judges)), self.judges.labels]
        found: Floats = robust_loss(torch.from_numpy(chances).log(), robust).numpy()
        return found

    def votes(self, weigher: Weigher, mass: float, class_weight: Floats) -> Floats:
        """(judges, classes) probabilities before calibration."""
        each = [votes for _, votes in self.answers(weigher, mass, class_weight)]
        return np.concatenate(each) if each else np.empty((0, len(class_weight)))

    def answers(self, weigher: Weigher, mass: float, class_weight: Floats) -> Iterator[tuple[Tensor, Floats]]:
        """Of some judges at a time: weights (some, k), and the votes that they make."""
        factor = class_weight if (class_weight != 1).any() else None
        for at in range(0, len(self.judges), 1024):
            part = self.take(slice(at, at + 1024))
            judges = part.judges
            weights = weigher(part.near, self.bank, judges.vectors, class_weight=factor, leaving_out=judges.rows)
            shares = evidence(weights, torch.from_numpy(part.near.labels), len(class_weight))
            yield weights, vote(shares, torch.from_numpy(part.prior), mass).numpy()


class VoteTask:
    """The attention learns to weigh the neighbors of training rows; see :class:`~attnknn.train.loop.Task`.

    Vectors stay as they are. A query's own vote is taken out of the reliability of its neighbors, of the
    prototypes and of the prior.

    Args:
        attention: What is trained; its options say how robust the loss is.
        learn: Training rows with their neighbors, leaving themselves out.
        held: Validation rows with theirs, or None.
        mass: Prior mass of the vote.
        class_weight: (classes,) factors.
        entropy: How much an even spread of the weights is encouraged.
    """

    def __init__(
        self,
        attention: MultiHeadNeighborAttention,
        learn: Seen,
        held: Seen | None,
        *,
        mass: float,
        class_weight: Floats,
        entropy: float = 0.0,
    ) -> None:
        self.model = attention
        self.learn, self.held, self.mass, self.class_weight = learn, held, mass, class_weight
        self.entropy = entropy
        self.robust = attention.options.robust
        self._weigher = LearnedWeighting(attention)
        self._factor = class_weight if (class_weight != 1).any() else None

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return -(-len(self.learn.judges) // _BATCH)

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Rows in random order."""
        order = torch.randperm(len(self.learn.judges), generator=random, device=random.device)
        yield from torch.split(order, _BATCH)

    def losses(self, batch: Tensor, random: torch.Generator) -> Mapping[str, Tensor]:
        """NLL of the vote, less the entropy of the weights where it is encouraged."""
        part = self.learn.take(batch.cpu().numpy())
        weights = self.weights(part)
        where = weights.device
        labels = torch.from_numpy(part.judges.labels).to(where)
        importance = torch.from_numpy(part.judges.weights * self.class_weight[part.judges.labels]).to(where)
        losses = {
            "vote": served_vote(
                weights,
                torch.from_numpy(np.where(part.near.found, part.near.labels, -1)).to(where),
                labels,
                torch.from_numpy(part.prior).to(where),
                max(self.mass, 1e-6),
                robust=self.robust,
                sample_weight=importance,
            )
        }
        if self.entropy:
            losses["entropy"] = -self.entropy * weight_entropy(weights)
        return losses

    def weights(self, part: Seen) -> Tensor:
        """Weights with their gradient."""
        facts = self._weigher.facts(part.near, part.bank, part.judges.vectors, leaving_out=part.judges.rows)
        where = self.model.unit.device
        prior = row_weights(part.near, self._factor)
        factor = None if prior is None else torch.from_numpy(prior).to(where)
        given = {name: value.to(where) for name, value in facts.items()}
        given["dists"] = given["dists"].float()
        weights: Tensor = self.model(**given, prior=factor)
        return weights

    def arrays(self) -> Iterator[NDArray[Any]]:
        """All data that it learns from and is judged by."""
        bank = self.learn.bank
        yield from (bank.vectors(bank.live), bank.labels(bank.live), bank.weights(bank.live))
        for seen in (self.learn, self.held):
            if seen is not None:
                judges = seen.judges
                yield from (judges.vectors, judges.labels, judges.weights, seen.near.distances)

    def validate(self) -> Mapping[str, float]:
        """NLL of the validation rows; where the loss is robust that loss, for NLL would choose against it.

        Beside it the mean scale of the heads, and the mean entropy of the weights, as a share of the most.
        """
        if self.held is None or len(self.held.judges) == 0:
            return {}
        answers = list(self.held.answers(self._weigher, max(self.mass, 1e-6), self.class_weight))
        weights = torch.cat([some for some, _ in answers])
        each = self.held.losses(np.concatenate([votes for _, votes in answers]), self.robust)
        importance = self.held.judges.weights * self.class_weight[self.held.judges.labels]
        return {
            "nll": float(np.average(each, weights=importance)),
            "scale": float(self.model.scales.mean()),
            "entropy": float(weight_entropy(weights)) / math.log(max(2, weights.shape[1])),
        }


def start_attention(
    weighting: Weighting, options: AttentionOptions, seen: Seen, *, seed: int
) -> MultiHeadNeighborAttention:
    """An attention that weighs as ``weighting`` does until it is trained, in units of what these judges see."""
    metric = seen.bank.metric
    _, low, high = SCALES[metric]
    gaps = np.abs(seen.near.distances[seen.near.found])
    unit = 1.0 if metric == "cosine" or not len(gaps) else _or_1(np.median(gaps))
    scale = float(np.clip(weighting.scale * unit, low, high))
    center = length = None
    if metric != "cosine":
        unit = scale / weighting.scale  # so that it starts as the softmax weighting, whatever the scale
        vectors = seen.judges.vectors.astype(np.float64)
        center = vectors.mean(axis=0)
        length = _or_1(np.linalg.norm(vectors - center, axis=1).mean())
    with random_kept(torch.device("cpu")):
        seed_torch(seed, torch.device("cpu"))
        return MultiHeadNeighborAttention(
            seen.bank.dim,
            options,
            metric=metric,
            scale=scale,
            unit=unit,
            center=None if center is None else torch.from_numpy(center),
            length=length,
        )


def _or_1(size: np.floating[Any]) -> float:
    """A size that can be divided by."""
    return float(size) if 0 < size < np.finfo(np.float32).max else 1.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What an attention learns from: rows to train on, and validation rows or None, with a bank for both.

    Rows that the bank holds leave themselves out.
    """

    bank: MemoryBank
    learn: Judges
    held: Judges | None


def train_attention(
    lessons: Sequence[Lesson],
    weighting: Weighting,
    options: AttentionOptions,
    *,
    k: int,
    mass: float,
    class_weight: Floats,
    entropy: float = 0.0,
    seed: int,
    device: str = "cpu",
    epochs: int | None = None,
    checkpoint: Path | None = None,
    progress: str | None = None,
) -> tuple[list[LearnedWeighting], History]:
    """Train an attention for each lesson; with validation rows all are of the epoch that is best for all.

    Epoch 0, where it weighs as ``weighting`` does, is a candidate too, unless the parts are always kept.

    Args:
        lessons: One, or the folds of a table.
        weighting: The softmax weighting that it starts as.
        options: Its parts.
        k: Neighbors of each row.
        mass: Prior mass of the vote.
        class_weight: (classes,) factors.
        entropy: How much an even spread of the weights is encouraged.
        seed: Of the start, the batches and dropout.
        device: Where.
        epochs: Stop after so many, on the same schedule; for a training without validation rows.
        checkpoint: File to save to and go on from.
        progress: Title of a progress bar.
    """
    tasks: list[VoteTask] = []
    for each in lessons:
        most = _CELLS // len(lessons)
        learners = Seen.by(Hearing(each.bank, each.learn), k, class_weight, most)
        held = None if each.held is None else Seen.by(Hearing(each.bank, each.held), k, class_weight, most)
        attention = start_attention(weighting, options, learners, seed=seed).to(device)
        tasks.append(VoteTask(attention, learners, held, mass=mass, class_weight=class_weight, entropy=entropy))
    loop = LoopOptions(
        epochs=EPOCHS,
        lr=_LR,
        weight_decay=1e-2,
        warmup=0.1,
        clip=math.sqrt(len(tasks)),
        validate_first=all(task.held is not None for task in tasks) and not options.always,
    )
    with threads_for(max(len(each.bank) for each in lessons)):
        history = run(
            as_one(tasks),
            loop,
            seed=seed,
            device=device,
            last=epochs,
            checkpoint=checkpoint,
            fingerprint=_fingerprint(tasks, weighting, k),
            progress=progress,
        )
    return [LearnedWeighting(task.model) for task in tasks], history


def _fingerprint(tasks: Sequence[VoteTask], weighting: Weighting, k: int) -> str:
    """What data and settings a checkpoint belongs to."""
    first = tasks[0]
    told = [weighting.state(), first.model.options.state(), k]
    told += [first.mass, first.entropy, first.class_weight.tolist()]
    return digest(told, (array for task in tasks for array in task.arrays()))


def part_sizes(
    weigher: LearnedWeighting, seen: Seen, mass: float, class_weight: Floats
) -> dict[str, dict[str, float]]:
    """What each part of an attention does to these judges: the size of its logits, the norm of its gradient."""
    task = VoteTask(weigher.attention, seen, None, mass=mass, class_weight=class_weight)
    part = seen.take(slice(_BATCH))
    facts = weigher.facts(part.near, part.bank, part.judges.vectors, leaving_out=part.judges.rows)
    where = weigher.attention.unit.device
    given = {name: value.to(where) for name, value in facts.items()}
    attention = weigher.attention
    attention.zero_grad()
    torch.autograd.backward(task.losses(torch.arange(len(part.judges)), torch.Generator())["vote"])
    with torch.no_grad():
        logits = attention.logit_parts(**given)
    found = {}
    for name, parameters in attention.parts().items():
        slopes = [each.grad.norm() for each in parameters if each.grad is not None]
        found[name] = {
            "gradient": float(torch.stack(slopes).norm()) if slopes else 0.0,
            "size": float(logit_size(logits[name], given["found"])),
        }
    attention.zero_grad(set_to_none=True)
    return found

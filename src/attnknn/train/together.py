"""Several trainings as one: a step of each at a time, and one best epoch for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnknn.train.loop import Task


class Together:
    """Tasks side by side, as one task; see :class:`~attnknn.train.loop.Task`.

    Folds that each kept the epoch they liked best would be judged by rows that chose it: what they promise would
    not be kept. The epoch that all like best is hardly chosen by any of them. What the loop counts, losses and
    the norm of the gradient, is of all tasks together.

    Args:
        tasks: On one device; the least number of steps of any is that of all.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(tasks)
        self.model = nn.ModuleList(task.model for task in self.tasks)

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return min(task.steps for task in self.tasks)

    def batches(self, random: torch.Generator) -> Iterator[tuple[Any, ...]]:
        """A batch of each."""
        yield from zip(*(task.batches(random) for task in self.tasks), strict=False)

    def losses(self, batch: tuple[Any, ...], random: torch.Generator) -> Mapping[str, Tensor]:
        """Sums of the losses of the same name, so that each task learns as if it were alone."""
        total: dict[str, Tensor] = {}
        for task, each in zip(self.tasks, batch, strict=True):
            for name, loss in task.losses(each, random).items():
                total[name] = total[name] + loss if name in total else loss
        return total

    def validate(self) -> Mapping[str, float]:
        """Means of the scores; nothing unless all have them."""
        scores = [task.validate() for task in self.tasks]
        shared = set.intersection(*(set(each) for each in scores))
        return {name: sum(each[name] for each in scores) / len(scores) for name in scores[0] if name in shared}


def as_one(tasks: Sequence[Task]) -> Task:
    """One task as it is, several together."""
    return tasks[0] if len(tasks) == 1 else Together(tasks)

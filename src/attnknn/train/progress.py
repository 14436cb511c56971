"""How far a training is, on a terminal: the epoch, the loss, the validation NLL and the time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar(Protocol):
    """What the loop tells of its progress."""

    def step(self) -> None:
        """One more step is done."""

    def epoch(self, numbers: Mapping[str, float]) -> None:
        """One more epoch is done, with these numbers."""


class _Silent:
    def step(self) -> None:
        pass

    def epoch(self, numbers: Mapping[str, float]) -> None:
        pass


@contextmanager
def progress_bar(title: str | None, *, epochs: int, steps: int, done: int = 0) -> Iterator[Bar]:
    """A bar on stderr; silent without a title or where stderr is not a terminal.

    Args:
        title: What is trained.
        epochs: How many epochs there are at most.
        steps: How many steps an epoch has.
        done: Epochs that are done already.
    """
    if title is None or sys.stderr is None or not sys.stderr.isatty():
        yield _Silent()
        return
    # Not on top: rich is slow to import, and few who train look at a terminal.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    name, numbers = (TextColumn(each, markup=False) for each in ("{task.description}", "{task.fields[numbers]}"))
    with Progress(name, BarColumn(), numbers, TimeRemainingColumn(), console=console) as shown:
        yield _Shown(shown, title, epochs, steps, done)


class _Shown:
    def __init__(self, shown: Progress, title: str, epochs: int, steps: int, done: int) -> None:
        self._shown, self._epochs = shown, epochs
        start = described({"epoch": done}, epochs)
        self._task = shown.add_task(title, total=epochs * steps, completed=done * steps, numbers=start)

    def step(self) -> None:
        self._shown.advance(self._task)

    def epoch(self, numbers: Mapping[str, float]) -> None:
        self._shown.update(self._task, numbers=described(numbers, self._epochs))


def described(numbers: Mapping[str, float], epochs: int) -> str:
    """The numbers of an epoch that a bar shows.

    >>> described({"epoch": 3, "loss_total": 0.5, "validation_nll": 0.25}, 10)
    'epoch 3/10  loss 0.5000  nll 0.2500'
    """
    parts = [f"epoch {numbers['epoch']:.0f}/{epochs}"]
    for name, word in (("loss_total", "loss"), ("validation_nll", "nll")):
        if name in numbers:
            parts.append(f"{word} {numbers[name]:.4f}")
    return "  ".join(parts)

"""How far a training is, on a terminal: a bar with the time left, and the numbers of the last epochs."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

_SHOWN: Final = 6  # validated epochs in the table


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
    """A bar on stderr, below a table of the last epochs; silent without a title or where stderr is no terminal.

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
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    name, numbers = (TextColumn(each, markup=False) for each in ("{task.description}", "{task.fields[numbers]}"))
    bar = Progress(name, BarColumn(), numbers, TimeRemainingColumn(), console=console)
    with Live(bar, console=console, refresh_per_second=5) as live:
        yield _Shown(live, bar, title, epochs, steps, done)


class _Shown:
    def __init__(self, live: Live, bar: Progress, title: str, epochs: int, steps: int, done: int) -> None:
        self._live, self._bar, self._epochs = live, bar, epochs
        self._last: deque[Mapping[str, float]] = deque(maxlen=_SHOWN)
        start = described({"epoch": done}, epochs)
        self._task = bar.add_task(title, total=epochs * steps, completed=done * steps, numbers=start)

    def step(self) -> None:
        self._bar.advance(self._task)

    def epoch(self, numbers: Mapping[str, float]) -> None:
        from rich.console import Group
        from rich.table import Table

        self._bar.update(self._task, numbers=described(numbers, self._epochs))
        if not any(name.startswith("validation_") for name in numbers):
            return
        self._last.append(numbers)
        heads, body = tabled(self._last)
        table = Table(box=None, pad_edge=False)
        for head in heads:
            table.add_column(head, justify="right")
        for row in body:
            table.add_row(*row)
        self._live.update(Group(table, self._bar))


def tabled(epochs: Iterable[Mapping[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of epochs: what was lost where, the learning rate, and every validation score.

    >>> tabled([{"epoch": 2, "loss_nca": 0.5, "loss_total": 0.5, "lr": 0.25, "validation_nll": 1.5}])
    (['epoch', 'lr', 'loss nca', 'nll'], [['2', '0.25', '0.5', '1.5']])
    """
    each = list(epochs)
    left = ("epoch", "lr", "loss_total", "gradient_norm", "seconds")
    names = list(dict.fromkeys(name for numbers in each for name in numbers if name not in left))
    order = ["epoch", "lr", *(name for name in names if name.startswith("loss_")), *_scores(names)]
    heads = [name.removeprefix("validation_").replace("_", " ") for name in order]
    return heads, [[f"{numbers[name]:.4g}" if name in numbers else "" for name in order] for numbers in each]


def _scores(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("validation_")]


def described(numbers: Mapping[str, float], epochs: int) -> str:
    """The numbers of an epoch that a bar shows.

    >>> described({"epoch": 3, "loss_total": 0.5, "validation_nll": 0.25}, 10)
    'epoch 3/10  loss 0.5000  nll 0.2500'
    """
    parts = [f"epoch {numbers['epoch']:.0f}/{epochs}"]
    for name, word in (("loss_total", "loss"), ("validation_nll", "nll"), ("validation_mse", "mse")):
        if name in numbers:
            parts.append(f"{word} {numbers[name]:.4f}")
    return "  ".join(parts)

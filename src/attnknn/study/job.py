"""What a method of a study is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnknn.study.points import PLAIN_POINT, Point
from attnknn.study.recipe import Recipe
from attnknn.study.splits import Parts, Rows, Task

Floats = NDArray[np.float64]
T = TypeVar("T")

FITTED = "fitted "
"""Begins the key under which ``Job.shared`` has what a cell was made with."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One cell to fill.

    ``shared`` is what methods with the same seed and training rows left for each other. The recipe is as it is
    followed at the point; what the point changes in the bank alone is up to the method. ``left`` is a folder in
    which runs that share the work leave something for each other.
    """

    recipe: Recipe
    task: Task
    parts: Parts
    seed: int
    device: str = "cpu"
    shared: dict[str, Any] = field(default_factory=dict)
    point: Point = PLAIN_POINT
    left: Path | None = None

    def once(self, key: str, make: Callable[[], T]) -> tuple[T, float]:
        """What ``make`` gives and the seconds it took, made once for all methods that share it.

        What fails, fails once for all of them too: a training that cannot be done is not tried again.
        """
        if key not in self.shared:
            watch = Stopwatch()
            try:
                self.shared[key] = make(), watch.seconds
            except Exception as problem:
                self.shared[key] = _Failed(problem.with_traceback(None))  # whose frames would hold the data
                raise
        found: tuple[T, float] | _Failed = self.shared[key]
        if isinstance(found, _Failed):
            raise found.problem
        return found


@dataclass(frozen=True, slots=True)
class _Failed:
    """What was tried in vain, and why."""

    problem: Exception


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """Probabilities of the same rows, (rows, classes), and the seconds that the calibrated ones took."""

    calibrated: Floats
    uncalibrated: Floats
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A method with every setting fixed.

    Args:
        settings: What was chosen, fit for JSON.
        seconds: From the rows to here, choosing included.
        predict: Probabilities of rows of the task.
        save: Writes the model to a folder, where it can be saved.
        focus: A class whose recall is of interest, and the accuracy on all others.
        history: How the training went that it tells of, as ``history.told`` has it.
        attention: The same of the attention's own training, on fixed vectors.
    """

    settings: dict[str, Any]
    seconds: float
    predict: Callable[[Rows], Predictions]
    save: Callable[[Path], None] | None = None
    focus: int | None = None
    history: dict[str, list[float | None]] | None = None
    attention: dict[str, list[float | None]] | None = None


Method = Callable[[Job], Fitted]


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self._start

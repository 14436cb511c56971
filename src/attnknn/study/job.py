"""What a method of a study is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.study.points import PLAIN_POINT, Point
from attnknn.study.recipe import Recipe
from attnknn.study.splits import Parts, Rows, Task

Floats = NDArray[np.float64]

FITTED = "fitted "
"""Begins the key under which ``Job.shared`` has what a cell was made with."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One cell to fill.

    ``shared`` is what methods with the same seed and training rows left for each other. The recipe is as it is
    followed at the point; what the point changes in the bank alone is up to the method.
    """

    recipe: Recipe
    task: Task
    parts: Parts
    seed: int
    device: str = "cpu"
    shared: dict[str, Any] = field(default_factory=dict)
    point: Point = PLAIN_POINT


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
    """

    settings: dict[str, Any]
    seconds: float
    predict: Callable[[Rows], Predictions]
    save: Callable[[Path], None] | None = None
    focus: int | None = None
    history: dict[str, list[float | None]] | None = None


Method = Callable[[Job], Fitted]


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self._start

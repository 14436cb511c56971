"""What every calibrator promises, what it is fitted on, and the one that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import Floats, Ints, as_floats, checked_probabilities

MIN_ROWS = 5  # fewer rows say nothing about calibration
LEAST = 1e-12  # chance of a class that is possible: well above the rounding of 1 less it
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Validation:
    """Checked predictions on rows that were not trained on, without rows of weight 0."""

    probabilities: Floats  # (n, classes)
    labels: Ints  # (n,), -1 for a class the model does not know
    weight: Floats  # (n,), above 0
    density: Floats | None = None  # (n,), mean similarity of the k neighbors

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, keep: NDArray[np.bool_]) -> Validation:
        """The rows to keep."""
        density = None if self.density is None else self.density[keep]
        return Validation(self.probabilities[keep], self.labels[keep], self.weight[keep], density)


class Calibrator(Protocol):
    """A map from probabilities to probabilities: finite, rows summing to 1, what was 0 stays 0."""

    kind: ClassVar[str]

    @classmethod
    def fit(cls, validation: Validation) -> Calibrator:
        """Learn from validation predictions."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Calibrator:
        """The calibrator that ``state`` was taken from."""
        ...

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """Calibrated probabilities ``(n, classes)``; ``density`` ``(n,)`` is read where the kind needs it."""
        ...

    def state(self) -> dict[str, Any]:
        """What was learned, fit for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Leaves probabilities as they are, up to rounding in their sum."""

    kind: ClassVar[str] = "none"

    @classmethod
    def fit(cls, validation: Validation) -> Identity:
        """Nothing to learn."""
        return cls()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Identity:
        """Nothing to restore."""
        return cls()

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """The same probabilities."""
        return summed_to_one(checked_probabilities(probabilities))

    def state(self) -> dict[str, Any]:
        """Only the kind."""
        return {"kind": self.kind}


def summed_to_one(mass: Floats) -> Floats:
    """Rows divided by their sum, except those that sum to 1 already: dividing would only add noise."""
    total = mass.sum(axis=1, keepdims=True)
    return mass / np.where(np.abs(total - 1) <= 1e-13, 1.0, total)


def kept_possible(mass: Floats, given: Floats) -> Floats:
    """Mass that is 0 exactly where ``given`` is: "unlikely" must not become "impossible", nor the rest certain."""
    return np.where(given > 0, np.maximum(mass, LEAST), 0.0)


def checked_density(density: ArrayLike | None, rows: int) -> Floats:
    """Density of shape ``(rows,)``, finite."""
    if density is None:
        raise InvalidInput("this calibrator needs density, the mean similarity of each row's neighbors")
    array = as_floats(density, "density")
    if array.shape != (rows,):
        raise InvalidInput(f"density must have shape ({rows},) like the rows, got {array.shape}")
    return array


def number(state: Mapping[str, Any], key: str, low: float = -LARGEST, high: float = LARGEST) -> float:
    """A finite number of a saved state, refused outside ``[low, high]``."""
    value = state.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"calibrator state needs a number {key!r}, got {value!r}")
    if not low <= value <= high:  # NaN fails too, and so does a whole number beyond float
        raise InvalidInput(f"calibrator state {key!r} must lie in [{low}, {high}], got {value!r}")
    return float(value)

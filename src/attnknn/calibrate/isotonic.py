"""Isotonic regression of each class against the rest, then renormalized: a reference without a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attnknn.calibrate.calibrator import Validation, kept_possible, number, summed_to_one
from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import Floats, as_floats, checked_probabilities

Knots: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # probability in, probability out


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising step line per class, mixed with a small share of the input.

    Steps can reach 0. The output is ``(1 - share) * steps + share * input``, so a class that the input
    held possible stays possible; ``share`` is ``1 / (n + 1)`` for n validation rows. Rows where every
    class's step is 0 keep their input.
    """

    curves: tuple[Knots, ...]  # one per class
    share: float
    kind: ClassVar[str] = "isotonic"

    @classmethod
    def fit(cls, validation: Validation) -> Isotonic:
        """One isotonic regression per class: that class against the rest."""
        columns = enumerate(validation.probabilities.T)
        curves = tuple(_fitted(p, validation.labels == c, validation.weight) for c, p in columns)
        return cls(curves, 1 / (len(validation) + 1))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Isotonic:
        """The curves saved in ``state``."""
        curves = state.get("curves")
        if not isinstance(curves, list) or not curves:
            raise InvalidInput(f"calibrator state needs a list 'curves', got {type(curves).__name__}")
        return cls(tuple(_restored(curve) for curve in curves), number(state, "share", 0.0, 1.0))

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """Probabilities read off the curves."""
        given = summed_to_one(checked_probabilities(probabilities))
        if given.shape[1] != len(self.curves):
            raise InvalidInput(f"fitted for {len(self.curves)} classes, got {given.shape[1]} columns")
        columns = zip(given.T, self.curves, strict=True)
        steps = np.stack([np.interp(p, *knots) for p, knots in columns], axis=1)
        steps[given == 0] = 0.0
        empty = ~steps.any(axis=1)
        steps[empty] = given[empty]
        steps = summed_to_one(steps)
        # as a step towards the input, so that 1.0 mixed with 1.0 is exactly 1.0
        mixed = steps + self.share * (given - steps)
        return summed_to_one(kept_possible(mixed, given))

    def state(self) -> dict[str, Any]:
        """Kind, share and curves."""
        curves = [[list(x), list(y)] for x, y in self.curves]
        return {"kind": self.kind, "share": self.share, "curves": curves}


def _fitted(probability: Floats, outcome: ArrayLike, weight: Floats) -> Knots:
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=0.0, y_max=1.0)
    model.fit(probability, np.asarray(outcome, dtype=np.float64), sample_weight=weight)
    return tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist())


def _restored(curve: object) -> Knots:
    if not isinstance(curve, list) or len(curve) != 2:
        raise InvalidInput("each curve of an isotonic calibrator must be two lists, in and out")
    x, y = (as_floats(values, "curve") for values in curve)
    if x.ndim != 1 or not len(x) or x.shape != y.shape:
        raise InvalidInput(f"a curve needs two lists of equal length, got shapes {x.shape} and {y.shape}")
    if (np.diff(x) <= 0).any() or (np.diff(y) < 0).any() or y[0] < 0 or y[-1] > 1:
        raise InvalidInput("a curve must rise in both lists, and its output must stay within [0, 1]")
    return tuple(x.tolist()), tuple(y.tolist())

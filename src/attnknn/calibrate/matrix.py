"""Matrix scaling: ``softmax(W log p + b)``, a reference that may move chances from any class to any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnknn.calibrate.calibrator import Validation, kept_possible, summed_to_one
from attnknn.calibrate.temperature import Temperature
from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import Floats, Ints, as_floats, checked_probabilities
from attnknn.metrics.scores import true_probability

FEWEST: Final = 50
"""Rows below which a matrix is the plain temperature, whatever the number of classes."""

PER_CLASS: Final = 10
"""Rows for each class below which a matrix is the plain temperature."""

_FOLDS: Final = 5
_REACHES: Final = (0.03, 0.1, 0.3, 1.0, 3.0)  # how far the logits may stray from those of a temperature
_LEAST_SPREAD: Final = 0.1  # logs that hardly differ are not blown up
_MOST: Final = 1e6  # of any number in a saved state: beyond it the logits could overflow
_STEPS: Final = 500
_ROUGHLY: Final = 1e-4  # of the NLL: enough to choose a reach by

Row: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix on the logs of the probabilities, shrunk towards one temperature T.

    The NLL is convex in ``W`` and ``b``. Their distance from ``I / T`` and 0 is penalized, diagonal included, as
    a Gaussian prior would; its width is the one that predicts held-out rows best. W is ``I / T`` where the rows
    are fewer than 50 or than 10 for each class, and where the best width does not beat the temperature on
    held-out rows by more than a standard error. A step of the fit costs rows times classes squared.

    Args:
        weights: ``W``, a row for each class.
        bias: ``b``.
        absent: Stands for the log of a class that is impossible in a row, so that it says nothing of the others.
    """

    weights: tuple[Row, ...]
    bias: Row
    absent: Row
    kind: ClassVar[str] = "matrix"

    @classmethod
    def fit(cls, validation: Validation) -> Matrix:
        """The weights of least penalized NLL; on its own rows never a larger NLL than one temperature gives.

        Rows whose true class has probability 0 are left out: no weights make them possible.
        """
        inverse, classes = 1 / Temperature.fit(validation).value, validation.probabilities.shape[1]
        rows = validation.where(true_probability(validation.probabilities, validation.labels) > 0)
        if classes < 2 or len(rows) < max(FEWEST, PER_CLASS * classes):
            return cls.of(inverse * np.eye(classes), np.zeros(classes), np.zeros(classes))
        problem, typical, spread = _Problem.of(rows, inverse)
        shift = _chosen(problem)
        turn = shift[:, :-1] / spread
        return cls.of(inverse * np.eye(classes) + turn, shift[:, -1] - turn @ typical, typical)

    @classmethod
    def of(cls, weights: Floats, bias: Floats, absent: Floats) -> Matrix:
        """The same from arrays."""
        return cls(tuple(map(tuple, weights.tolist())), tuple(bias.tolist()), tuple(absent.tolist()))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Matrix:
        """The weights saved in ``state``."""
        bias = _restored(state, "bias", 1)
        classes = len(bias)
        weights, absent = _restored(state, "weights", 2), _restored(state, "absent", 1)
        if weights.shape != (classes, classes) or absent.shape != bias.shape:
            raise InvalidInput(
                f"a matrix of {classes} classes needs weights of shape ({classes}, {classes}) and {classes} "
                f"numbers in absent, got shapes {weights.shape} and {absent.shape}"
            )
        return cls.of(weights, bias, absent)

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """Probabilities of the weighed logs."""
        given = summed_to_one(checked_probabilities(probabilities))
        if given.shape[1] != len(self.bias):
            raise InvalidInput(f"fitted for {len(self.bias)} classes, got {given.shape[1]} columns")
        possible = given > 0
        logits = _logs(given, np.asarray(self.absent)) @ np.asarray(self.weights).T + np.asarray(self.bias)
        top = np.where(possible, logits, -np.inf).max(axis=1, keepdims=True)
        # an impossible class may have any logit: it must not overflow before it is dropped
        mass = np.exp(np.minimum(logits - top, 0.0))
        return summed_to_one(kept_possible(mass, given))

    def state(self) -> dict[str, Any]:
        """Kind, weights, bias and what stands for impossible classes."""
        weights = [list(row) for row in self.weights]
        return {"kind": self.kind, "weights": weights, "bias": list(self.bias), "absent": list(self.absent)}

    def extended(self, place: NDArray[np.int64], classes: int) -> Matrix:
        """For more classes, class i so far being class ``place[i]``; a new one has the usual temperature alone."""
        old = np.asarray(self.weights)
        weights, bias, absent = old.diagonal().mean() * np.eye(classes), np.zeros(classes), np.zeros(classes)
        weights[np.ix_(place, place)] = old
        bias[place], absent[place] = self.bias, self.absent
        return self.of(weights, bias, absent)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Mean NLL as a function of a shift ``(classes, classes + 1)``: of the weights, then of the bias."""

    base: Floats  # (n, classes), logits at the temperature, -inf where impossible
    features: Floats  # (n, classes + 1), logs less their mean, over their spread, and 1 for the bias
    labels: Ints  # (n,)
    weight: Floats  # (n,)

    @classmethod
    def of(cls, rows: Validation, inverse: float) -> tuple[_Problem, Floats, float]:
        """The problem, and the means ``(classes,)`` and the spread that its logs were standardized by."""
        given = summed_to_one(rows.probabilities)
        possible = given > 0
        logs, counts = _logs(given, np.zeros(given.shape[1])), rows.weight[:, None] * possible
        total = counts.sum(axis=0)
        typical = np.divide((counts * logs).sum(axis=0), total, out=np.zeros(len(total)), where=total > 0)
        centered = np.where(possible, logs - typical, 0.0)
        spread = max(_LEAST_SPREAD, float(np.sqrt((counts * centered**2).sum() / total.sum())))
        features = np.hstack([centered / spread, np.ones((len(logs), 1))])
        base = np.where(possible, inverse * logs, -np.inf)
        return cls(base, features, rows.labels, rows.weight), typical, spread

    def where(self, keep: NDArray[np.bool_]) -> _Problem:
        """Some of the rows."""
        return _Problem(self.base[keep], self.features[keep], self.labels[keep], self.weight[keep])

    @property
    def none(self) -> Floats:
        """The shift that leaves the temperature alone."""
        return np.zeros((self.base.shape[1], self.features.shape[1]))

    @property
    def share(self) -> Floats:
        """(n,) weights that sum to 1."""
        return np.asarray(self.weight / self.weight.sum())

    def losses(self, shift: Floats) -> Floats:
        """NLL of each row."""
        return self._read(shift)[0]

    def solved(self, reach: float, start: Floats, near: float = 1e-10) -> Floats:
        """The shift of least NLL, up to ``near`` of it, where entries are thought to be as large as ``reach``."""
        from scipy.optimize import minimize

        share = self.share
        ridge = float((share**2).sum()) / reach**2  # rows of unequal weight count as fewer

        def value(flat: Floats) -> tuple[float, Floats]:
            losses, chances = self._read(flat.reshape(start.shape))
            chances[np.arange(len(losses)), self.labels] -= 1
            slopes = (share[:, None] * chances).T @ self.features
            return float(share @ losses + ridge * (flat @ flat) / 2), slopes.ravel() + ridge * flat

        found = minimize(
            value,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _STEPS, "gtol": 1e-6, "ftol": near},
        )
        return np.asarray(found.x).reshape(start.shape)

    def _read(self, shift: Floats) -> tuple[Floats, Floats]:
        """NLL and chances of each row."""
        logits = self.base + self.features @ shift.T
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        total = chances.sum(axis=1, keepdims=True)
        return np.log(total[:, 0]) - logits[np.arange(len(logits)), self.labels], chances / total


def _chosen(problem: _Problem) -> Floats:
    """The shift at the reach that predicts held-out rows best; none where that is within a standard error."""
    fold = _dealt(problem.labels)
    within = [(problem.where(fold != at), problem.where(fold == at)) for at in range(_FOLDS)]
    found = [problem.none] * _FOLDS
    plain, share = problem.losses(problem.none), problem.share
    best, reach, start = plain, 0.0, problem.none
    for tried in _REACHES:
        found = [fit.solved(tried, before, _ROUGHLY) for (fit, _), before in zip(within, found, strict=True)]
        held = np.empty_like(plain)
        for at, (_, left) in enumerate(within):
            held[fold == at] = left.losses(found[at])
        if not share @ held < share @ best:  # further reaches bend more, and worse
            break
        best, reach, start = held, tried, np.mean(found, axis=0)
    gain = plain - best
    mean = float(share @ gain)
    error = float(np.sqrt(share**2 @ (gain - mean) ** 2))
    return problem.solved(reach, start) if mean > error else problem.none


def _dealt(labels: Ints) -> Ints:
    """The fold of each row; the rows of a class are dealt out one by one."""
    fold = np.empty_like(labels)
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % _FOLDS
    return fold


def _logs(given: Floats, absent: Floats) -> Floats:
    return np.log(given, out=np.tile(absent, (len(given), 1)), where=given > 0)


def _restored(state: Mapping[str, Any], key: str, axes: int) -> Floats:
    array = as_floats(state.get(key), f"calibrator state {key!r}")  # type: ignore[arg-type]
    if array.ndim != axes or not array.size:
        raise InvalidInput(f"calibrator state needs {axes}-dimensional numbers {key!r}, got shape {array.shape}")
    if np.abs(array).max() > _MOST:
        raise InvalidInput(f"calibrator state {key!r} must lie in [-{_MOST:g}, {_MOST:g}]")
    return array

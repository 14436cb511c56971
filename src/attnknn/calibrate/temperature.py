"""Temperature: ``p^(1/T)``, renormalized, with one T for all rows or one that follows density.

T above 1 softens, below 1 sharpens; the order of the classes stays. T lies in [0.05, 20].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from attnknn.calibrate.calibrator import (
    LEAST,
    MIN_ROWS,
    Validation,
    checked_density,
    kept_possible,
    number,
    summed_to_one,
)
from attnknn.metrics.inputs import Floats, Ints, checked_probabilities
from attnknn.metrics.scores import true_probability

COLDEST, HOTTEST = 0.05, 20.0
LOG_RANGE = (float(np.log(COLDEST)), float(np.log(HOTTEST)))
RIDGE = 1e-4  # on w1: decides only where the data do not
SMALLEST_GAIN = 1e-12  # in mean NLL; below it two temperatures are equally good
FARTHEST = 4.0  # standard deviations: beyond the rows it was fitted on, T stays as at their edge


@dataclass(frozen=True, slots=True)
class Temperature:
    """One temperature for every row."""

    value: float = 1.0
    kind: ClassVar[str] = "temperature"

    @classmethod
    def fit(cls, validation: Validation) -> Temperature:
        """The T of least NLL, and 1 where no other is better.

        Rows whose true class has probability 0 are left out: no T makes them possible.
        """
        problem = _Problem.of(validation)
        return cls(float(np.clip(np.exp(problem.best_constant()), COLDEST, HOTTEST)))

    @classmethod
    def through_noise(
        cls, probabilities: ArrayLike, given: Ints, sample_weight: Floats, wrong: ArrayLike
    ) -> Temperature:
        """The T of least NLL of labels that may be wrong, and then name any other class alike.

        So the probabilities are of the true labels, although only given ones were seen.

        Args:
            probabilities: (n, classes).
            given: (n,) labels.
            sample_weight: (n,).
            wrong: How likely a label is to be wrong, for all rows or (n,) for each. It cannot be fitted along
                with T: where most rows are equally sure, a hot T explains the same labels as wrong ones do.
        """
        checked, rate = checked_probabilities(probabilities), np.asarray(wrong, np.float64)
        share, others = sample_weight / sample_weight.sum(), max(1, checked.shape[1] - 1)

        def loss(log_t: float) -> float:
            own = _powered(checked, np.full(len(checked), np.exp(log_t)))[np.arange(len(checked)), given]
            seen = (1 - rate) * own + rate * (1 - own) / others
            return float(-np.log(np.maximum(seen, LEAST)) @ share)

        # A wrong label costs only so much, so there may be several valleys: first which, then where in it.
        tried = np.linspace(*LOG_RANGE, 121)
        near, step = min(tried, key=loss), tried[1] - tried[0]
        best = min(np.linspace(near - step, near + step, 21), key=loss)
        return cls(float(np.clip(np.exp(best), COLDEST, HOTTEST)))

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Temperature:
        """The temperature saved in ``state``."""
        return cls(number(state, "temperature", COLDEST, HOTTEST))

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """Probabilities at this temperature."""
        checked = checked_probabilities(probabilities)
        return _powered(checked, np.full(len(checked), self.value))

    def state(self) -> dict[str, Any]:
        """Kind and temperature."""
        return {"kind": self.kind, "temperature": self.value}


@dataclass(frozen=True, slots=True)
class DensityTemperature:
    """``T(x) = exp(w0 + w1 * z)``, z the standardized mean similarity of the neighbors of x.

    Args:
        w0: Log temperature at the mean density.
        w1: Change of log temperature per standard deviation of density.
        mean: Mean density of the validation rows.
        std: Standard deviation of it.
    """

    w0: float
    w1: float
    mean: float
    std: float
    kind: ClassVar[str] = "density"

    @classmethod
    def fit(cls, validation: Validation) -> DensityTemperature:
        """Weights of least NLL plus a tiny ridge; never a larger NLL than one temperature gives."""
        density = checked_density(validation.density, len(validation))
        mean = float(np.average(density, weights=validation.weight))
        std = float(np.sqrt(np.average((density - mean) ** 2, weights=validation.weight)))
        if std <= 1e-12 * max(1.0, abs(mean)):  # constant up to rounding: z would be noise
            return cls(_Problem.of(validation).best_constant(), 0.0, mean, 1.0)
        problem = _Problem.of(validation, (density - mean) / std)
        return cls(*problem.best_line(), mean, std)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DensityTemperature:
        """The weights saved in ``state``."""
        w0, w1, mean = (number(state, key) for key in ("w0", "w1", "mean"))
        return cls(w0, w1, mean, number(state, "std", low=float(np.finfo(np.float64).tiny)))

    def temperature(self, density: ArrayLike) -> Floats:
        """Temperature of each row, ``(n,)``."""
        array = checked_density(density, np.size(density))
        with np.errstate(over="ignore"):
            z = np.clip((array - self.mean) / self.std, -FARTHEST, FARTHEST)
            return np.asarray(np.exp(np.clip(self.w0 + self.w1 * z, *LOG_RANGE)))

    def transform(self, probabilities: ArrayLike, density: ArrayLike | None = None) -> Floats:
        """Probabilities, each row at its own temperature."""
        checked = checked_probabilities(probabilities)
        return _powered(checked, self.temperature(checked_density(density, len(checked))))

    def state(self) -> dict[str, Any]:
        """Kind, weights, and the mean and deviation that standardize density."""
        return {"kind": self.kind, "w0": self.w0, "w1": self.w1, "mean": self.mean, "std": self.std}


@dataclass(frozen=True, slots=True)
class _Problem:
    """Mean NLL as a function of the rows' log temperatures."""

    logs: Floats  # (n, classes), log probabilities, -inf where 0
    labels: Ints  # (n,)
    share: Floats  # (n,), weights that sum to 1
    z: Floats  # (n,), standardized density

    @classmethod
    def of(cls, validation: Validation, z: Floats | None = None) -> _Problem:
        z = np.zeros(len(validation)) if z is None else z
        possible = true_probability(validation.probabilities, validation.labels) > 0
        rows = validation.where(possible)
        share = rows.weight / max(rows.weight.sum(), np.finfo(np.float64).tiny)
        return cls(_log(rows.probabilities), rows.labels, share, z[possible])

    def best_constant(self) -> float:
        """Log of the one temperature of least NLL."""
        from scipy.optimize import minimize_scalar

        if len(self.labels) < MIN_ROWS:
            return 0.0
        # convex in 1/T, hence one valley in log T
        found = minimize_scalar(
            lambda log_t: self.loss(float(log_t)), bounds=LOG_RANGE, method="bounded", options={"xatol": 1e-7}
        )
        return self._better(float(found.x), 0.0)

    def best_line(self) -> tuple[float, float]:
        """Weights ``(w0, w1)`` of least NLL."""
        from scipy.optimize import minimize

        flat = (self.best_constant(), 0.0)
        if len(self.labels) < MIN_ROWS:
            return flat
        found = minimize(self._ridged, flat, jac=True, method="L-BFGS-B", bounds=[LOG_RANGE, (-10, 10)])
        w0, w1 = (float(w) for w in found.x)
        return (w0, w1) if self.loss(w0, w1) < self.loss(*flat) - SMALLEST_GAIN else flat

    def loss(self, w0: float, w1: float = 0.0) -> float:
        """Mean NLL at ``T = exp(w0 + w1 * z)``."""
        return self._loss_and_slopes(w0, w1)[0]

    def _better(self, log_t: float, default: float) -> float:
        return log_t if self.loss(log_t) < self.loss(default) - SMALLEST_GAIN else default

    def _ridged(self, w: Floats) -> tuple[float, Floats]:
        loss, slopes = self._loss_and_slopes(float(w[0]), float(w[1]))
        return loss + RIDGE * float(w[1]) ** 2, slopes + np.array([0.0, 2 * RIDGE * w[1]])

    def _loss_and_slopes(self, w0: float, w1: float) -> tuple[float, Floats]:
        raw = w0 + w1 * self.z
        inverse = np.exp(-np.clip(raw, *LOG_RANGE))
        scaled = self.logs * inverse[:, None]
        top = scaled.max(axis=1, keepdims=True)
        mass = np.exp(scaled - top)
        total = mass.sum(axis=1, keepdims=True)
        true = np.arange(len(self.labels)), self.labels
        nll = np.log(total[:, 0]) + top[:, 0] - scaled[true]
        # d nll / d log T = (true logit - expected logit); a class of probability 0 expects nothing
        expected = (mass / total * np.where(mass > 0, scaled, 0.0)).sum(axis=1)
        free = (raw > LOG_RANGE[0]) & (raw < LOG_RANGE[1])
        slope = self.share * free * (scaled[true] - expected)
        return float(self.share @ nll), np.array([slope.sum(), slope @ self.z])


def _log(probabilities: Floats) -> Floats:
    return np.log(probabilities, out=np.full_like(probabilities, -np.inf), where=probabilities > 0)


def _powered(probabilities: Floats, temperature: Floats) -> Floats:
    logs = _log(probabilities) / temperature[:, None]
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    return summed_to_one(kept_possible(mass, probabilities))

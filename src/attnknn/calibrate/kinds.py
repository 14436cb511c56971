"""The kinds by name: fit one, save its state, restore it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from attnknn.calibrate.calibrator import MIN_ROWS, Calibrator, Identity, Validation, checked_density
from attnknn.calibrate.isotonic import Isotonic
from attnknn.calibrate.matrix import Matrix
from attnknn.calibrate.temperature import DensityTemperature, Temperature
from attnknn.errors import InvalidInput
from attnknn.metrics.inputs import checked, checked_weight

CALIBRATORS: dict[str, type[Calibrator]] = {
    "none": Identity,
    "temperature": Temperature,
    "density": DensityTemperature,
    "isotonic": Isotonic,
    "matrix": Matrix,
}


def fit_calibrator(
    kind: str,
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    density: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> Calibrator:
    """Fit a calibrator on validation predictions.

    Args:
        kind: One of ``CALIBRATORS``.
        probabilities: Predictions on validation rows, ``(n, classes)``.
        labels: Their true classes, ``(n,)``.
        density: Mean similarity of each row's neighbors, ``(n,)``; ``"density"`` needs it.
        sample_weight: How much each row counts, ``(n,)``.

    Returns:
        The calibrator; ``Identity`` when fewer than 5 rows carry weight.

    Example:
        >>> calibrator = fit_calibrator("temperature", [[0.9, 0.1]] * 10, [0] * 7 + [1] * 3)
        >>> calibrator.transform([[0.9, 0.1]]).round(3).tolist()
        [[0.7, 0.3]]
    """
    chosen = _kind(kind)
    checked_p, checked_y = checked(probabilities, labels)
    rows = len(checked_y)
    weight = checked_weight(sample_weight, rows)
    if density is not None or chosen is DensityTemperature:
        density = checked_density(density, rows)
    validation = Validation(checked_p, checked_y, weight, density).where(weight > 0)
    return chosen.fit(validation) if len(validation) >= MIN_ROWS else Identity()


def calibrator_from_state(state: Mapping[str, Any]) -> Calibrator:
    """The calibrator whose ``state()`` this is; refuses what no calibrator could have written."""
    if not isinstance(state, Mapping):
        raise InvalidInput(f"calibrator state must be a mapping, got {type(state).__name__}")
    return _kind(state.get("kind")).from_state(state)


def _kind(kind: object) -> type[Calibrator]:
    if not isinstance(kind, str) or kind not in CALIBRATORS:
        raise InvalidInput(f"calibration must be one of {', '.join(CALIBRATORS)}, got {kind!r}")
    return CALIBRATORS[kind]

"""Probabilities to honest probabilities, fitted on validation predictions the same way for every method."""

from attnknn.calibrate.calibrator import Calibrator, Identity
from attnknn.calibrate.isotonic import Isotonic
from attnknn.calibrate.kinds import CALIBRATORS, calibrator_from_state, fit_calibrator
from attnknn.calibrate.matrix import Matrix
from attnknn.calibrate.prior import fit_prior_mass
from attnknn.calibrate.temperature import DensityTemperature, Temperature

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "DensityTemperature",
    "Identity",
    "Isotonic",
    "Matrix",
    "Temperature",
    "calibrator_from_state",
    "fit_calibrator",
    "fit_prior_mass",
]

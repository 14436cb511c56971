"""Smooth calibration error (Blasiok and Nakkiran, 2023): gaps under a kernel instead of bins.

``smECE(sigma)`` is the integral of ``|E[gap * K_sigma(t, p)]|`` over ``t`` in [0, 1], K a Gaussian that
is reflected at both ends. It falls as sigma grows, and the error is where it equals sigma itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnknn.metrics.inputs import Floats
from attnknn.metrics.scores import sums

GRID = 1024  # cells of [0, 1]; a row moves by at most half a thousandth
HALVINGS = 24  # sigma to 6e-8, far below what the grid resolves


def smooth_pool(stated: Floats) -> Callable[[Floats, Floats], Floats]:
    """Smooth error of gaps at the stated probabilities, ready for any draw of gaps."""
    place = np.clip(stated * GRID - 0.5, 0, GRID - 1)
    cell = np.minimum(place.astype(np.int64), GRID - 2)
    share = place - cell  # how far a row lies towards the next cell

    def pool(gaps: Floats, weights: Floats) -> Floats:
        scaled = gaps / weights.sum(axis=1, keepdims=True)
        return _fixed_point(sums(cell, scaled * (1 - share), GRID) + sums(cell + 1, scaled * share, GRID))

    return pool


def _fixed_point(mass: Floats) -> Floats:
    """Sigma at which the smoothed error equals sigma, per row of ``mass`` ``(draws, GRID)``."""
    from scipy.fft import dct

    waves = dct(mass, axis=1, norm="ortho")
    low, high = np.zeros(len(mass)), np.ones(len(mass))
    for _ in range(HALVINGS):
        sigma = (low + high) / 2
        above = _smoothed(waves, sigma) >= sigma
        low, high = np.where(above, sigma, low), np.where(above, high, sigma)
    return low  # exactly 0 where every gap is 0


def _smoothed(waves: Floats, sigma: Floats) -> Floats:
    from scipy.fft import idct

    # reflection makes cosines the eigenfunctions of the kernel, so smoothing is a product
    damping = np.exp(-0.5 * (np.pi * np.arange(GRID) * sigma[:, None]) ** 2)
    return np.asarray(np.abs(idct(waves * damping, axis=1, norm="ortho")).sum(axis=1))

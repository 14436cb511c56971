"""Smooth calibration error (Blasiok and Nakkiran, 2023): gaps under a kernel instead of bins.

``smECE(sigma)`` is the integral of ``|E[gap * K_sigma(t, p)]|`` over ``t`` in [0, 1], K a Gaussian that
is reflected at both ends. It falls as sigma grows, and the error is where it equals sigma itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnknn.metrics.inputs import Floats

GRID = 1024  # cells of [0, 1]; a row moves by at most half a thousandth
HALVINGS = 24  # sigma to 6e-8, far below what the grid resolves
STEP = 2.0**-HALVINGS
_SECANTS = 4


def smooth_pool(stated: Floats) -> Callable[[Floats, Floats], Floats]:
    """Smooth error of gaps at the stated probabilities, ready for any draw of gaps."""
    from scipy.sparse import csr_array

    place = np.clip(stated * GRID - 0.5, 0, GRID - 1)
    cell = np.minimum(place.astype(np.int64), GRID - 2)
    share = place - cell  # how far a row lies towards the next cell
    cells, row = np.stack([cell, cell + 1]).ravel(), np.tile(np.arange(len(stated)), 2)
    spread = csr_array((np.concatenate([1 - share, share]), (cells, row)), shape=(GRID, len(stated)))
    return lambda gaps, weights: _fixed_point((spread @ gaps.T).T / weights.sum(axis=1, keepdims=True))


def _fixed_point(mass: Floats) -> Floats:
    """Sigma at which the smoothed error equals sigma, per row of ``mass`` ``(draws, GRID)``."""
    from scipy.fft import dct

    waves = dct(mass, axis=1, norm="ortho")
    low = _near(waves)
    found = (_smoothed(waves, low) >= low) & (_smoothed(waves, low + STEP) < low + STEP)
    low[~found] = _bisected(waves[~found])
    return low


def _near(waves: Floats) -> Floats:
    """The multiple of ``STEP`` below the sigma that secants lead to: on logarithms the error is almost a line."""
    with np.errstate(divide="ignore", invalid="ignore"):  # without any gap there is no logarithm
        before = np.full(len(waves), np.log(0.01))
        gap_before = np.log(_smoothed(waves, np.exp(before))) - before
        at = before + gap_before / 1.5
        for _ in range(_SECANTS):
            gap = np.log(_smoothed(waves, np.exp(at))) - at
            step = np.where(gap == gap_before, 0.0, gap * (at - before) / (gap_before - gap))
            before, gap_before, at = at, gap, np.minimum(at + step, 0.0)
        sigma = np.exp(at)
    return np.asarray(np.minimum(np.floor(np.where(np.isfinite(sigma), sigma, 0.0) / STEP) * STEP, 1 - STEP))


def _bisected(waves: Floats) -> Floats:
    low, high = np.zeros(len(waves)), np.ones(len(waves))
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

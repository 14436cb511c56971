"""How the learning rate moves: in one cycle, in steps, when validation no longer improves, or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, get_args

Schedule = Literal["one-cycle", "constant", "step", "plateau"]
SCHEDULES: Final[tuple[Schedule, ...]] = get_args(Schedule)

PLATEAU: Final = 10
"""Epochs without a better validation NLL that ``plateau`` puts up with."""

_BETTER: Final = 1e-4  # of the best so far: less than that is no improvement


def one_cycle(at: float, steps: int, warmup: float) -> float:
    """The factor of the learning rate when ``at`` of ``steps`` steps are done.

    Rises linearly from 0 to 1 over the first ``warmup`` of them (a share), then falls to exactly 0 as a cosine.
    The loop takes the middle of each step, so that neither the first nor the last is lost.

    >>> [round(one_cycle(at, 4, 0.5), 4) for at in range(5)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rise = warmup * steps
    if at < rise:
        return at / rise
    return (1 + math.cos(math.pi * (at - rise) / (steps - rise))) / 2


def drops(losses: Sequence[float], patience: int = PLATEAU) -> int:
    """How often a rate falls that gives up on a loss after more than ``patience`` epochs without a better one.

    >>> drops([1.0, 0.5, 0.5, 0.5, 0.5], patience=2), drops([3.0, 2.0, 1.0], patience=1)
    (1, 0)
    """
    best, bad, fallen = math.inf, 0, 0
    for loss in losses:
        if loss < best - _BETTER * abs(best if math.isfinite(best) else 0.0):
            best, bad = loss, 0
        else:
            bad += 1
        if bad > patience:
            fallen, bad = fallen + 1, 0
    return fallen

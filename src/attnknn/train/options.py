"""How to train, as one value that is checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Final, Literal, get_args

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import OPTIMIZERS, OptimizerName
from attnknn.train.schedule import SCHEDULES, Schedule

Precision = Literal["float32", "bfloat16"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How to train. Every option is read, or refused.

    Args:
        epochs: How many, at most.
        optimizer: ``adamw``, ``adam`` (its decay is part of the gradient), or ``sgd`` with Nesterov's momentum.
        lr: The highest learning rate.
        weight_decay: Not on biases and parameters of one dimension.
        momentum: Of SGD; None is 0.9.
        schedule: ``one-cycle`` rises linearly for the first ``warmup`` of all steps, then falls to exactly 0 as a
            cosine; ``constant`` stays; ``step`` falls to ``lr_gamma`` of itself every ``lr_step`` epochs, and
            ``plateau`` after more than 10 epochs without a better validation NLL.
        warmup: Share of all steps, of ``one-cycle``.
        lr_step: Epochs; of ``step``, where None is 20.
        lr_gamma: Factor; of ``step`` and ``plateau``, where None is 0.1.
        clip: Greatest norm of the gradient, or None.
        ema: Decay of the moving average of the weights, or None for no average.
        best: The validation score that the best epoch is chosen by: the least ``nll``, or the most of another.
        patience: Epochs without a better one before the end, or None to run all.
        precision: ``bfloat16`` computes the losses under autocast.
        validate_first: Whether the untrained model is a candidate for the best.
        validate_every: Epochs from one validation to the next; the last epoch is always validated.
        lr_scales: Factors of the learning rate by module or parameter name.
    """

    epochs: int
    lr: float
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.0
    momentum: float | None = None
    schedule: Schedule = "one-cycle"
    warmup: float = 0.0
    lr_step: int | None = None
    lr_gamma: float | None = None
    clip: float | None = None
    ema: float | None = None
    best: str = "nll"
    patience: int | None = None
    precision: Precision = "float32"
    validate_first: bool = False
    validate_every: int = 1
    lr_scales: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr_scales", dict(self.lr_scales))
        _require(_whole(self.epochs), "epochs", "a whole number of at least 1", self.epochs)
        _require(0 < self.lr < math.inf, "lr", "above 0", self.lr)
        _require(self.optimizer in OPTIMIZERS, "optimizer", f"one of {', '.join(OPTIMIZERS)}", self.optimizer)
        _require(0 <= self.weight_decay < math.inf, "weight_decay", "at least 0", self.weight_decay)
        if self.momentum is not None:
            unread = f"None for {self.optimizer}, which does not read it"
            _require(self.optimizer == "sgd", "momentum", unread, self.momentum)
            _require(0 <= self.momentum < 1, "momentum", "in [0, 1)", self.momentum)
        _require(0 <= self.warmup < 1, "warmup", "a share of all steps, in [0, 1)", self.warmup)
        self._check_schedule()
        _require(self.clip is None or 0 < self.clip < math.inf, "clip", "above 0, or None", self.clip)
        _require(self.ema is None or 0 < self.ema < 1, "ema", "a decay in (0, 1), or None", self.ema)
        patient = self.patience is None or _whole(self.patience)
        _require(patient, "patience", "a whole number of at least 1, or None", self.patience)
        _require(self.precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", self.precision)
        every = _whole(self.validate_every)
        _require(every, "validate_every", "a whole number of at least 1", self.validate_every)
        for name, factor in self.lr_scales.items():
            _require(0 < factor < math.inf, f"lr_scales[{name!r}]", "above 0", factor)

    def _check_schedule(self) -> None:
        _require(self.schedule in SCHEDULES, "schedule", f"one of {', '.join(SCHEDULES)}", self.schedule)
        readers = {"warmup": ("one-cycle",), "lr_step": ("step",), "lr_gamma": ("step", "plateau")}
        for name, schedules in readers.items():
            if getattr(self, name) and self.schedule not in schedules:
                unread = f"left out: schedule={self.schedule!r} does not read it"
                _require(False, name, unread, getattr(self, name))
        _require(self.lr_step is None or _whole(self.lr_step), "lr_step", "a whole number of epochs", self.lr_step)
        falls = self.lr_gamma is None or 0 < self.lr_gamma <= 1
        _require(falls, "lr_gamma", "a factor above 0 and at most 1", self.lr_gamma)


def _whole(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 1


def _require(holds: bool, name: str, wanted: str, got: Any) -> None:
    if not holds:
        raise InvalidInput(f"{name} must be {wanted}, got {got!r}")

"""How the classifier trains: one frozen object, in which every option is read by something."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Final

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import OptimizerName
from attnknn.train.options import LoopOptions, Precision

SMALL: Final = 10_000
"""Rows below which training takes smaller steps, and more of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Training of an embedder by leave-one-out NCA, and of the attention on top of it by the served vote.

    None means "as usual" throughout; what is usual depends on the number of rows where the text says so. Of the
    attention only ``entropy`` and ``checkpoint`` speak; its own schedule is fixed.

    Args:
        epochs: 30, or 60 below 10,000 rows.
        lr: Highest learning rate; 3e-3, or 1e-3 below 10,000 rows.
        batch_size: Queries per step; 1,024, or an eighth of the rows where there are fewer, at least 64.
        candidates: Share of the training rows that each step draws as candidate neighbors.
        optimizer: ``adamw``, or ``sgd`` with Nesterov's ``momentum``.
        momentum: Of SGD; 0.9.
        weight_decay: Not on biases and other parameters of one dimension.
        warmup: Share of the steps in which the learning rate rises; then it falls to 0 as a cosine.
        clip: Greatest norm of the gradient; no limit.
        ema: Decay of the moving average of the weights that is kept.
        patience: Epochs without a better validation NLL after which to stop; 10. None runs all.
        label_smoothing: Share of each target that is spread over all classes.
        auxiliary: Weight of the cross-entropy of a linear head on the vectors.
        contrastive: Weight of the supervised contrastive loss of two views; a view has some columns swapped with
            those of other rows.
        temperature: Of the contrastive loss; 0.1.
        margin: Of the contrastive loss; 0.
        corruption: Share of the columns swapped in a view; 0.2.
        leave_one_out: Whether a row never sees itself while vectors are trained. Without it the nearest neighbor
            of a row is the row itself, and there is little to learn: for ablations.
        entropy: Weight of the entropy of the attention, which is then encouraged.
        embed_dim: Width of the vectors, for the embedders that have a choice.
        blocks: Residual blocks of the periodic embedder; 0.
        dropout: Share of the columns that a step hides from the periodic embedder. 0.4 below 10,000 rows that have
            categories or lack values, else 0: numbers alone tell more together than one by one.
        join_validation: Whether validation rows join the bank after fitting. Below 2,000 rows none is held out
            of the last training, and all are in the bank.
        precision: ``float32`` (as usual) or ``bfloat16`` (autocast; as usual for images on CUDA).
        checkpoint: A folder to save to after each epoch; a fit that was killed goes on from there.
    """

    epochs: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    candidates: float = 0.2
    optimizer: OptimizerName = "adamw"
    momentum: float | None = None
    weight_decay: float = 2e-4
    warmup: float = 0.1
    clip: float | None = None
    ema: float | None = 0.99
    patience: int | None = 10
    label_smoothing: float = 0.0
    auxiliary: float = 0.0
    contrastive: float = 0.0
    temperature: float | None = None
    margin: float | None = None
    corruption: float | None = None
    leave_one_out: bool = True
    entropy: float = 0.0
    embed_dim: int | None = None
    blocks: int | None = None
    dropout: float | None = None
    join_validation: bool = True
    precision: Precision | None = None
    checkpoint: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        try:
            self.loop(1)  # checks what the loop reads
        except TypeError as problem:
            raise InvalidInput(f"an option of training is of the wrong type: {problem}") from problem
        for name in ("batch_size", "embed_dim"):
            check_option(name, getattr(self, name), "a whole number of at least 1", whole=True)
        check_option("blocks", self.blocks, "a whole number of at least 0", whole=True, low=0)
        for name in ("auxiliary", "contrastive", "entropy"):
            check_option(name, getattr(self, name), "a weight of at least 0")
        check_option("label_smoothing", self.label_smoothing, "at least 0 and below 1", below=1)
        check_option("candidates", self.candidates, "a share above 0 and at most 1", open_low=True, high=1)
        check_option("dropout", self.dropout, "a share of at least 0 and below 1", below=1)
        check_option("temperature", self.temperature, "above 0", open_low=True)
        check_option("margin", self.margin, "at least 0")
        check_option("corruption", self.corruption, "a share above 0 and below 1", open_low=True, below=1)
        for name in ("temperature", "margin", "corruption"):
            if getattr(self, name) is not None and not self.contrastive:
                raise InvalidInput(f"{name}={getattr(self, name)} is of the contrastive loss, but contrastive=0")
        for name in ("join_validation", "leave_one_out"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} must be True or False, got {getattr(self, name)!r}")

    def loop(self, rows: int) -> LoopOptions:
        """The options of the loop for so many training rows."""
        return LoopOptions(
            epochs=(60 if rows < SMALL else 30) if self.epochs is None else self.epochs,
            lr=(1e-3 if rows < SMALL else 3e-3) if self.lr is None else self.lr,
            optimizer=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            warmup=self.warmup,
            clip=self.clip,
            ema=self.ema,
            patience=self.patience,
            precision=self.precision or "float32",
        )

    def hidden(self, rows: int, *, mixed: bool) -> float:
        """The share of the columns to hide, for so many training rows; ``mixed`` where some are not numbers."""
        if self.dropout is not None:
            return self.dropout
        return 0.4 if mixed and rows < SMALL else 0.0

    def batch(self, rows: int) -> int:
        """Queries per step for so many training rows."""
        if self.batch_size is not None:
            return min(self.batch_size, rows)
        return min(1024, max(64, rows // 8), rows)

    def told(self) -> list[tuple[str, Any]]:
        """What a checkpoint must have been trained with: all but where it is."""
        return sorted((name, value) for name, value in self.state().items() if name != "checkpoint")

    def state(self) -> dict[str, Any]:
        """The options as given, for JSON; ``TrainingOptions(**state)`` makes them again."""
        return {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in asdict(self).items()
            if name != "leave_one_out" or not value  # studies and checkpoints from before it go on
        }


def check_option(
    name: str,
    value: Any,
    wanted: str,
    *,
    whole: bool = False,
    low: float | None = None,
    open_low: bool = False,
    high: float = math.inf,
    below: float = math.inf,
) -> None:
    """Refuse a number that is not what is ``wanted``; None is always right."""
    if value is None:
        return
    kind = int if whole else int | float
    least = (1 if whole else 0) if low is None else low
    if isinstance(value, bool) or not isinstance(value, kind) or math.isnan(value):
        raise InvalidInput(f"{name} must be {wanted}, got {value!r}")
    if value < least or (open_low and value == least) or value > high or value >= below:
        raise InvalidInput(f"{name} must be {wanted}, got {value!r}")

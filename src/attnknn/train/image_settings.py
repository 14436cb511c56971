"""How an image classifier is trained: the options of every training, and those that only images have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from torch import nn

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import OptimizerName
from attnknn.train.options import LoopOptions
from attnknn.train.policies import Augmentation
from attnknn.train.settings import TrainingOptions, check_option

Mix = Literal["mixup", "cutmix"]
MIXES: Final[tuple[Mix, ...]] = get_args(Mix)
EPOCHS: Final = 100
LEAST_ROUND: Final = 10
"""Epochs of a training that revises labels: what a shorter one believes is wrong too often to learn from."""
_BATCH: Final = 512
_REMEMBERED: Final = 10  # an average of decay d reaches back 1 / (1 - d) steps: of so many parts of all, one
_TABLES_ONLY: Final = ("blocks", "dropout", "corruption", "patience")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions(TrainingOptions):
    """Training of an image embedder: leave-one-out NCA over the bank, and beside it the cross-entropy of a head.

    What is not listed means what it means for tables, but: ``epochs`` is 100; ``lr`` is 0.4 for batches of 512
    (``batch_size``; an eighth of the images where they are fewer) and shrinks with them; SGD, ``weight_decay``
    5e-4, ``warmup`` 0.2, ``ema`` 0.999 (less where it would reach back over more than a tenth of the steps), half
    of the bank as ``candidates``, ``auxiliary`` 1. A head that reads the backbone learns beside the vectors;
    ``nca=0`` makes it a plain CNN, which answers by its head: see ``CNNClassifier``.

    Args:
        backbone: ``resnet18``, ``resnet50``, ``efficientnet-lite0``, or ``timm:<name>``.
        weights: A file of ImageNet weights in torchvision's format, for the ResNets.
        frozen: Whether the backbone's features are the vectors as they are: only the attention learns.
        trunk_lr: Factor of the backbone's learning rate; below 1 for weights that come from elsewhere.
        layer_decay: Factor of the learning rate from each layer of the backbone to the one below it; likewise.
        augmentation: Name of a policy, or an ``Augmentation``.
        mix: ``mixup`` or ``cutmix``: each image holds a part of another, and the loss asks for both labels.
        mix_alpha: Of the beta distribution that their shares are drawn from; 0.3.
        mix_share: Share of the images that are mixed; 1.
        nca: Weight of the NCA loss.
        hard: Weight of the loss against the nearest rows of other classes.
        robust: Up to 1: how little a label counts that looks impossible (see ``robust_loss``); 0 is NLL.
        relabel: For labels of which many may be wrong: so many shorter trainings go before, each half as long as
            the next and the first without ``mix``; each learns what neighbors and head believe in after the one
            before it, of the images whose label they confirm. The labels believed in last are those of the bank.
            Trainings of fewer than 10 epochs revise nothing and are left out: for all of three ``epochs`` is 80 or
            more.
        validate_every: Epochs from one validation to the next.
        compile: Whether torch compiles the network, and what it asks of neighbors: slow to start, then faster.
    """

    candidates: float = 0.5
    optimizer: OptimizerName = "sgd"
    weight_decay: float = 5e-4
    warmup: float = 0.2
    ema: float | None = 0.999
    patience: int | None = None
    auxiliary: float = 1.0
    backbone: str = "resnet18"
    weights: str | os.PathLike[str] | None = None
    frozen: bool = False
    trunk_lr: float = 1.0
    layer_decay: float = 1.0
    augmentation: str | Augmentation = "photos"
    mix: Mix | None = None
    mix_alpha: float | None = None
    mix_share: float | None = None
    nca: float = 1.0
    hard: float = 0.0
    robust: float = 0.0
    relabel: int = 0
    validate_every: int = 5
    compile: bool = False

    def __post_init__(self) -> None:
        TrainingOptions.__post_init__(self)
        for name in _TABLES_ONLY:
            if getattr(self, name) is not None:
                raise InvalidInput(f"{name} is of tables; a training on images does not read it")
        check_option("batch_size", self.batch_size, "at least 2: one image has no spread", whole=True, low=2)
        for name in ("nca", "hard"):
            check_option(name, getattr(self, name), "a weight of at least 0")
        check_option("robust", self.robust, "from 0 to 1", high=1)
        check_option("relabel", self.relabel, "a whole number from 0 to 5", whole=True, low=0, high=5)
        for name in ("trunk_lr", "mix_alpha"):
            check_option(name, getattr(self, name), "above 0", open_low=True)
        check_option("layer_decay", self.layer_decay, "above 0 and at most 1", open_low=True, high=1)
        if self.mix is not None and self.mix not in MIXES:
            raise InvalidInput(f"mix must be None or one of {', '.join(MIXES)}, got {self.mix!r}")
        check_option("mix_share", self.mix_share, "a share above 0 and at most 1", open_low=True, high=1)
        for name in ("mix_alpha", "mix_share"):
            if getattr(self, name) is not None and self.mix is None:
                raise InvalidInput(f"{name}={getattr(self, name)} is of mixed images, but mix=None")
        if not self.nca and not self.auxiliary:
            raise InvalidInput("nca=0 and auxiliary=0 leave nothing to learn from")
        if not self.nca and self.hard:
            raise InvalidInput(f"hard={self.hard} is a loss of neighbors, but nca=0 has none")
        if not self.nca and not self.leave_one_out:
            raise InvalidInput("leave_one_out=False is of a loss of neighbors, but nca=0 has none")
        for name, usual in (("trunk_lr", 1.0), ("layer_decay", 1.0), ("relabel", 0)):
            if self.frozen and getattr(self, name) != usual:
                raise InvalidInput(f"{name}={getattr(self, name)} is of a backbone that learns, but it is frozen")

    def loop(self, rows: int) -> LoopOptions:
        """The options of the loop for so many training images."""
        steps = self._whole * max(1, rows // self.batch(rows))
        return replace(
            TrainingOptions.loop(self, rows),
            epochs=self._whole,
            ema=None if self.ema is None else min(self.ema, max(0.1, 1 - _REMEMBERED / steps)),
            lr=(0.4 if self.lr is None else self.lr) * self.batch(rows) / _BATCH,
            validate_every=self.validate_every,
        )

    def lr_scales(self, trunk: nn.Module) -> dict[str, float]:
        """Factors of the learning rate for the layers of a backbone, those next to the input last to learn."""
        if self.layer_decay == 1.0:
            return {} if self.trunk_lr == 1.0 else {"network.trunk": self.trunk_lr}
        names = list(_layers(trunk, "network.trunk"))
        return {
            name: self.trunk_lr * self.layer_decay ** (len(names) - 1 - depth) for depth, name in enumerate(names)
        }

    @property
    def mixed(self) -> float:
        """Share of the images that are mixed."""
        if self.mix is None:
            return 0.0
        return 1.0 if self.mix_share is None else self.mix_share

    def stages(self) -> list[ImageOptions]:
        """The trainings that make up one: half as long each as the next, the first on labels as they are."""
        before = self.rounds()[0][:-1]
        stages = [replace(self, relabel=0, epochs=each) for each in (*before, self._whole)]
        if before:
            stages[0] = replace(stages[0], mix=None, mix_alpha=None, mix_share=None)
        return stages

    def rounds(self) -> tuple[list[int], list[int]]:
        """Epochs of the trainings after which labels are revised, and of those that would be too short for it."""
        before = range(self.relabel, -1, -1) if self.relabel else ()
        asked = [self._whole // 2**number for number in before]
        short = [each for each in asked if each < LEAST_ROUND]
        return asked[len(short) :], short

    @property
    def _whole(self) -> int:
        return EPOCHS if self.epochs is None else self.epochs

    def batch(self, rows: int) -> int:
        """Images per step for so many training images."""
        if self.batch_size is not None:
            return min(self.batch_size, rows)
        return min(_BATCH, max(32, rows // 8), rows)


def _layers(module: nn.Module, name: str) -> Iterator[str]:
    """The names of the layers that have parameters, from the input on; lists of layers are taken apart."""
    for child, part in module.named_children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from _layers(part, f"{name}.{child}")
        elif any(each.requires_grad for each in part.parameters()):
            yield f"{name}.{child}"


def training_from_state(state: Mapping[str, Any]) -> TrainingOptions:
    """The options, for tables or for images, whose ``state()`` this is."""
    if "backbone" not in state:
        return TrainingOptions(**state)
    given = state["augmentation"]
    return ImageOptions(**{**state, "augmentation": given if isinstance(given, str) else Augmentation(**given)})

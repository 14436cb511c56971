"""Training and testing of a Vision Transformer, on the loop that all trainings share."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.train.loop import History, run
from attnknn.train.policies import Augmentation
from attnknn.vit.frames import Frames
from attnknn.vit.grid import Draws
from attnknn.vit.model import ViT
from attnknn.vit.settings import LOSS_NAMES, ViTOptions

AUGMENTATION: Final = Augmentation(pad=4, fill="zero", flip=True)
"""What ``augment`` means."""

EVALUATED: Final = 256
"""Images at a time where no gradient is wanted."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How a model does on some images: mean loss, and the share whose class is its first, or among its first 5."""

    loss: float
    top1: float
    top5: float


class ViTTask:
    """See :class:`~attnknn.train.loop.Task`.

    Args:
        model: What is trained.
        rows: Training images.
        held: Images that choose the best epoch.
        options: How to train.
    """

    def __init__(self, model: ViT, rows: Frames, held: Frames, options: ViTOptions) -> None:
        self.model, self.rows, self.held, self.options = model.to(rows.device), rows, held, options
        self._batch = min(options.batch_size, len(rows))
        self._forward = compiled(self.model, options)
        self._draws = Draws(self.model, self.model.positional_encoding.pe.shape[1], rows.device)
        self._right = torch.zeros(2, device=rows.device)  # first, and among the first five
        self._began = 0.0

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, len(self.rows) // self._batch)

    @property
    def loss_name(self) -> str:
        """See :class:`~attnknn.train.loop.NamingLoss`."""
        return LOSS_NAMES[self.options.criterion]

    @property
    def recordable(self) -> bool:
        """See :class:`~attnknn.train.recorded.Recordable`: what samplers draw on the host comes with the batch."""
        records = self.options.use_compiled and self.options.compile_mode != "default"  # by itself
        return self.rows.resident and not records

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Images in random order; what is left of the last batch waits for another epoch.

        With each batch the samplers of the model are given their draws for it, until the batches end.
        """
        self._right.zero_()
        self._began = time.perf_counter()
        order = torch.randperm(len(self.rows), generator=random, device=random.device)
        try:
            for at in range(self.steps):
                self._draws.hold()
                yield order[at * self._batch : (at + 1) * self._batch]
        finally:  # also when a step fails: the loop over the batches is left, and nothing else holds them
            self._draws.release()

    def losses(self, batch: Tensor, random: torch.Generator) -> Mapping[str, Tensor]:
        """The one loss there is."""
        pixels = self.rows.pixels(batch)
        if self.options.augment:
            pixels = AUGMENTATION(pixels, random)
        images = self.rows.normalized(pixels)
        if self.options.noise:
            images = images + self.options.noise * torch.randn(
                images.shape, generator=random, device=images.device
            )
        logits, labels = self._forward(images), self.rows.labels[batch]
        self._right += right(logits.detach(), labels)
        return {"train": loss_of(logits, labels, self.options.criterion)}

    def measured(self) -> Mapping[str, float]:
        """Accuracy on the training images as they were seen, and the seconds that took."""
        top1, top5 = (each / (self.steps * self._batch) for each in self._right.tolist())
        return {"train_top1": top1, "train_top5": top5, "train_seconds": time.perf_counter() - self._began}

    def validate(self) -> Mapping[str, float]:
        """On the images that were held out."""
        scores = evaluate(self.model, self.held, self.options, forward=self._forward)
        return {"nll": scores.loss, "top1": scores.top1, "top5": scores.top5}


def train_vit(
    model: ViT,
    rows: Frames,
    held: Frames,
    options: ViTOptions,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    fingerprint: str | Mapping[str, object] = "",
    progress: str | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    last: int | None = None,
) -> History:
    """Train a ViT in place; it ends with the weights of its best epoch, by ``held``.

    Args:
        model: What to train.
        rows: Training images.
        held: Validation images.
        options: How.
        seed: Of batches, augmentation, noise and dropout.
        checkpoint: File to save to after each epoch and to go on from.
        fingerprint: Of data and model, as for :func:`~attnknn.train.loop.run`: a checkpoint with another one is
            refused.
        progress: Title of a progress bar.
        on_epoch: Called with the numbers of each epoch, and ``best_epoch`` so far.
        last: Stop after this epoch, on the schedule of all.
    """
    named = {"fingerprint": fingerprint} if isinstance(fingerprint, str) else fingerprint
    return run(
        ViTTask(model, rows, held, options),
        options.loop(),
        seed=seed,
        device=rows.device,
        last=last,
        checkpoint=checkpoint,
        fingerprint={**named, **options.told()},
        progress=progress,
        on_epoch=on_epoch,
    )


@torch.no_grad()
def evaluate(
    model: ViT, frames: Frames, options: ViTOptions, *, forward: Callable[[Tensor], Tensor] | None = None
) -> Scores:
    """How a model does on some images, each counted once.

    Args:
        model: Is left in eval mode.
        frames: The images.
        options: Criterion and precision.
        forward: The model, compiled; None takes it as it is.
    """
    model.eval()
    asked = model if forward is None else forward  # what is compiled has no truth value
    losses = []
    count = torch.zeros(2, device=frames.device)
    device = frames.device.type
    at_once = min(EVALUATED, len(frames))
    for part in torch.split(torch.arange(len(frames), device=frames.device), at_once):
        # The last part is filled up with images that do not count: for another size all would be compiled anew.
        full = part if forward is None else torch.arange(at_once, device=part.device).add(part[0]) % len(frames)
        with torch.autocast(device, torch.bfloat16, enabled=options.use_amp):
            logits = asked(frames.normalized(frames.pixels(full)))[: len(part)].float()
        labels = frames.labels[part]
        losses.append(loss_of(logits, labels, options.criterion) * len(part))
        count += right(logits, labels)
    top1, top5 = (each / len(frames) for each in count.tolist())
    total = float(torch.stack(losses).cpu().double().sum())  # not every device has doubles
    return Scores(total / len(frames), top1, top5)


def loss_of(logits: Tensor, labels: Tensor, criterion: str) -> Tensor:
    """Mean cross-entropy, or mean squared distance to a 1 for the class and 0 for the others."""
    if criterion == "CrossEntropy":
        return F.cross_entropy(logits.float(), labels)
    return F.mse_loss(logits.float(), F.one_hot(labels, logits.shape[1]).float())


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """(2,) how many labels have the largest output, and one of the five largest."""
    first = logits.float().topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return torch.stack([first[:, 0].sum(), first.any(dim=1).sum()]).float()


def compiled(model: ViT, options: ViTOptions) -> Callable[[Tensor], Tensor]:
    """The model, compiled where the options ask for it.

    By default that is a block, once for all that are alike, which takes seconds where the whole model takes a
    minute and is as fast. The other modes record what they compile, so they are given the whole.
    """
    if not options.use_compiled:
        return model
    if options.compile_mode != "default":
        return cast("Callable[[Tensor], Tensor]", torch.compile(model, mode=options.compile_mode))
    blocks = [torch.compile(block) for block in model.transformer_encoder]

    def forward(images: Tensor) -> Tensor:
        with warnings.catch_warnings():  # torch's compiler asks what a block is given for its gradient
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            logits: Tensor = model(images, blocks)
        return logits

    return forward


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """All parameters, and those that are trained."""
    every = [(each.numel(), each.requires_grad) for each in model.parameters()]
    return sum(count for count, _ in every), sum(count for count, trained in every if trained)

"""Training of an image embedder from labels that are taken as they are, or revised on the way."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnknn.embed.images import ImageEmbedder
from attnknn.train.image_settings import ImageOptions
from attnknn.train.image_task import ImageTask
from attnknn.train.loop import History, run
from attnknn.train.policies import chosen_policy
from attnknn.train.relabel import Beliefs, beliefs_of
from attnknn.train.rows import Rows, arrays_of, digest, own_groups
from attnknn.train.seeds import random_kept, seed_torch


@dataclass(frozen=True, slots=True)
class TrainedImages:
    """What a training leaves: the network, how it went, and what it came to believe of the labels.

    ``beliefs`` is None unless labels were revised.
    """

    network: ImageEmbedder
    history: History
    beliefs: Beliefs | None = None


def train_images(
    rows: Rows,
    held: Rows | None,
    *,
    classes: int,
    options: ImageOptions,
    seed: int,
    device: str = "cpu",
    epochs: int | None = None,
    checkpoint: Path | None = None,
    progress: str | None = None,
) -> TrainedImages:
    """Train an image embedder with a head; with validation images it is that of the best epoch.

    Where ``options.relabel`` asks for it, shorter trainings go before: what each of them believes of the labels
    is what the next one learns, of the images whose label it confirms. Validation images are asked for the labels
    that they were given: by what the last training believed, the next could only agree.

    Args:
        rows: Training images, uint8 (n, h, w, c).
        held: Validation images, or None.
        classes: How many classes there are.
        options: How to train.
        seed: Of the start, the batches and the views.
        device: Where.
        epochs: Stop after so many, on the same schedule.
        checkpoint: File to save to and go on from; beside it each epoch leaves a line of JSON.
        progress: Title of a progress bar.
    """
    where = torch.device(device)
    if options.frozen:
        return TrainedImages(_started(rows, classes, options, seed).to(where).eval(), History((), 0, None, False))
    rows, beliefs, stages = replace(rows, groups=own_groups(rows.groups)), None, options.stages()
    _tell_left_out(options)
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        path = checkpoint if last or checkpoint is None else checkpoint.with_suffix(f".round-{number}.pt")
        title = progress if last or progress is None else f"{progress}, round {number + 1}"
        task, history = _trained(
            *(rows, held, classes, stage, seed, where, beliefs), epochs if last else None, path, title
        )
        if options.rounds()[0]:
            beliefs = _believed(task, rows, held) or beliefs
    return TrainedImages(task.model.network.eval(), history, beliefs)


def _tell_left_out(options: ImageOptions) -> None:
    revising, short = options.rounds()
    if short:
        said = (
            f"rounds of {' and '.join(map(str, short))} epochs are left out" if revising else "nothing is revised"
        )
        why = f"what a training of {short[-1]} epochs believes of labels is wrong too often"
        warnings.warn(f"relabel={options.relabel}: {said}, for {why}; more epochs may help", stacklevel=3)


def _believed(task: ImageTask, rows: Rows, held: Rows | None) -> Beliefs | None:
    """What is believed of the labels; None, with a warning, where a class would all but vanish."""
    beliefs = beliefs_of(task, rows, held)
    if beliefs.keeps_classes(rows.labels):
        return beliefs
    warnings.warn(
        "labels stay as they are: the training has learned too little to revise them; more epochs may help",
        UserWarning,
        stacklevel=4,
    )
    return None


def _trained(
    rows: Rows,
    held: Rows | None,
    classes: int,
    options: ImageOptions,
    seed: int,
    device: torch.device,
    beliefs: Beliefs | None,
    epochs: int | None,
    checkpoint: Path | None,
    progress: str | None,
) -> tuple[ImageTask, History]:
    targets = None
    if beliefs is not None:
        sure = beliefs.confirmed(rows.labels)
        rows, targets = rows.take(sure), beliefs.rows[torch.from_numpy(sure)]
    precision = options.precision or ("bfloat16" if device.type == "cuda" else "float32")
    task = ImageTask(
        *(_started(rows, classes, options, seed), rows, held),
        options=options,
        augmentation=chosen_policy(options.augmentation, rows.features.shape[1:3]),
        targets=targets,
        precision=precision,
        device=device,
    )
    scales = options.lr_scales(task.model.network.trunk)
    loop = replace(options.loop(len(rows)), precision=precision, lr_scales=scales)
    told = options.told(), None if beliefs is None else beliefs.digest
    history = run(
        task,
        loop if task.held is not None else replace(loop, validate_every=1),
        seed=seed,
        device=device,
        last=epochs,
        checkpoint=checkpoint,
        fingerprint=digest(told, arrays_of((rows, held))),
        progress=progress,
        on_epoch=None if checkpoint is None else _journal(checkpoint.with_suffix(".jsonl")),
    )
    return task, history


def _started(rows: Rows, classes: int, options: ImageOptions, seed: int) -> ImageEmbedder:
    """A network as the options have it: with a head where it is to be trained, bare where it is frozen."""
    shape: dict[str, Any] = {"backbone": options.backbone, "weights": options.weights, "frozen": options.frozen}
    shape |= {"projection": None} if options.frozen else {"classes": classes}
    if options.embed_dim is not None:
        shape["embed_dim"] = options.embed_dim
    with random_kept(torch.device("cpu")):
        seed_torch(seed, torch.device("cpu"))
        return ImageEmbedder.start(rows.features, **shape)


def _journal(path: Path) -> Callable[[dict[str, Any]], None]:
    """Writes the numbers of each epoch as a line of JSON."""

    def write(numbers: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers) + "\n")

    return write

"""Training of an image embedder: every image looks for its class among the last seen views of all others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.attend.attention import SCALES
from attnknn.embed.images import ImageEmbedder
from attnknn.metrics import ece
from attnknn.ops import same_group
from attnknn.train.augment import Mixed, cutmix, mixup
from attnknn.train.image_settings import ImageOptions
from attnknn.train.loop import History, run
from attnknn.train.losses import candidates, hard_negatives, nca, supcon
from attnknn.train.options import Precision
from attnknn.train.policies import Augmentation, policy
from attnknn.train.rows import Rows, Shown, arrays_of, digest
from attnknn.train.seeds import random_kept, seed_torch

_MASS: Final = 1e-3  # of the prior in the validation NLL, which is then never infinite
_CELLS: Final = 2**26  # validation images x training images at a time
_EMBED: Final = 2048  # images embedded at a time
_HARDEST: Final = 16  # wrong rows that the loss against hard negatives looks at


class _Model(nn.Module):
    """The network, the scale of its similarities, and the views of the training images that were seen last."""

    keys: Tensor
    filled: Tensor

    def __init__(self, network: ImageEmbedder, rows: int) -> None:
        super().__init__()
        self.network = network
        self.log_scale = nn.Parameter(torch.tensor(math.log(SCALES[network.metric][0])))
        self.register_buffer("keys", torch.zeros(rows, network.embed_dim))
        self.register_buffer("filled", torch.tensor(False))

    @property
    def scale(self) -> Tensor:
        """Inverse temperature, within its bounds."""
        _, low, high = SCALES[self.network.metric]
        return self.log_scale.exp().clamp(low, high)


class ImageTask:
    """See :class:`~attnknn.train.loop.Task`.

    A query never sees itself, a view of itself, nor an image of its group. Keys are the vectors that the images
    had when they were last in a batch; similarities are computed anew in each step. A mixed image is never a
    key, and leaves out both images that it is made of.

    Args:
        network: What is trained; it has a head.
        rows: Training images, uint8 (n, h, w, c).
        held: Validation images, or None.
        options: How to train.
        augmentation: What a training view is.
        precision: Of validation; that of training is the loop's.
        device: Where. Images stay there if they fit, else batches travel.
    """

    def __init__(
        self,
        network: ImageEmbedder,
        rows: Rows,
        held: Rows | None,
        *,
        options: ImageOptions,
        augmentation: Augmentation,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        self.model = _Model(network, len(rows)).to(self.device, memory_format=layout)  # type: ignore[call-overload]
        self.options, self.augmentation, self.precision = options, augmentation, precision
        self.rows, self.held = _Pictures(network, rows, self.device), None
        if held is not None and len(held):
            self.held = _Pictures(network, held, self.device)
        self.classes = network.classes
        self._batch = options.batch(len(rows))
        self._trunk = torch.compile(network.trunk_features) if options.compile else network.trunk_features
        totals = torch.zeros(self.classes, device=self.device).index_add_(0, self.rows.labels, self.rows.weights)
        self._prior = totals / totals.sum()

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, len(self.rows.labels) // self._batch)

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Images in random order; what is left of the last batch waits for another epoch."""
        if self.options.nca and (self.options.mix or not bool(self.model.filled)):
            self._refresh()
        order = torch.randperm(len(self.rows.labels), generator=random, device=random.device)
        for at in range(self.steps):
            yield order[at * self._batch : (at + 1) * self._batch]

    def losses(self, batch: Tensor, random: torch.Generator) -> Mapping[str, Tensor]:
        """The head's cross-entropy, NCA, and whatever else is on."""
        views = self.augmentation(self.rows.pixels(batch), random)
        mixed = self._mixed(views, random)
        features = self._trunk(mixed.images)
        vectors, options = self.model.network.projected(features), self.options
        parts: dict[str, Tensor] = {}
        if options.auxiliary:
            parts["auxiliary"] = options.auxiliary * self._cross_entropy(features, batch, mixed)
        if options.nca:
            parts |= self._neighbor_losses(vectors, batch, mixed, random)
        if options.contrastive:
            parts["contrastive"] = options.contrastive * self._contrastive(vectors, batch, random)
        return parts

    def validate(self) -> Mapping[str, float]:
        """How the vote among all training images would do, and how the head does."""
        if self.held is None:
            return {}
        vectors, logits = self._embedded(self.held)
        head = _scores(logits.softmax(dim=1), self.held.labels, self.held.weights)
        if not self.options.nca:
            return head
        keys, _ = self._embedded(self.rows)
        chances, entropy = self._vote(vectors, keys)
        return {
            **_scores(chances, self.held.labels, self.held.weights),
            **{f"head_{name}": value for name, value in head.items()},
            "scale": float(self.model.scale),
            "entropy": entropy,
        }

    def _mixed(self, views: Tensor, random: torch.Generator) -> Mixed:
        if self.options.mix is None:
            alone = torch.arange(len(views), device=views.device)
            return Mixed(views, alone, torch.ones(len(views), device=views.device))
        alpha = 0.3 if self.options.mix_alpha is None else self.options.mix_alpha
        return (mixup if self.options.mix == "mixup" else cutmix)(views, alpha, random)

    def _cross_entropy(self, features: Tensor, batch: Tensor, mixed: Mixed) -> Tensor:
        logits, labels = self.model.network.head_logits(features).float(), self.rows.labels[batch]
        smooth = self.options.label_smoothing
        own = F.cross_entropy(logits, labels, label_smoothing=smooth, reduction="none")
        if self.options.mix is not None:
            other = F.cross_entropy(logits, labels[mixed.partner], label_smoothing=smooth, reduction="none")
            own = mixed.share * own + (1 - mixed.share) * other
        weights = self.rows.weights[batch]
        return (weights * own).sum() / weights.sum().clamp(min=1e-12)

    def _neighbor_losses(
        self, vectors: Tensor, batch: Tensor, mixed: Mixed, random: torch.Generator
    ) -> dict[str, Tensor]:
        rows, model, options = self.rows, self.model, self.options
        if options.mix is None:
            model.keys[batch] = vectors.detach().to(model.keys)  # so the others in the batch are as new as can be
        drawn = candidates(len(rows.labels), options.candidates, random)
        keys, labels = model.keys[drawn], rows.labels[drawn]
        hidden = same_group(rows.groups[batch], rows.groups[drawn])
        sides = [(rows.labels[batch], mixed.share)]
        if options.mix is not None:
            hidden = torch.cat([hidden, same_group(rows.groups[batch][mixed.partner], rows.groups[drawn])])
            sides.append((rows.labels[batch][mixed.partner], 1 - mixed.share))
        parts: dict[str, Tensor] = {"nca": vectors.new_zeros((), dtype=torch.float32)}
        for asked, share in sides:
            weights = rows.weights[batch] * share
            loss = nca(
                *(vectors, keys, asked, labels, model.scale),
                metric="cosine",
                leave_out=hidden,
                smoothing=options.label_smoothing,
                classes=self.classes,
                sample_weight=weights,
                key_prior=rows.logs[drawn],
            )
            parts["nca"] = parts["nca"] + options.nca * loss * weights.sum() / rows.weights[batch].sum()
        if options.hard:
            loss = hard_negatives(
                *(vectors, keys, sides[0][0], labels, model.scale), leave_out=hidden, hardest=_HARDEST
            )
            parts["hard"] = options.hard * loss
        return parts

    def _contrastive(self, first: Tensor, batch: Tensor, random: torch.Generator) -> Tensor:
        if self.options.mix is not None:  # a mixed image has no one label to be pulled to
            first = self.model.network.body(self.augmentation(self.rows.pixels(batch), random))
        second = self.model.network.body(self.augmentation(self.rows.pixels(batch), random))
        temperature = 0.1 if self.options.temperature is None else self.options.temperature
        margin = self.options.margin or 0.0
        return supcon(first, second, self.rows.labels[batch], temperature=temperature, margin=margin)

    @torch.no_grad()
    def _refresh(self) -> None:
        training = self.model.training
        self.model.eval()
        self.model.keys.copy_(self._embedded(self.rows)[0])
        self.model.filled.fill_(True)
        self.model.train(training)

    def _embedded(self, pictures: _Pictures) -> tuple[Tensor, Tensor]:
        """Vectors (n, d) and the head's logits (n, classes) of images as they are."""
        vectors, logits = [], []
        bf16 = self.precision == "bfloat16"
        everything = torch.arange(len(pictures.labels), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            for part in torch.split(everything, _EMBED):
                features = self._trunk(pictures.pixels(part))
                vectors.append(self.model.network.projected(features).float())
                logits.append(self.model.network.head_logits(features).float())
        return torch.cat(vectors), torch.cat(logits)

    def _vote(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, float]:
        """(queries, classes) chances over all keys, and the mean entropy of the weights as a share of the most."""
        owners = F.one_hot(self.rows.labels, self.classes).to(keys.dtype)
        chances, entropy = [], 0.0
        for part in torch.split(queries, max(1, _CELLS // len(keys))):
            logs = (self.model.scale * (part @ keys.T) + self.rows.logs).log_softmax(dim=1)
            weights = logs.exp()
            entropy -= float(torch.where(weights > 0, weights * logs, 0.0).sum())
            chances.append((weights @ owners + _MASS * self._prior) / (1 + _MASS))
        return torch.cat(chances), entropy / len(queries) / math.log(max(2, len(keys)))


class _Pictures(Shown):
    """Images with their labels, on the device or near it."""

    def __init__(self, network: ImageEmbedder, rows: Rows, device: torch.device) -> None:
        super().__init__(rows, device)
        self.device = device
        self.images = _near(network.front(torch.from_numpy(np.ascontiguousarray(rows.features))), device)
        self.logs = self.weights.log()

    def pixels(self, at: Tensor) -> Tensor:
        """Some images as floats from 0 to 1."""
        some = self.images[at.to(self.images.device)].to(self.device, non_blocking=True)
        return some.float().div_(255)


def _near(images: Tensor, device: torch.device) -> Tensor:
    """On the device where they take less than half of what is free, else where a copy is fast."""
    if device.type != "cuda":
        return images.to(device)
    free, _ = torch.cuda.mem_get_info(device)
    size = images.numel() * images.element_size()
    return images.to(device, memory_format=torch.channels_last) if 2 * size < free else images.pin_memory()


def _scores(chances: Tensor, labels: Tensor, weights: Tensor) -> dict[str, float]:
    share = weights / weights.sum()
    own = chances.gather(1, labels[:, None])[:, 0].clamp(min=1e-12)
    right = (chances.argmax(dim=1) == labels).to(share)
    sums = chances.double()
    sums = sums / sums.sum(dim=1, keepdim=True)
    return {
        "nll": float(-(share * own.log()).sum()),
        "accuracy": float((share * right).sum()),
        "ece": float(ece(sums.cpu().numpy(), labels.cpu().numpy())),
    }


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
) -> tuple[ImageEmbedder, History]:
    """Train an image embedder with a head; with validation images it is that of the best epoch.

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
    network = _started(rows, classes, options, seed)
    if options.frozen:
        return network.to(where).eval(), History((), 0, None, False)
    precision = options.precision or ("bfloat16" if where.type == "cuda" else "float32")
    given = options.augmentation
    task = ImageTask(
        *(network, rows, held),
        options=options,
        augmentation=policy(given, min(rows.features.shape[1:3])) if isinstance(given, str) else given,
        precision=precision,
        device=where,
    )
    loop = replace(options.loop(len(rows)), precision=precision)
    history = run(
        task,
        loop if task.held is not None else replace(loop, validate_every=1),
        seed=seed,
        device=where,
        last=epochs,
        checkpoint=checkpoint,
        fingerprint=digest(options.told(), arrays_of((rows, held))),
        progress=progress,
        on_epoch=None if checkpoint is None else _journal(checkpoint.with_suffix(".jsonl")),
    )
    return network.eval(), history


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

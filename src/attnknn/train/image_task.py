"""What an image embedder learns from: every image looks for its class among the last seen views of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.attend.attention import SCALES
from attnknn.embed.images import ImageEmbedder
from attnknn.errors import TrainingDiverged
from attnknn.metrics import ece
from attnknn.train.augment import Mixed, cutmix, mixup
from attnknn.train.image_settings import ImageOptions
from attnknn.train.losses import candidates, class_shares, hard_negatives, of_groups, robust_loss, supcon
from attnknn.train.options import Precision
from attnknn.train.policies import Augmentation
from attnknn.train.rows import Rows, Shown, has_room

_MASS: Final = 1e-3  # of the prior in the validation NLL, which is then never infinite
_CELLS: Final = 2**26  # validation images x training images at a time
_EMBED: Final = 2048  # images embedded at a time
_LEAST: Final = 1e-30  # chance: the reciprocal of a smaller float32 may be infinite
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

    A query never sees itself, a view of itself, nor an image of its group, unless the options let it. Keys are
    the vectors that the images had when they were last in a batch, unmixed; similarities are computed anew in each
    step. A mixed image is never a key, and leaves out both images that it is made of.

    Args:
        network: What is trained; it has a head.
        rows: Training images, uint8 (n, h, w, c).
        held: Validation images, or None.
        options: How to train.
        augmentation: What a training view is.
        targets: (n, classes): how much of each class a training image is held to be; else all of its label.
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
        targets: Tensor | None = None,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        self.model = _Model(network, len(rows)).to(self.device, memory_format=layout)  # type: ignore[call-overload]
        self.options, self.augmentation, self.precision = options, augmentation, precision
        self.classes = network.classes
        self.rows = Pictures(network, rows, self.device, targets)
        self.held = Pictures(network, held, self.device) if held is not None and len(held) else None
        self._batch = options.batch(len(rows))
        self._trunk: Callable[[Tensor], Tensor] = self.model.network.trunk_features
        self._shares: Callable[..., Tensor] = class_shares
        if options.compile:
            self._trunk, self._shares = torch.compile(self._trunk), torch.compile(self._shares)
        totals = self.rows.weights @ self.rows.targets
        self._prior = totals / totals.sum()

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, len(self.rows.labels) // self._batch)

    @property
    def recordable(self) -> bool:
        """See :class:`~attnknn.train.recorded.Recordable`: images that travel are waited for."""
        return self.rows.images.device.type == self.device.type

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Images in random order; what is left of the last batch waits for another epoch."""
        if self.options.nca and (self.options.mixed == 1 or not bool(self.model.filled)):
            self._refresh()
        order = torch.randperm(len(self.rows.labels), generator=random, device=random.device)
        for at in range(self.steps):
            yield order[at * self._batch : (at + 1) * self._batch]

    def losses(self, batch: Tensor, random: torch.Generator) -> Mapping[str, Tensor]:
        """The head's cross-entropy, NCA, and whatever else is on."""
        mixed = self._mixed(self.augmentation(self.rows.pixels(batch), random), random)
        features = self._trunk(mixed.images)
        vectors, options = self.model.network.projected(features), self.options
        parts: dict[str, Tensor] = {}
        if options.auxiliary:
            logs = self.model.network.head_logits(features).float().log_softmax(dim=1)
            parts["auxiliary"] = options.auxiliary * self._mean_cost(logs, batch, mixed)
        if options.nca:
            parts |= self._neighbor_losses(vectors, batch, mixed, random)
        if options.contrastive:
            parts["contrastive"] = options.contrastive * self._contrastive(vectors, batch, random)
        return parts

    def validate(self) -> Mapping[str, float]:
        """How the vote among all training images would do, and how the head does."""
        if self.held is None:
            return {}
        vectors, logits = self.embedded(self.held)
        if not bool((vectors.isfinite().all() & logits.isfinite().all()).cpu()):
            raise TrainingDiverged("the network gives vectors that are not finite: a lower lr or clip may help")
        head = _scores(logits.softmax(dim=1), self.held)
        if not self.options.nca:
            return head
        keys, _ = self.embedded(self.rows)
        chances, entropy = self._vote(vectors, keys)
        return {
            **_scores(chances, self.held),
            **{f"head_{name}": value for name, value in head.items()},
            "scale": float(self.model.scale),
            "entropy": entropy,
        }

    def _mixed(self, views: Tensor, random: torch.Generator) -> Mixed:
        """Some of the images mixed with others; a share of 1 marks those that are not."""
        if self.options.mix is None:
            alone = torch.arange(len(views), device=views.device)
            return Mixed(views, alone, torch.ones(len(views), device=views.device))
        alpha = 0.3 if self.options.mix_alpha is None else self.options.mix_alpha
        mixed = (mixup if self.options.mix == "mixup" else cutmix)(views, alpha, random)
        if self.options.mixed == 1:
            return mixed
        pure = torch.rand(len(views), generator=random, device=views.device) >= self.options.mixed
        images = torch.where(pure[:, None, None, None], views, mixed.images)
        return Mixed(images, mixed.partner, mixed.share.masked_fill(pure, 1.0))

    def _mean_cost(self, logs: Tensor, batch: Tensor, mixed: Mixed) -> Tensor:
        """The mean over a batch of what its targets cost, given (batch, classes) logarithms of chances."""
        wanted = self.rows.targets[batch]
        if self.options.mix is not None:
            share = mixed.share[:, None]
            wanted = share * wanted + (1 - share) * wanted[mixed.partner]
        smooth = self.options.label_smoothing
        wanted = (1 - smooth) * wanted + smooth / self.classes
        costs = robust_loss(logs, self.options.robust)
        weights = self.rows.weights[batch]
        return (weights @ (wanted * costs).sum(dim=1)) / weights.sum().clamp(min=1e-12)

    def _neighbor_losses(
        self, vectors: Tensor, batch: Tensor, mixed: Mixed, random: torch.Generator
    ) -> dict[str, Tensor]:
        rows, model, options = self.rows, self.model, self.options
        pure = (mixed.share == 1)[:, None]
        # Remembered before they ask, so that the others in the batch are as new as can be.
        model.keys[batch] = torch.where(pure, vectors.detach().to(model.keys), model.keys[batch])
        drawn = candidates(len(rows.labels), options.candidates, random)
        keys, own, theirs = model.keys[drawn], rows.groups[batch][:, None], rows.groups[drawn]
        if options.mix is not None:
            own = torch.cat([own, torch.where(pure, own, own[mixed.partner])], dim=1)
        if not options.leave_one_out:
            own = own[:, :0]
        asked = vectors, keys, rows.targets[drawn], model.scale
        with torch.autocast(self.device.type, enabled=False):  # within, a compiler would round the gradient too
            shares = self._shares(*asked, leave_out=(own, theirs), key_prior=rows.logs[drawn])
        least = _LEAST if shares.dtype == torch.float32 else _LEAST**9
        logs = (shares.clamp(min=least).log() * (shares > 0)).float()  # what no key shows is free
        parts = {"nca": options.nca * self._mean_cost(logs, batch, mixed)}
        if options.hard:
            labels, hidden = (rows.labels[batch], rows.labels[drawn]), of_groups(own, theirs)
            loss = hard_negatives(vectors, keys, *labels, model.scale, leave_out=hidden, hardest=_HARDEST)
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
        self.model.keys.copy_(self.embedded(self.rows)[0])
        self.model.filled.fill_(True)
        self.model.train(training)

    def embedded(self, pictures: Pictures) -> tuple[Tensor, Tensor]:
        """Vectors (n, d) and the head's logits (n, classes) of images as they are."""
        vectors, logits = [], []
        bf16 = self.precision == "bfloat16"
        everything = torch.arange(len(pictures.labels), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            for part in torch.split(everything, _EMBED):
                features = self.model.network.trunk_features(pictures.pixels(part))
                vectors.append(self.model.network.projected(features).float())
                logits.append(self.model.network.head_logits(features).float())
        return torch.cat(vectors), torch.cat(logits)

    def _vote(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, float]:
        """(queries, classes) chances over all keys, and the mean entropy of the weights as a share of the most."""
        chances, entropy = [], 0.0
        for part in torch.split(queries, max(1, _CELLS // len(keys))):
            logs = (self.model.scale * (part @ keys.T) + self.rows.logs).log_softmax(dim=1)
            weights = logs.exp()
            entropy -= float(torch.where(weights > 0, weights * logs, 0.0).sum())
            chances.append((weights @ self.rows.targets + _MASS * self._prior) / (1 + _MASS))
        return torch.cat(chances), entropy / len(queries) / math.log(max(2, len(keys)))


class Pictures(Shown):
    """Images with their labels, on the device or near it.

    Args:
        network: That reads them.
        rows: The images.
        device: Where they are wanted.
        targets: (n, classes) instead of their labels.
    """

    def __init__(
        self, network: ImageEmbedder, rows: Rows, device: torch.device, targets: Tensor | None = None
    ) -> None:
        super().__init__(rows, device)
        self.device = device
        self.images = _near(network.front(torch.from_numpy(np.ascontiguousarray(rows.features))), device)
        self.logs = self.weights.log()
        wanted = F.one_hot(self.labels, network.classes) if targets is None else targets
        self.targets = wanted.to(device, torch.float32)
        self.labels = self.targets.argmax(dim=1)  # as they are believed to be

    def pixels(self, at: Tensor) -> Tensor:
        """Some images as floats from 0 to 1."""
        some = self.images[at.to(self.images.device)].to(self.device, non_blocking=True)
        return some.float().div_(255)


def _near(images: Tensor, device: torch.device) -> Tensor:
    """On the device where there is room, else where a copy is fast."""
    if device.type != "cuda":
        return images.to(device)
    room = has_room(images.numel() * images.element_size(), device)
    return images.to(device, memory_format=torch.channels_last) if room else images.pin_memory()


def _scores(chances: Tensor, asked: Pictures) -> dict[str, float]:
    """How the chances do; their NLL at the temperature that suits them best, as they will be served at one."""
    share = asked.weights / asked.weights.sum()
    labels = asked.targets.argmax(dim=1)
    right = (chances.argmax(dim=1) == labels).to(share)
    heats = torch.logspace(-0.5, 0.7, 49, device=chances.device)
    logs = chances.clamp(min=1e-12).log() / heats[:, None, None]  # (heats, images, classes)
    losses = -((logs.log_softmax(dim=2) * asked.targets).sum(dim=2) @ share)
    sums = chances.double()
    sums = sums / sums.sum(dim=1, keepdim=True)
    return {
        "nll": float(losses.min()),
        "temperature": float(heats[losses.argmin()]),
        "accuracy": float(share @ right),
        "ece": float(ece(sums.cpu().numpy(), labels.cpu().numpy())),
    }

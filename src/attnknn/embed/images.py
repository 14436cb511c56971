"""The embedder of images: a trunk, a projection on top of it, and vectors of unit length."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attnknn.embed.pretrained import (
    EfficientNetLite0,
    TimmTrunk,
    efficientnet_lite0_weights,
    load_pretrained,
)
from attnknn.embed.resnet import ResNet, load_torchvision, read_torchvision
from attnknn.errors import InvalidInput
from attnknn.ops import Metric

Trunk = ResNet | EfficientNetLite0 | TimmTrunk
BACKBONES: Final = ("resnet18", "resnet50", "efficientnet-lite0", "timm:<name>")

_SMALL: Final = 64  # sides up to here lose too much in a stem that shrinks them to a quarter
_LEARN_FROM: Final = 10_000
_PIXELS: Final = 512 * 64 * 64  # that a backbone sees at a time: its first feature maps are 64 times as large
_IMAGENET: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # what torchvision's weights were trained with


class ImageEmbedder(nn.Module):
    """Images to vectors of unit length: normalized pixels, a backbone, and a projection.

    The ResNets read images of the size they were built for. EfficientNet-Lite0 and the models of timm have a size
    of their own, to which images are scaled, and see gray images in three equal channels.

    Args:
        backbone: ``resnet18``, ``resnet50``, ``efficientnet-lite0``, or ``timm:<name>``.
        image_size: Height and width of the images.
        in_channels: 1 for gray, 3 for color.
        embed_dim: Width of the vectors; that of the backbone's features where there is no projection.
        projection: ``mlp`` learns one on top of the backbone; None gives the features themselves.
        classes: Of a linear head that reads the backbone's features, for training beside the vectors; 0 has none.
        frozen: Whether the backbone neither learns nor counts: no gradients, always in eval mode.
        mean: Of pixels between 0 and 1, by channel; see :meth:`start`.
        std: Likewise.
    """

    kind: ClassVar[str] = "image"
    metric: ClassVar[Metric] = "cosine"
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: str = "resnet18",
        *,
        image_size: Sequence[int],
        in_channels: int = 3,
        embed_dim: int = 128,
        projection: Literal["mlp"] | None = "mlp",
        classes: int = 0,
        frozen: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if in_channels not in (1, 3):
            raise InvalidInput(f"images have 1 channel or 3, got in_channels={in_channels!r}")
        if projection not in ("mlp", None):
            raise InvalidInput(f"projection must be 'mlp' or None, got {projection!r}")
        height, width = image_size
        self.backbone, self.image_size, self.in_channels = backbone, (int(height), int(width)), in_channels
        self.trunk = _trunk(backbone, self.image_size, in_channels)
        self.projection = _projection(self.trunk.width, embed_dim) if projection else nn.Identity()
        self.embed_dim = embed_dim if projection else self.trunk.width
        self.head = nn.Linear(self.trunk.width, classes) if classes else None
        self.classes, self.frozen = classes, frozen
        self.notes: tuple[str, ...] = ()  # what start could not take from the weights it was given
        usual: tuple[Sequence[float], Sequence[float]] = ((0.0,) * in_channels, (1.0,) * in_channels)
        if not isinstance(self.trunk, ResNet):
            usual = self.trunk.mean, self.trunk.std
        self.register_buffer("mean", _by_channel(usual[0] if mean is None else mean))
        self.register_buffer("std", _by_channel(usual[1] if std is None else std))
        if frozen:
            self.trunk.requires_grad_(False).eval()

    @classmethod
    def start(
        cls,
        features: NDArray[np.uint8],
        numbers: Sequence[int] = (),
        *,
        weights: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> ImageEmbedder:
        """An untrained network for images like these, (n, h, w, channels) of uint8.

        Args:
            features: The training images; a ResNet without weights learns mean and std from 10,000 of them.
            numbers: Not read; tables have it.
            weights: A file of weights for the backbone: torchvision's for the ResNets, timm's for its models.
                EfficientNet-Lite0 brings its own.
            options: Arguments of the class.

        Raises:
            InvalidInput: The images or the weights cannot be used, or a frozen backbone would stay random.
            MissingExtra: The backbone needs a package that is not installed.
        """
        if features.ndim != 4 or features.dtype != np.uint8 or not len(features):
            got = f"{features.dtype} of shape {features.shape}"
            raise InvalidInput(f"images must be uint8 of shape (n, height, width, channels), got {got}")
        network = cls(image_size=features.shape[1:3], in_channels=features.shape[3], **options)
        network._load(weights)
        if isinstance(network.trunk, ResNet) and options.keys().isdisjoint(("mean", "std")):
            known = weights is not None and network.in_channels == 3
            mean, std = _IMAGENET if known else _mean_and_std(features)
            network.mean, network.std = _by_channel(mean), _by_channel(std)
        return network

    def _load(self, weights: str | os.PathLike[str] | None) -> None:
        """Begin with published weights, where there are some."""
        if isinstance(self.trunk, EfficientNetLite0):
            state = efficientnet_lite0_weights() if weights is None else read_torchvision(weights)
            load_pretrained(self.trunk, state)
        elif weights is None:
            if self.frozen:
                raise InvalidInput(f"a frozen {self.backbone} would stay random: give weights, a file of them")
        elif isinstance(self.trunk, ResNet):
            self.notes = tuple(load_torchvision(self.trunk, read_torchvision(weights)))
            if self.frozen and self.notes:
                raise InvalidInput(f"a frozen {self.backbone} would stay partly random: {self.notes[0]}")
        else:
            load_pretrained(self.trunk, read_torchvision(weights))

    def train(self, mode: bool = True) -> ImageEmbedder:
        """Training mode, of which a frozen backbone takes no notice."""
        super().train(mode)
        if self.frozen:
            self.trunk.eval()
        return self

    def front(self, features: Tensor) -> Tensor:
        """(n, h, w, channels) to (n, channels, h, w), without a copy and in the type that came."""
        wanted = (*self.image_size, self.in_channels)
        if tuple(features.shape[1:]) != wanted:
            raise InvalidInput(
                f"images must have shape (n, {', '.join(map(str, wanted))}), got {tuple(features.shape)}"
            )
        return features.permute(0, 3, 1, 2)

    def pixels(self, images: Tensor) -> Tensor:
        """Floats between 0 and 1 of bytes; floats are taken as they are."""
        if images.dtype == torch.uint8:
            return images.float() / 255
        if not images.is_floating_point():
            raise InvalidInput(f"images must be uint8, or floats between 0 and 1, got {images.dtype}")
        return images

    def normalized(self, pixels: Tensor) -> Tensor:
        """Pixels between 0 and 1 as the backbone wants them; gray in three channels where it has three."""
        return (pixels - self.mean) / self.std

    def trunk_features(self, prepared: Tensor) -> Tensor:
        """(n, channels, h, w) images, bytes or floats between 0 and 1, to the backbone's (n, width) features."""
        images = self.normalized(self.pixels(prepared))
        if not isinstance(self.trunk, ResNet) and tuple(images.shape[2:]) != self.trunk.input_size:
            images = F.interpolate(images, self.trunk.input_size, mode="bilinear", antialias=True)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features: Tensor = self.trunk(images)
        return features

    def projected(self, features: Tensor) -> Tensor:
        """(n, width) features of the backbone to (n, embed_dim) vectors of unit length, in float32."""
        return F.normalize(self.projection(features).float(), dim=1)

    def head_logits(self, features: Tensor) -> Tensor:
        """(n, width) features of the backbone to the head's (n, classes) logits."""
        if self.head is None:
            raise InvalidInput("this embedder has no head; build it with classes")
        logits: Tensor = self.head(features)
        return logits

    def body(self, prepared: Tensor) -> Tensor:
        """Vectors of images that went through :meth:`front`."""
        return self.projected(self.trunk_features(prepared))

    def forward(self, features: Tensor) -> Tensor:
        """(n, h, w, channels) images to (n, embed_dim) vectors."""
        return self.body(self.front(features))

    def shape(self) -> dict[str, Any]:
        """Arguments that build the same network; its mean and std are among the weights."""
        return {
            "backbone": self.backbone,
            "image_size": list(self.image_size),
            "in_channels": self.in_channels,
            "embed_dim": self.embed_dim,
            "projection": None if isinstance(self.projection, nn.Identity) else "mlp",
            "classes": self.classes,
            "frozen": self.frozen,
        }


def _trunk(backbone: str, image_size: tuple[int, int], in_channels: int) -> Trunk:
    if backbone in ("resnet18", "resnet50"):
        stem: Literal["small", "large"] = "small" if max(image_size) <= _SMALL else "large"
        return ResNet(18 if backbone == "resnet18" else 50, in_channels=in_channels, stem=stem)
    if backbone == "efficientnet-lite0":
        return EfficientNetLite0()
    if backbone.startswith("timm:"):
        return TimmTrunk(backbone.removeprefix("timm:"))
    raise InvalidInput(f"no backbone is called {backbone!r}; try one of: {', '.join(BACKBONES)}")


def _projection(width: int, embed_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, embed_dim))


def _by_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def _mean_and_std(images: NDArray[np.uint8]) -> tuple[Sequence[float], Sequence[float]]:
    """Of pixels between 0 and 1, by channel, over images from all over the array."""
    some = images[:: -(-len(images) // _LEARN_FROM)]
    total, squares = np.zeros(images.shape[3]), np.zeros(images.shape[3])
    for at in range(0, len(some), 64):  # as floats all of them would take 8 times their memory
        pixels = some[at : at + 64].reshape(-1, images.shape[3]) / 255.0
        total += pixels.sum(axis=0)
        squares += np.square(pixels).sum(axis=0)
    count = some[..., 0].size
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return mean.tolist(), np.maximum(std, 1 / 255).tolist()  # a constant channel must not divide by 0


def embed_images(
    network: ImageEmbedder,
    features: NDArray[np.uint8],
    *,
    batch: int = 512,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> NDArray[np.float32]:
    """Vectors of images, a batch at a time, on the network's device; it is left in eval mode.

    Args:
        network: The embedder.
        features: (n, h, w, channels) of uint8.
        batch: Images at once; fewer where the backbone sees them larger than 64 x 64.
        precision: ``bfloat16`` computes the backbone under autocast.
    """
    (vectors,), _ = embed_views(network, features, batch=batch, precision=precision)
    return vectors


@torch.inference_mode()
def embed_views(
    network: ImageEmbedder,
    features: NDArray[np.uint8],
    views: Callable[[Tensor], Sequence[Tensor]] | None = None,
    *,
    head: bool = False,
    batch: int = 512,
    precision: Literal["float32", "bfloat16"] = "float32",
) -> tuple[list[NDArray[np.float32]], NDArray[np.float64] | None]:
    """Vectors of several views of images, and what the head thinks of them, from one pass of the backbone.

    Args:
        network: The embedder; it is left in eval mode.
        features: (n, h, w, channels) of uint8.
        views: What makes views of (n, channels, h, w) images between 0 and 1, as many of each batch; without it
            there is one, the images themselves.
        head: Whether to ask the head.
        batch: Images at once, of each view; fewer where the backbone sees them larger than 64 x 64.
        precision: ``bfloat16`` computes the backbone under autocast.

    Returns:
        For each view (n, embed_dim) vectors, of no images for one view alone; the head's (n, classes)
        probabilities, the mean over the views.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, got {batch}")
    if precision not in ("float32", "bfloat16"):
        raise InvalidInput(f"precision must be 'float32' or 'bfloat16', got {precision!r}")
    height, width = network.image_size if isinstance(network.trunk, ResNet) else network.trunk.input_size
    batch = min(batch, max(1, _PIXELS // (height * width)))
    network.eval()
    vectors = [] if len(features) else [[np.empty((0, network.embed_dim), np.float32)]]
    chances: list[NDArray[np.float64]] = [np.empty((0, network.classes))]
    with torch.autocast(network.mean.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        for at in range(0, len(features), batch):
            shown = _shown(network, features[at : at + batch], views)
            seen = [network.trunk_features(each) for each in shown]
            vectors.append([network.projected(each).cpu().numpy() for each in seen])
            if head:
                said = [network.head_logits(each).cpu().double().softmax(dim=1) for each in seen]
                chances.append(torch.stack(said).mean(dim=0).numpy())
    by_view = [np.concatenate(each) for each in zip(*vectors, strict=True)]
    return by_view, np.concatenate(chances) if head else None


def _shown(
    network: ImageEmbedder, some: NDArray[np.uint8], views: Callable[[Tensor], Sequence[Tensor]] | None
) -> Sequence[Tensor]:
    images = network.front(torch.from_numpy(np.array(some)).to(network.mean.device))  # a copy: may be read-only
    pixels = network.pixels(images)
    return [pixels] if views is None else views(pixels)

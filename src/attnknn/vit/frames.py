"""Labelled images for a ViT: resized once, on the device where they fit, and normalized as they are asked for."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.train.rows import has_room

_AT_ONCE: Final = 2**27  # numbers of resized images computed at a time

Stats = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel, of images from 0 to 1."""


class Frames:
    """Images of one size with their labels.

    Args:
        images: uint8 (n, h, w, c).
        labels: (n,) classes.
        size: Height and width that a model reads.
        stats: What normalizes them.
        device: Where they are wanted. Resized images stay there if they take less than half of what is free;
            otherwise each batch is resized as it is asked for.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        *,
        size: tuple[int, int],
        stats: Stats,
        device: torch.device,
    ) -> None:
        if len(images) != len(labels) or not len(images):
            raise InvalidInput(f"expected a label for each image, got {len(images)} and {len(labels)}")
        self.device, self.size = device, size
        self.labels = torch.from_numpy(np.asarray(labels, np.int64)).to(device)
        self._mean, self._std = (torch.tensor(each, device=device)[:, None, None] for each in stats)
        bytes_ = len(images) * images.shape[3] * size[0] * size[1]
        given = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        if has_room(bytes_, device):
            step = max(
                1, _AT_ONCE // (images.shape[3] * max(size[0] * size[1], images.shape[1] * images.shape[2]))
            )
            given = torch.cat([resized(part.to(device), size) for part in torch.split(given, step)])
        self._images = given

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def resident(self) -> bool:
        """Whether the images lie where they are wanted, in the size that is wanted."""
        return self._images.device.type == self.device.type and tuple(self._images.shape[2:]) == self.size

    def pixels(self, at: Tensor) -> Tensor:
        """Some images as floats from 0 to 1, (n, c, h, w)."""
        some = self._images[at.to(self._images.device)].to(self.device, non_blocking=True)
        return resized(some, self.size).float().div_(255)

    def normalized(self, pixels: Tensor) -> Tensor:
        """With mean 0 and standard deviation 1 in each channel, over all training images."""
        return (pixels - self._mean) / self._std


def resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 images (n, c, h, w) in another size, smoothed where they shrink."""
    if tuple(images.shape[2:]) == size:
        return images
    changed = F.interpolate(images.float(), size, mode="bilinear", antialias=True, align_corners=False)
    return changed.round_().clamp_(0, 255).to(torch.uint8)


def channel_stats(images: NDArray[np.uint8]) -> Stats:
    """Mean and standard deviation of each channel of uint8 images (n, h, w, c), scaled to 1; no deviation is 0.

    >>> channel_stats(np.zeros((1, 2, 2, 1), np.uint8))
    ((0.0,), (1.0,))
    """
    counts = np.zeros((images.shape[3], 256))
    for part in np.array_split(images, -(-images.size // _AT_ONCE) or 1):  # counting takes eight times the bytes
        counts += [np.bincount(part[..., channel].ravel(), minlength=256) for channel in range(images.shape[3])]
    levels = np.arange(256) / 255
    means = [float(levels @ each / each.sum()) for each in counts]
    spread = [
        float(np.sqrt((levels - mean) ** 2 @ each / each.sum())) for mean, each in zip(means, counts, strict=True)
    ]
    return tuple(means), tuple(each or 1.0 for each in spread)

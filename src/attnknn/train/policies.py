"""Which random changes suit which images: a policy is a value, made by name for a size of image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.train import augment
from attnknn.train.augment import FILLS, Fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes to images in [0, 1], in the order color, rotate, flip, shift, cutout. By default none.

    Args:
        pad: Pixels by which an image is shifted at most, down and to the right; fewer than its sides have.
        fill: What moves in: ``reflect`` mirrors the image, ``zero`` is black.
        flip: Whether left and right may be exchanged.
        rotate: Greatest angle in degrees, either way.
        brightness: x draws a factor between 1 - x and 1 + x.
        contrast: Likewise.
        saturation: Likewise, for images of three channels.
        hue: Greatest part of a turn, either way, up to 0.5; for images of three channels.
        cutout: Side of the square that is set to 0.

    >>> Augmentation(flip=True)(torch.ones(2, 1, 4, 4), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 4, 4])
    """

    pad: int = 0
    fill: Fill = "reflect"
    flip: bool = False
    rotate: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("pad", "cutout"):
            augment.require_whole(name, getattr(self, name))
        for name in ("rotate", "brightness", "contrast", "saturation"):
            augment.require_amount(name, getattr(self, name))
        augment.require_amount("hue", self.hue, augment.MOST_HUE)
        if self.fill not in FILLS:
            raise InvalidInput(f"fill must be one of {', '.join(FILLS)}, got {self.fill!r}")
        if not isinstance(self.flip, bool):
            raise InvalidInput(f"flip must be True or False, got {self.flip!r}")

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """The images (n, c, h, w), each changed by its own draw; never in place."""
        images = augment.color_jitter(
            images,
            random,
            brightness=self.brightness,
            contrast=self.contrast,
            saturation=self.saturation,
            hue=self.hue,
        )
        if self.rotate:
            images = augment.rotate(images, self.rotate, random)
        if self.flip:
            images = augment.flip(images, random)
        if self.pad:
            images = augment.pad_crop(images, self.pad, random, fill=self.fill)
        if self.cutout:
            images = augment.cutout(images, self.cutout, random)
        return images

    def views(self, images: Tensor) -> list[Tensor]:
        """Up to five fixed versions of the images, the first as they are, to average answers over.

        With ``flip`` the others are the mirror image, the image shifted to the upper left and to the lower right,
        and the mirror image shifted to the upper right. Else with ``rotate``: the image turned by half the angle
        either way, and the same two shifts. Else shifts to all four corners. A shift is a quarter of ``pad``, at
        least 1; there is none without ``pad``, nor where a side has no more than 2 * pad pixels.
        """
        s = max(1, self.pad // 4)
        if self.flip:
            mirrored = images.flip(3)
            return [images, mirrored, *self._shifts(images, (-s, -s), (s, s)), *self._shifts(mirrored, (-s, s))]
        if self.rotate:
            angle = torch.full(images.shape[:1], math.radians(self.rotate / 2), device=images.device)
            turned = [augment.rotated(images, angle), augment.rotated(images, -angle)]
            return [images, *turned, *self._shifts(images, (-s, -s), (s, s))]
        return [images, *self._shifts(images, (-s, -s), (s, s), (-s, s), (s, -s))]

    def state(self) -> dict[str, Any]:
        """The policy for JSON; ``Augmentation(**state)`` makes it again."""
        return asdict(self)

    def _shifts(self, images: Tensor, *by: tuple[int, int]) -> list[Tensor]:
        if not self.pad or min(images.shape[2:]) <= 2 * self.pad:
            return []
        steps = ((torch.full(images.shape[:1], step, device=images.device) for step in both) for both in by)
        return [augment.shifted(images, down, right, fill=self.fill) for down, right in steps]


def _photos(side: int) -> Augmentation:
    return Augmentation(pad=side // 8, flip=True, cutout=3 * side // 8)


def _digits(side: int) -> Augmentation:
    return Augmentation(pad=max(1, side // 14), fill="zero", rotate=10.0)  # a mirrored 2 is no 2


def _clothes(side: int) -> Augmentation:
    return Augmentation(pad=max(1, side // 14), fill="zero", flip=True, cutout=side // 4)


POLICIES: Final[dict[str, Callable[[int], Augmentation]]] = {
    "photos": _photos,
    "digits": _digits,
    "clothes": _clothes,
    "none": lambda side: Augmentation(),
}
"""By name, what makes the policy for images of a given side."""


def policy(name: str, side: int) -> Augmentation:
    """The policy of that name, for images whose shorter side is ``side``.

    >>> policy("photos", 32) == Augmentation(pad=4, flip=True, cutout=12)
    True
    """
    if name not in POLICIES:
        raise InvalidInput(f"no policy is called {name!r}; try one of: {', '.join(POLICIES)}")
    if isinstance(side, bool) or not isinstance(side, int) or side < 2:
        raise InvalidInput(f"side must be a whole number of at least 2, got {side!r}")
    return POLICIES[name](side)


def chosen_policy(given: str | Augmentation, sides: Sequence[int]) -> Augmentation:
    """A policy as it is, or that of a name for images of height and width ``sides``."""
    return policy(given, min(sides)) if isinstance(given, str) else given


def policy_for(name: str | None) -> str:
    """The name of the policy that suits a data set; photos where nothing is known of it.

    >>> policy_for("mnist"), policy_for("fashion-mnist"), policy_for("cifar10")
    ('digits', 'clothes', 'photos')
    """
    return {"mnist": "digits", "digits": "digits", "fashion-mnist": "clothes"}.get(name or "", "photos")

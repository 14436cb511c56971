"""Random changes to a batch of images, on the device that holds it: each image has its own draw.

A change comes in two parts: a verb that draws (``flip``), and beneath it a pure function that is told what to do
(``flipped``). Images are floats (n, c, h, w) with 1 or 3 channels and are never changed in place. Nothing here
waits for the device, so numbers that lie on it are not checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from attnknn.errors import InvalidInput
from attnknn.train.nca import wide

Fill = Literal["reflect", "zero"]
FILLS: Final[tuple[Fill, ...]] = get_args(Fill)
MOST_HUE: Final = 0.5
"""Half a turn either way is every hue there is."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Images that each hold something of another one.

    Args:
        images: (n, c, h, w).
        partner: (n,) the row of the other image, a permutation.
        share: (n,) how much of the own label remains; the partner's label has the rest.
    """

    images: Tensor
    partner: Tensor
    share: Tensor


def pad_crop(images: Tensor, pad: int, random: torch.Generator, *, fill: Fill = "reflect") -> Tensor:
    """Shift each image by -pad .. pad pixels, down and to the right: a random crop of the padded image."""
    count = _count(images, random)
    require_whole("pad", pad)
    height, width = images.shape[2:]
    if pad >= min(height, width):
        raise InvalidInput(f"pad must be smaller than each side of the images, {height} x {width}, got {pad!r}")
    down, right = torch.randint(-pad, pad + 1, (2, count), generator=random, device=images.device)
    return shifted(images, down, right, fill=fill)


def shifted(images: Tensor, down: Tensor, right: Tensor, *, fill: Fill = "reflect") -> Tensor:
    """Each image moved by its whole numbers of pixels, fewer than a side has.

    Args:
        images: (n, c, h, w).
        down: (n,) integers.
        right: (n,) integers.
        fill: What moves in: ``reflect`` mirrors the image at its edge pixel, ``zero`` is 0.

    >>> shifted(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([0]), torch.tensor([1])).tolist()
    [[[[2.0, 1.0, 2.0]]]]
    """
    if fill not in FILLS:
        raise InvalidInput(f"fill must be one of {', '.join(FILLS)}, got {fill!r}")
    height, width = images.shape[2:]
    rows = torch.arange(height, device=down.device) - down[:, None]  # (n, h): the row that each row comes from
    columns = torch.arange(width, device=right.device) - right[:, None]
    at = (_within(rows, height, fill)[:, :, None] * width + _within(columns, width, fill)[:, None, :]).flatten(1)
    taken = images.flatten(2).gather(2, at[:, None].expand(-1, images.shape[1], -1)).reshape(images.shape)
    if fill == "zero":
        gone = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None, :]
        taken = taken.masked_fill(gone[:, None], 0.0)
    return _laid_out_as(images, taken)


def flip(images: Tensor, random: torch.Generator) -> Tensor:
    """Exchange left and right in each image with a chance of 1/2."""
    coins = torch.randint(2, (_count(images, random),), generator=random, device=images.device)
    return flipped(images, coins == 1)


def flipped(images: Tensor, which: Tensor) -> Tensor:
    """Left and right exchanged in the images where ``which``, (n,) booleans, holds."""
    return _laid_out_as(images, torch.where(which[:, None, None, None], images.flip(3), images))


def rotate(images: Tensor, degrees: float, random: torch.Generator) -> Tensor:
    """Turn each image by an angle between -degrees and degrees."""
    count = _count(images, random)
    require_amount("degrees", degrees)
    return rotated(images, _uniform(count, -math.radians(degrees), math.radians(degrees), random))


def rotated(images: Tensor, angles: Tensor) -> Tensor:
    """Each image turned counterclockwise about its center by its angle in radians: bilinear, 0 outside."""
    height, width = images.shape[2:]
    # Half precision has too few digits for coordinates, and affine_grid is a product of matrices, which autocast
    # and TF32 would round.
    work = wide(images)
    sin, cos = (part(angles.to(work))[:, None, None] for part in (torch.sin, torch.cos))
    down, right = (torch.arange(side, device=work.device).to(work) - (side - 1) / 2 for side in (height, width))
    down = down[:, None]  # (h, 1) and (w,): pixels from the center
    grid = torch.stack([(cos * right - sin * down) * 2 / width, (sin * right + cos * down) * 2 / height], dim=-1)
    turned = functional.grid_sample(work, grid, padding_mode="zeros", align_corners=False)
    return _laid_out_as(images, turned.to(images.dtype))


def color_jitter(
    images: Tensor,
    random: torch.Generator,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Change the colors of images in [0, 1], in the order of the arguments; the result is in [0, 1] too.

    An image of one channel has neither saturation nor hue.

    Args:
        images: (n, c, h, w).
        random: Where the draws come from.
        brightness: x draws a factor between 1 - x, at least 0, and 1 + x.
        contrast: Likewise, about the mean gray of the image.
        saturation: Likewise, about the gray of each pixel.
        hue: Greatest part of a turn by which the hue moves, either way; 0.5 at most.
    """
    count, colored = _count(images, random), images.shape[1] == 3
    require_amount("hue", hue, MOST_HUE)
    for name, amount in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
        require_amount(name, amount)

    def factors(amount: float) -> Tensor:
        return _uniform(count, max(0.0, 1 - amount), 1 + amount, random)

    work = wide(images)
    if brightness:
        work = blended(work, factors(brightness), 0.0)
    if contrast:
        work = blended(work, factors(contrast), gray(work).mean(dim=(2, 3), keepdim=True))
    if saturation and colored:
        work = blended(work, factors(saturation), gray(work))
    if hue and colored:
        work = hue_shifted(work, _uniform(count, -hue, hue, random))
    return _laid_out_as(images, work.to(images.dtype))


def blended(images: Tensor, factors: Tensor, base: Tensor | float) -> Tensor:
    """Images in [0, 1] whose difference from ``base`` is multiplied by their (n,) factors, clamped to [0, 1]."""
    factor = factors.to(images)[:, None, None, None]
    return (factor * images + (1 - factor) * base).clamp(0, 1)


def gray(images: Tensor) -> Tensor:
    """The images in one channel, weighed as in torchvision."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def hue_shifted(images: Tensor, turns: Tensor) -> Tensor:
    """Images of three channels in [0, 1] whose hue is moved by (n,) parts of a turn; value and saturation stay."""
    red, green, blue = images.unbind(dim=1)
    value = images.amax(dim=1)
    chroma = value - images.amin(dim=1)
    divisor = chroma.masked_fill(chroma == 0, 1.0)  # a gray has no hue; where() would copy the 1 to the device
    from_green, from_blue = (blue - red) / divisor + 2, (red - green) / divisor + 4
    sixths = torch.where(value == green, from_green, from_blue)
    sixths = torch.where(value == red, (green - blue) / divisor, sixths) + 6 * turns.to(images)[:, None, None]
    # How far into its own turn a channel is: it falls in the first sixth, stays down, rises in the fourth.
    into = ((sixths + ahead) % 6 for ahead in (5, 3, 1))
    channels = [value - chroma * torch.minimum(at, 4 - at).clamp(0, 1) for at in into]
    return _laid_out_as(images, torch.stack(channels, dim=1))


def cutout(images: Tensor, size: int, random: torch.Generator, *, fill: float = 0.0) -> Tensor:
    """Set one square of each image to ``fill``, its center anywhere in the image: at the border less is lost."""
    _count(images, random)
    require_whole("size", size)
    return erased(images, *_centers(images, random), size, fill=fill)


def erased(images: Tensor, rows: Tensor, columns: Tensor, size: int, *, fill: float = 0.0) -> Tensor:
    """Each image with a square about its pixel (row, column), both (n,) integers, set to ``fill``."""
    height, width = images.shape[2:]
    box = _inside(rows, size, height)[:, :, None] & _inside(columns, size, width)[:, None, :]
    return _laid_out_as(images, images.masked_fill(box[:, None], fill))


def mixup(images: Tensor, alpha: float, random: torch.Generator) -> Mixed:
    """Average each image with another one, by a share drawn from Beta(alpha, alpha)."""
    count = _count(images, random)
    partner = torch.randperm(count, generator=random, device=images.device)
    share = symmetric_beta(count, alpha, random)
    return Mixed(averaged(images, partner, share), partner, share)


def averaged(images: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """``share`` of each image and 1 - share of its partner."""
    own = share[:, None, None, None]
    mixed = own * images + (1 - own) * images[partner]
    return _laid_out_as(images, mixed.to(images.dtype))


def cutmix(images: Tensor, alpha: float, random: torch.Generator) -> Mixed:
    """Put a box of another image into each one, in the same place; Beta(alpha, alpha) draws how much stays.

    The center is anywhere in the image. ``share`` counts the pixels that did stay, now that the box is clipped.
    """
    count = _count(images, random)
    partner = torch.randperm(count, generator=random, device=images.device)
    share = symmetric_beta(count, alpha, random)
    mixed, share = pasted(images, partner, *_centers(images, random), share)
    return Mixed(mixed, partner, share)


def pasted(images: Tensor, partner: Tensor, rows: Tensor, columns: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Images with a box about the pixel (row, column) from their partner, and the share of pixels that stay.

    The box has the images' proportions and, but for rounding and clipping, 1 - share of their area.
    """
    height, width = images.shape[2:]
    scale = (1 - share).sqrt()
    down = _inside(rows, (scale * height).round().long(), height)  # (n, h)
    across = _inside(columns, (scale * width).round().long(), width)
    box = (down[:, :, None] & across[:, None, :])[:, None]
    stays = 1 - (down.sum(dim=1) * across.sum(dim=1)).to(share) / (height * width)
    return _laid_out_as(images, torch.where(box, images[partner], images)), stays


def symmetric_beta(count: int, alpha: float, random: torch.Generator) -> Tensor:
    """So many draws from Beta(alpha, alpha), without rejection, in float32.

    By way of Student's t with 2 alpha degrees of freedom: t / sqrt(2 alpha + t^2) is such a draw, stretched to
    [-1, 1], and Bailey's polar method makes t from two uniform numbers (Mathematics of Computation 62, 1994).
    """
    if not 0 < alpha < math.inf:
        raise InvalidInput(f"alpha must be above 0 and finite, got {alpha!r}")
    power = _uniform(count, 0.0, 1.0, random).log() / alpha
    direction = (math.pi * _uniform(count, 0.0, 1.0, random)).cos()
    # As t^2 / (2 alpha + t^2) = part / (exp(power) + part), because t^2 itself can overflow.
    part = -power.expm1() * direction.square()
    drawn: Tensor = (1 + direction.sign() * (part / (power.exp() + part)).sqrt()) / 2
    return drawn


def require_whole(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"{name} must be a whole number of at least 0, got {value!r}")


def require_amount(name: str, value: Any, most: float = math.inf) -> None:
    """Refuse what is not a finite number between 0 and ``most``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= most or value == math.inf:
        limit = "finite" if most == math.inf else f"at most {most}"
        raise InvalidInput(f"{name} must be a number, at least 0 and {limit}, got {value!r}")


def _count(images: Tensor, random: torch.Generator) -> int:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
        got = f"{tuple(images.shape)} of {images.dtype}"
        raise InvalidInput(f"expected float images (n, c, h, w) with 1 or 3 channels, got {got}")
    if random.device.type != images.device.type:
        raise InvalidInput(f"random must be on the device of the images, {images.device}, got {random.device}")
    return len(images)


def _uniform(count: int, low: float, high: float, random: torch.Generator) -> Tensor:
    drawn = torch.rand(count, generator=random, device=random.device, dtype=torch.float32)
    return low + (high - low) * drawn


def _centers(images: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    sides = images.shape[2:]
    rows, columns = (torch.randint(s, images.shape[:1], generator=random, device=images.device) for s in sides)
    return rows, columns


def _within(places: Tensor, side: int, fill: Fill) -> Tensor:
    last = side - 1
    return places.clamp(0, last) if fill == "zero" else last - (last - places.abs()).abs()


def _inside(centers: Tensor, sides: Tensor | int, length: int) -> Tensor:
    first, places = centers - sides // 2, torch.arange(length, device=centers.device)
    return (places >= first[:, None]) & (places < (first + sides)[:, None])


def _laid_out_as(images: Tensor, result: Tensor) -> Tensor:
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return result.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)

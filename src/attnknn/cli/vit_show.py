"""What ``attnknn vit show`` draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnknn.vit.saved import TrainedViT


def draw(found: TrainedViT, image: Path, token: str, head: int, out: Path) -> None:
    """Write a picture of the tokens that each block keeps for one token.

    Args:
        found: A model.
        image: A file.
        token: Row and column of a patch, ``r,c``.
        head: Which head.
        out: The picture.
    """
    import numpy as np
    import torch

    from attnknn.vit.picture import write_kept

    model, place = found.model, _place(token)
    pixels = _read(image, found)
    frames = found.frames(pixels[None], np.zeros(1, np.int64))
    asked = frames.normalized(frames.pixels(torch.zeros(1, dtype=torch.int64)))
    heads = int(found.config.get("num_heads", 3))
    if head >= heads:
        raise InvalidInput(f"--head {head}: the model has heads 0 to {heads - 1}")
    kept = [None if each is None else each[0, head] for each in model.kept_tokens(asked)]
    write_kept(
        out,
        pixels,
        kept,
        grid=model.grid_size,
        token=place,
        class_token=model.pool == "cls",
        names=model.layers,
        patch_size=model.patch_embedding.patch_size,
    )


def _place(token: str) -> tuple[int, int]:
    parts = [part.strip() for part in token.split(",")]
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise InvalidInput(f"--token {token}: give row and column, such as 3,4")
    return int(parts[0]), int(parts[1])


def _read(image: Path, found: TrainedViT) -> NDArray[np.uint8]:
    """The image in the size and channels that the model reads."""
    from attnknn.data import resize_image
    from attnknn.data.images import decode_image

    pixels = decode_image(image, channels=found.model.in_channels)
    return resize_image(pixels, found.model.img_size)

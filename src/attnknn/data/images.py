"""Images as arrays of pixels: safe decoding, resizing, and the check of arrays that hold many of them."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import AttnKNNError, InvalidInput, MissingData, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Picture = str | PathLike[str] | bytes
Size = int | tuple[int, int]  # the side of a square, or height and width

MOST_PIXELS = 16_000_000  # width times height of an image that is decoded
LEAST_SIDE, MOST_SIDE = 8, 1024  # of images to learn from
CHANNELS = (1, 3)

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_EXPECTED = "expected a PNG, JPEG, WebP, BMP or GIF image"
_GRAY = ("1", "L", "LA")  # of Pillow's modes; those of 16 bits start with I
_CLEAR = ("RGBA", "LA", "PA")
_ORIENTATION = 0x0112  # a tag of EXIF
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_LYING = (5, 6, 7, 8)  # orientations that exchange height and width
_opening = threading.Lock()  # held while Pillow's own limit is lifted


def decode_image(source: Picture, *, channels: int = 3) -> Pixels:
    """Decode one image, whatever its kind, to (height, width, channels) from 0 to 255.

    What is transparent shows white, EXIF orientation is applied, 16 bits are scaled to 8, and of an animation
    the first frame counts. The size is read before anything is decoded.

    Args:
        source: A file, or the bytes of one: PNG, JPEG, WebP, BMP or GIF.
        channels: 3 for color, 1 for gray.

    Raises:
        MissingData: There is no such file.
        InvalidInput: Not an image, damaged, or more than ``MOST_PIXELS`` pixels.
        MissingExtra: Pillow is not installed.
    """
    if channels not in CHANNELS:
        raise InvalidInput(f"channels must be 1 or 3, got {channels=}")
    with _opened(source) as image:
        found = _upright(image, _on_white(image)).convert("RGB" if channels == 3 else "L")
        return np.array(found, dtype=np.uint8).reshape(found.height, found.width, channels)


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself before it is decoded."""

    height: int  # as seen: with the orientation applied
    width: int
    gray: bool


def image_header(source: Picture) -> Header:
    """Size and color of an image; raises as :func:`decode_image` does."""
    with _opened(source) as image:
        height, width = image.height, image.width
        if _orientation(image) in _LYING:
            height, width = width, height
        return Header(height, width, image.mode in _GRAY or image.mode.startswith("I"))


def resize_image(image: Pixels, size: Size) -> Pixels:
    """Scale an image until it just covers ``size`` and keep its middle; of that size it is returned as is.

    Args:
        image: Pixels of shape (height, width, channels).
        size: The side of a square, or height and width; 8 to 1024 each.
    """
    high, wide = sides(size)
    if not _are_pixels(image) or image.ndim != 3 or image.shape[2] not in CHANNELS or not image.size:
        raise InvalidInput(f"expected uint8 pixels of shape (height, width, 1 or 3), got {_described(image)}")
    height, width, channels = image.shape
    if (height, width) == (high, wide):
        return image
    pillow = _pillow()
    scale = min(height / high, width / wide)
    # Rounding must not lead outside.
    left, top = max(0.0, (width - wide * scale) / 2), max(0.0, (height - high * scale) / 2)
    # Only what is kept is resampled: the whole of a long strip would not fit into memory.
    kept = pillow.fromarray(image if channels == 3 else image[..., 0]).resize(
        (wide, high), pillow.Resampling.BICUBIC, box=(left, top, width - left, height - top)
    )
    return np.array(kept, dtype=np.uint8).reshape(high, wide, channels)


def recolor(images: Pixels, channels: int) -> Pixels:
    """Images (n, h, w, c) in gray (1 channel) or in color (3); of that kind they are returned as they are."""
    if images.shape[3] == channels:
        return images
    if channels == 3:
        return np.repeat(images, 3, axis=3)
    pillow = _pillow()
    gray = [np.asarray(pillow.fromarray(image).convert("L")) for image in images]
    return np.stack(gray)[..., None] if gray else np.empty((*images.shape[:3], 1), np.uint8)


def sides(size: Size) -> tuple[int, int]:
    """Height and width of a size that images to learn from can have.

    Raises:
        InvalidInput: Not one or two whole numbers from 8 to 1024.

    >>> sides(32), sides((28, 40))
    ((32, 32), (28, 40))
    """
    both = size if isinstance(size, tuple) else (size, size)
    whole = all(isinstance(side, int | np.integer) and not isinstance(side, bool) for side in both)
    if not whole or len(both) != 2 or not all(LEAST_SIDE <= side <= MOST_SIDE for side in both):
        raise InvalidInput(
            f"size must be a whole number from {LEAST_SIDE} to {MOST_SIDE}, or height and width, got {size=}"
        )
    return int(both[0]), int(both[1])


def is_images(X: Any) -> TypeGuard[Pixels]:
    """Whether ``X`` has the type and shape of images: uint8, (n, h, w) or (n, h, w, 1 or 3).

    >>> is_images(np.zeros((5, 32, 32, 3), np.uint8)), is_images(np.zeros((5, 64)))
    (True, False)
    """
    return _are_pixels(X) and (X.ndim == 3 or (X.ndim == 4 and X.shape[3] in CHANNELS))


def as_images(X: Any) -> Pixels:
    """Images as an array of shape (n, height, width, channels), a view of what was given.

    Args:
        X: uint8 from 0 to 255 of shape (n, h, w), or (n, h, w, c) with 1 or 3 channels; sides of 8 to 1024.

    Raises:
        InvalidInput: Anything else; the message says what is wrong.

    >>> as_images(np.zeros((5, 28, 28), np.uint8)).shape
    (5, 28, 28, 1)
    """
    if not isinstance(X, np.ndarray):
        raise InvalidInput(f"images must be a NumPy array, got {type(X).__name__}")
    if X.dtype != np.uint8:
        raise InvalidInput(f"pixels are uint8 from 0 to 255, got {X.dtype}")
    if X.ndim not in (3, 4):
        raise InvalidInput(f"images have the shape (n, h, w) or (n, h, w, channels), got {X.shape}")
    images = X[..., None] if X.ndim == 3 else X
    _check_shape(images.shape, X.shape)
    return images


def _check_shape(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    _, height, width, channels = shape
    if channels not in CHANNELS:
        if height in CHANNELS:
            raise InvalidInput(f"channels come last: expected (n, h, w, {height}), got shape {given}")
        raise InvalidInput(f"images have 1 or 3 channels, got {channels} in shape {given}")
    if not (LEAST_SIDE <= height <= MOST_SIDE and LEAST_SIDE <= width <= MOST_SIDE):
        alone = "; one image alone needs a leading axis" if len(given) == 3 and width in CHANNELS else ""
        raise InvalidInput(
            f"images must be {LEAST_SIDE} to {MOST_SIDE} pixels high and wide, "
            f"got {height} x {width} in shape {given}{alone}"
        )


def _are_pixels(X: Any) -> TypeGuard[Pixels]:
    return isinstance(X, np.ndarray) and X.dtype == np.uint8


def _described(X: Any) -> str:
    return f"{X.dtype} of shape {X.shape}" if isinstance(X, np.ndarray) else type(X).__name__


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("images need Pillow: pip install 'attnknn[images]'") from None
    return Image


@contextmanager
def _opened(source: Picture) -> Iterator[Image]:
    """An image whose header was read and whose size can be borne; what fails inside names the source."""
    pillow = _pillow()
    name = "the given bytes" if isinstance(source, bytes) else str(source)
    with _stream(source, name) as file:
        if not file.read(1):
            raise InvalidInput(f"{name}: empty; {_EXPECTED}")
        file.seek(0)
        try:
            image = _header(pillow, file)
            _check_pixels(name, image.width, image.height)
            yield image
        except AttnKNNError:
            raise
        except pillow.UnidentifiedImageError:
            raise InvalidInput(f"{name}: no image that can be read, or cut short; {_EXPECTED}") from None
        except Exception as error:  # on damaged bytes a decoder may fail in any way
            raise InvalidInput(f"{name}: the image is damaged or cut short: {error}") from None


def _stream(source: Picture, name: str) -> IO[bytes]:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    path = Path(source)
    if not path.exists():
        raise MissingData(f"no such file: {name}")
    if not path.is_file():
        raise InvalidInput(f"{name} is not a file")
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}") from None


def _header(pillow: Any, file: IO[bytes]) -> Image:
    # Pillow only warns above one size and raises above another, both far over ours, or wherever a user set them.
    with _opening:
        limit, pillow.MAX_IMAGE_PIXELS = pillow.MAX_IMAGE_PIXELS, None
        try:
            image: Image = pillow.open(file, formats=_FORMATS)
        finally:
            pillow.MAX_IMAGE_PIXELS = limit
    return image


def _check_pixels(name: str, width: int, height: int) -> None:
    if not 0 < width * height <= MOST_PIXELS:
        raise InvalidInput(f"{name}: {width} x {height} pixels; at most {MOST_PIXELS:,} are decoded")


def _on_white(image: Image) -> Image:
    """The image in RGB, laid on white."""
    pillow = _pillow()
    image.load()
    if image.mode.startswith("I"):
        return _from_16_bits(image).convert("RGB")
    if image.mode not in _CLEAR and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    laid: Image = pillow.alpha_composite(pillow.new("RGBA", layer.size, "white"), layer)
    return laid.convert("RGB")


def _from_16_bits(image: Image) -> Image:
    # Pillow would cut everything over 255 off.
    values = np.asarray(image).astype(np.float64)
    scaled = np.rint(values / 257).clip(0, 255)
    scaled[values == image.info.get("transparency", -1)] = 255
    gray: Image = _pillow().fromarray(scaled.astype(np.uint8))
    return gray


def _upright(image: Image, pixels: Image) -> Image:
    turn = _TURNS.get(_orientation(image))
    return pixels if turn is None else pixels.transpose(_pillow().Transpose[turn])


def _orientation(image: Image) -> int:
    try:
        found: int = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF is no reason to refuse a good picture
        return 1
    return found

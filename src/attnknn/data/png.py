"""Pixels to PNG files, without a library: for pages that show pictures and need nothing else."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from attnknn.data.images import Pixels
from attnknn.errors import InvalidInput

_COLORS = {1: 0, 3: 2}  # of a PNG's header: gray, red-green-blue


def png(image: Pixels) -> bytes:
    """One image as a PNG file.

    Args:
        image: uint8 of shape (height, width) or (height, width, 1 or 3).

    >>> png(np.zeros((8, 8), np.uint8))[1:4]
    b'PNG'
    """
    pixels = _checked(image)
    height, width, channels = pixels.shape
    filters = np.zeros((height, 1), np.uint8)  # each line begins with the number of its filter: none
    lines = np.concatenate([filters, pixels.reshape(height, width * channels)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLORS[channels], 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def png_uri(image: Pixels) -> str:
    """One image as an address that holds all of it, for the ``src`` of an HTML page."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def _checked(image: Any) -> Pixels:
    pixels = image[..., None] if isinstance(image, np.ndarray) and image.ndim == 2 else image
    fine = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.size
    if not fine or pixels.shape[2] not in _COLORS:
        got = f"{image.dtype} of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise InvalidInput(f"expected uint8 pixels of shape (height, width) or (height, width, 1 or 3), got {got}")
    return pixels


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

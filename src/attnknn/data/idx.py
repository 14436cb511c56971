"""MNIST and Fashion-MNIST: files of the IDX format, a short header and then plain bytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput

TRAIN_ROWS = 60_000
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

Labelled = tuple[NDArray[np.uint8], NDArray[Any]]

_UNSIGNED_BYTES = b"\0\0\x08"  # what an IDX file of them starts with; the number of axes follows


def read_mnist(folder: Path) -> Labelled:
    """Handwritten digits, the training rows first; labels are the digits."""
    return _read(folder / "MNIST" / "raw")


def read_fashion_mnist(folder: Path) -> Labelled:
    """Pieces of clothing, the training rows first; labels are their names."""
    X, y = _read(folder / "FashionMNIST" / "raw")
    return X, np.array(FASHION)[y]


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes that must have ``axes`` axes.

    Raises:
        InvalidInput: The file cannot be read, or its header and its length do not say that.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    start = 4 * (1 + axes)
    if len(content) < start or content[:4] != _UNSIGNED_BYTES + bytes([axes]):
        raise InvalidInput(f"{path} is not an IDX file of unsigned bytes with {axes} axes: wrong header")
    shape = tuple(int(side) for side in np.frombuffer(content, ">u4", axes, offset=4))
    if len(content) != start + math.prod(shape):
        raise InvalidInput(
            f"{path} is cut short or too long: its header promises {start + math.prod(shape)} bytes, "
            f"it has {len(content)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    parts = [
        _part(folder / images, folder / labels) for images, labels in zip(FILES[::2], FILES[1::2], strict=True)
    ]
    X = np.concatenate([images for images, _ in parts])
    return X[..., None], np.concatenate([labels for _, labels in parts]).astype(np.int64)


def _part(images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    X, y = read_idx(images, 3), read_idx(labels, 1)
    if len(X) != len(y):
        raise InvalidInput(f"{images} has {len(X)} images, but {labels} has {len(y)} labels")
    if len(y) and y.max() >= len(FASHION):
        raise InvalidInput(f"{labels} holds the label {y.max()}; expected 0 to {len(FASHION) - 1}")
    return X, y

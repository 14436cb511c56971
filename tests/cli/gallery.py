"""Folders of small pictures that can be learned: handwritten digits, and patches of one color."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

NAMES = {0: "zero", 1: "one", 2: "two"}


def digits(digit: int, start: int, count: int) -> np.ndarray:
    """Some handwritten digits of 8 x 8 pixels as bytes, (n, 8, 8)."""
    bunch = load_digits()
    return np.clip(bunch.images[bunch.target == digit][start : start + count] * 16, 0, 255).astype(np.uint8)


def write_digits(root: Path, *classes: int, start: int = 0, count: int = 25, flat: bool = False) -> Path:
    """``root/zero/0.png`` and so on; with ``flat`` no folders of classes."""
    for digit in classes:
        folder = root if flat else root / NAMES[digit]
        folder.mkdir(parents=True, exist_ok=True)
        for at, image in enumerate(digits(digit, start, count)):
            Image.fromarray(image).save(folder / f"{start + at:03d}.png")
    return root


def write_patch(path: Path, color: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (8, 8)) -> Path:
    """A picture of one color; ``size`` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path

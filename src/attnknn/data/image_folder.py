"""Images in folders, one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnknn.data.images import LEAST_SIDE, Pixels, Size, decode_image, image_header, resize_image, sides
from attnknn.errors import InvalidInput, MissingData

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
USUAL_SIDE = 224
"""The longest side of images whose size is not asked for; that of most backbones' own training."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """The images of a folder, in the order of their paths.

    Args:
        paths: Every image file.
        names: The path of each below the root, with slashes.
        labels: The class of each file: the folder below the root that it lies in.
        classes: The classes, sorted.
        ignored: How many files were left out because their names do not end like an image's.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    labels: NDArray[np.str_]
    classes: tuple[str, ...]
    ignored: int

    def __len__(self) -> int:
        return len(self.paths)


def list_images(root: str | PathLike[str]) -> ImageFiles:
    """Find the images below ``root/<class>/``, at any depth; hidden files and folders do not count.

    Raises:
        MissingData: There is no such folder.
        InvalidInput: The folder is not laid out by class, or a class has no images.
    """
    top = Path(root)
    folders, others = _top_level(top)
    found = {folder.name: _below(folder) for folder in folders}
    kept = {name: [file for file in files if _is_image(file)] for name, files in found.items()}
    empty = [name for name, files in kept.items() if not files]
    if empty:
        raise _misplaced(top, f"{top / empty[0]} has no images ({', '.join(SUFFIXES)})")
    paths = tuple(file for files in kept.values() for file in files)
    labels = np.repeat(np.array(list(map(_told, kept)), dtype=np.str_), [len(files) for files in kept.values()])
    ignored = others + sum(map(len, found.values())) - len(paths)
    return ImageFiles(paths, _names(paths, top), labels, tuple(map(_told, kept)), ignored)


def find_images(root: str | PathLike[str]) -> ImageFiles:
    """Find the images below ``root`` at any depth, in folders of classes or not; their labels are empty.

    Raises:
        MissingData: There is no such folder.
        InvalidInput: There are no images in it.
    """
    top = Path(root)
    if not top.exists():
        raise MissingData(f"no such folder: {top}")
    files = [file for entry in _visible(_entries(top)) for file in (_below(entry) if entry.is_dir() else [entry])]
    paths = tuple(file for file in files if _is_image(file))
    if not paths:
        raise InvalidInput(f"{top} has no images ({', '.join(SUFFIXES)})")
    return ImageFiles(paths, _names(paths, top), np.full(len(paths), "", np.str_), (), len(files) - len(paths))


def has_loose_images(root: str | PathLike[str]) -> bool:
    """Whether images lie directly in a folder, outside folders of classes."""
    return any(_is_image(entry) and not entry.is_dir() for entry in _visible(_entries(Path(root))))


def is_image_file(path: str | PathLike[str]) -> bool:
    """Whether a path is a file whose name ends like an image's.

    >>> is_image_file("nowhere.png")
    False
    """
    return Path(path).is_file() and _is_image(Path(path))


def usual_size(paths: Sequence[str | PathLike[str]]) -> tuple[tuple[int, int], bool]:
    """Height and width to bring images to when nobody says, and whether all of them have it already.

    The size that all share. Where sizes differ, or one is beyond ``USUAL_SIDE``, a square: its side is the median
    of the shorter sides, up to ``USUAL_SIDE``. Only headers are read.
    """
    headers = [image_header(path) for path in paths]
    shapes = {(each.height, each.width) for each in headers}
    shared = next(iter(shapes))
    if len(shapes) == 1 and min(shared) >= LEAST_SIDE and max(shared) <= USUAL_SIDE:
        return shared, True
    median = int(np.median([min(each.height, each.width) for each in headers]))
    side = min(USUAL_SIDE, max(LEAST_SIDE, median))
    return (side, side), False


def load_images(
    paths: Sequence[str | PathLike[str]],
    *,
    size: Size | None = None,
    channels: int | None = 3,
    progress: Callable[[int], None] | None = None,
) -> Pixels:
    """Decode images into one array of shape (n, height, width, channels).

    Args:
        paths: Files, at least one.
        size: Side of the square, or height and width, that each image is brought to; None where all have one
            size already.
        channels: 3 for color, 1 for gray; None takes 1 where every file is gray, else 3.
        progress: Told how many images are done, after each.

    Raises:
        MissingData: A file is absent.
        InvalidInput: A file cannot be decoded, or sizes differ and ``size`` is None.
    """
    if not len(paths):
        raise InvalidInput("there are no images to load")
    if size is not None:
        sides(size)
    if channels is None:
        channels = 1 if all(image_header(path).gray for path in paths) else 3
    first = _loaded(paths[0], size, channels)
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)
    for at, path in enumerate(paths):
        image = first if at == 0 else _loaded(path, size, channels)
        if image.shape != first.shape:
            raise InvalidInput(
                f"images differ in size: {paths[0]} has {_sides(first)} pixels, {path} has {_sides(image)}; "
                f"give a size to bring them to"
            )
        images[at] = image
        if progress is not None:
            progress(at + 1)
    return images


def _loaded(path: str | PathLike[str], size: Size | None, channels: int) -> Pixels:
    image = decode_image(path, channels=channels)
    return image if size is None else resize_image(image, size)


def _sides(image: Pixels) -> str:
    return f"{image.shape[1]} x {image.shape[0]}"


def _top_level(top: Path) -> tuple[list[Path], int]:
    """The folders of the classes, and how many files lie beside them."""
    if not top.exists():
        raise MissingData(f"no such folder: {top}")
    entries = _visible(_entries(top))
    folders = [entry for entry in entries if entry.is_dir()]
    images = [entry for entry in entries if not entry.is_dir() and _is_image(entry)]
    if images:
        raise _misplaced(top, f"{images[0]} lies outside the folders of classes")
    if not folders:
        raise _misplaced(top, f"{top} has no folders")
    return folders, len(entries) - len(folders)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be listed: {error.strerror}") from None


def _below(folder: Path) -> list[Path]:
    """Files at any depth, sorted. Links to folders inside are not followed: they could lead back."""
    files: list[Path] = []
    for entry in _visible(_entries(folder)):
        if not entry.is_dir():
            files.append(entry)
        elif not entry.is_symlink():
            files.extend(_below(entry))
    return files


def _visible(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if not path.name.startswith(".")]


def _names(paths: Sequence[Path], top: Path) -> tuple[str, ...]:
    return tuple(_told(path.relative_to(top).as_posix()) for path in paths)


def _told(name: str) -> str:
    """A name that can be written anywhere: bytes that are no UTF-8 are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _misplaced(top: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"{problem}; expected one folder for each class, such as {top / 'cat' / '1.png'}")

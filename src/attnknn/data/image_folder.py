"""Images in folders, one folder for each class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnknn.data.images import Pixels, check_size, decode_image, is_gray_image, resize_image
from attnknn.errors import InvalidInput, MissingData

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """The images of a folder, in the order of their paths.

    Args:
        paths: Every image file.
        labels: The class of each file: the folder below the root that it lies in.
        classes: The classes, sorted.
        ignored: How many files were left out because their names do not end like an image's.
    """

    paths: tuple[Path, ...]
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
    labels = np.repeat(np.array(list(kept), dtype=np.str_), [len(files) for files in kept.values()])
    ignored = others + sum(map(len, found.values())) - len(paths)
    return ImageFiles(paths, labels, tuple(kept), ignored)


def load_images(
    paths: Sequence[str | PathLike[str]],
    *,
    size: int | None = None,
    channels: int | None = 3,
    progress: Callable[[int], None] | None = None,
) -> Pixels:
    """Decode images into one array of shape (n, height, width, channels).

    Args:
        paths: Files, at least one.
        size: Side of the square that each image is brought to; None where all have one size already.
        channels: 3 for color, 1 for gray; None takes 1 where every file is gray, else 3.
        progress: Told how many images are done, after each.

    Raises:
        MissingData: A file is absent.
        InvalidInput: A file cannot be decoded, or sizes differ and ``size`` is None.
    """
    if not len(paths):
        raise InvalidInput("there are no images to load")
    if size is not None:
        check_size(size)
    if channels is None:
        channels = 1 if all(map(is_gray_image, paths)) else 3
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


def _loaded(path: str | PathLike[str], size: int | None, channels: int) -> Pixels:
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


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _misplaced(top: Path, problem: str) -> InvalidInput:
    return InvalidInput(f"{problem}; expected one folder for each class, such as {top / 'cat' / '1.png'}")

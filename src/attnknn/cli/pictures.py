"""Images on the command line: files, folders and named sets of them, brought to one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnknn.cli import screen
from attnknn.cli.rows import Rows
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnknn.data import ImageFiles
    from attnknn.data.images import Pixels

Say = Callable[[str], None]
_EVERY = 50  # images from one report of progress to the next


@dataclass(frozen=True, slots=True)
class Canvas:
    """Height and width, and the channels, that images are brought to; None takes what they have."""

    size: tuple[int, int] | None = None
    channels: int | None = None


def from_disk(
    data: str, canvas: Canvas, *, labelled: bool, only: int | None = None, say: Say | None = None
) -> Rows:
    """A folder of images, or one image, as rows that are called like the files.

    Args:
        data: The path. With labels, a folder that has a folder for each class.
        canvas: What the images are brought to.
        labelled: Whether labels are asked for.
        only: The one row that is asked for, counted from 0.
        say: Told how far it is.
    """
    import numpy as np

    from attnknn.data import load_images

    files = _listed(data, labelled=labelled)
    if files.ignored:
        screen.note(f"{files.ignored} files in {data} are left out: their names do not end like an image's")
    at = np.arange(len(files)) if only is None else np.array([checked_row(only, len(files), data)])
    paths = [files.paths[row] for row in at.tolist()]
    size = canvas.size or _chosen_size(paths)
    images = load_images(paths, size=size, channels=canvas.channels, progress=_told(say, data, len(paths)))
    names = [files.names[row] for row in at.tolist()]
    return Rows(data, images, files.labels[at] if labelled else None, at, names)


def to_teach(data: str, canvas: Canvas, new: Sequence[str], say: Say | None = None) -> Rows:
    """Labelled images for a model that is fitted: folders of classes, or loose images of one new class."""
    import numpy as np

    from attnknn.data import has_loose_images

    if Path(data).is_dir() and not has_loose_images(data):
        rows = from_disk(data, canvas, labelled=True, say=say)
        absent = [name for name in new if name not in set(np.asarray(rows.labels).tolist())]
        if absent:
            raise InvalidInput(f"{data} has no folder {absent[0]!r}, which --new-class names")
        return rows
    if len(new) != 1:
        raise InvalidInput(
            f"{data} does not say of which class it is: name one class with --new-class NAME, "
            "or put the images into a folder for each class"
        )
    _check_flat(data, new[0])
    rows = from_disk(data, canvas, labelled=False, say=say)
    names = [f"{new[0]}/{name}" for name in rows.names]
    return replace(rows, labels=np.full(len(rows), new[0]), names=names)


def brought_to(images: Pixels, canvas: Canvas) -> Pixels:
    """Images (n, h, w, c) of a named set in the size and channels that are asked for."""
    import numpy as np

    from attnknn.data import recolor, resize_image

    if canvas.channels is not None:
        images = recolor(images, canvas.channels)
    if canvas.size is None or canvas.size == images.shape[1:3]:
        return images
    large = np.empty((len(images), *canvas.size, images.shape[3]), np.uint8)
    for at, image in enumerate(images):
        large[at] = resize_image(image, canvas.size)
    return large


def checked_row(row: int, rows: int, data: str) -> int:
    """A row that DATA has."""
    if row >= rows:
        raise InvalidInput(f"there is no row {row}: {data} has rows 0 to {rows - 1}")
    return row


def _listed(data: str, *, labelled: bool) -> ImageFiles:
    import numpy as np

    from attnknn.data import ImageFiles, find_images, list_images

    path = Path(data)
    if path.is_dir():
        return list_images(path) if labelled else find_images(path)
    if labelled:
        raise InvalidInput(f"{data} is one image without a label; give a folder that has a folder for each class")
    names: NDArray[np.str_] = np.array([""])
    return ImageFiles((path,), (path.name,), names, (), 0)


def _chosen_size(paths: Sequence[Path]) -> tuple[int, int]:
    from attnknn.data import usual_size

    size, shared = usual_size(paths)
    if not shared:
        screen.note(
            f"images differ in size, or are not of a usual one: the middle of each is brought to "
            f"{size[0]} x {size[1]} pixels; --image-size chooses another size"
        )
    return size


def _check_flat(data: str, new: str) -> None:
    """Refuse folders of classes beside loose images: they would all become the one new class."""
    folders = [entry.name for entry in Path(data).iterdir() if entry.is_dir()] if Path(data).is_dir() else []
    shown = sorted(name for name in folders if not name.startswith("."))
    if shown:
        raise InvalidInput(
            f"{data} holds images beside the folder {shown[0]!r}: for --new-class {new} give a folder with "
            "nothing but images of that class, or one folder for each class"
        )


def _told(say: Say | None, data: str, total: int) -> Callable[[int], None] | None:
    if say is None:
        return None

    def tell(done: int) -> None:
        if done % _EVERY == 0:
            say(f"reading {data}: {done} of {total} images")

    return tell

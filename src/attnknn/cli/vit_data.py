"""The images of ``attnknn vit``: named sets, ImageNet's layout and any folder with a folder per class."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attnknn.cli.vit_flags import USUAL_PATH
from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from attnknn.study.vit_run import VitData

_TEST_SHARE: Final = 0.2
"""Of the images of a folder that has no part to test on."""

_PARTS: Final = (("train", "test"), ("train", "val"))
"""Folders within a folder that say what to learn from and what to test on."""


def read(dataset: str, data_path: Path, size: int, seed: int, say: Callable[[str], None] | None = None) -> VitData:
    """Images to learn from and to test on.

    Args:
        dataset: A named set of images, ``imagenet``, or a folder, as it stands or within ``data_path``.
        data_path: Folder of the sets; where it is absent, the usual one.
        size: Side that files are brought to as they are read; sets keep theirs.
        seed: Deals a folder out that has no part to test on.
        say: Told how far it is.
    """
    from attnknn.data import NAMED

    usual = data_path == USUAL_PATH and not data_path.is_dir() and "ATTNKNN_DATA" in os.environ
    folder = Path(os.environ["ATTNKNN_DATA"]) if usual else data_path
    if dataset in NAMED:
        return _of_set(dataset, folder)
    if dataset == "imagenet":
        return _of_parts(dataset, _imagenet(folder), size, say)
    where = next((each for each in (Path(dataset), folder / dataset) if each.is_dir()), None)
    if where is None:
        pictures = ", ".join(name for name, each in NAMED.items() if each.pictures)
        raise MissingData(
            f"no folder and no set of images is called {dataset!r}, nor is there {folder / dataset}; "
            f"the sets are: {pictures}, imagenet"
        )
    if _parts_of(where):
        return _of_parts(dataset, where, size, say)
    return _dealt(dataset, where, size, seed, say)


def _of_set(name: str, folder: Path) -> VitData:
    import numpy as np

    from attnknn.data import NAMED, as_images, load_named
    from attnknn.study.vit_run import VitData

    if not NAMED[name].pictures:
        raise InvalidInput(f"{name} is a table; a ViT reads images")
    try:
        found = load_named(name, folder)
    except MissingData as absent:  # which speaks of the flag that other commands have
        raise MissingData(str(absent).replace("--data-dir", "--data_path")) from absent
    images, (classes, codes) = as_images(found.X), np.unique(found.y, return_inverse=True)
    learn, test = found.train_rows, found.test_rows
    return VitData(name, tuple(map(str, classes)), images[learn], codes[learn], images[test], codes[test])


def _imagenet(data_path: Path) -> Path:
    places = [data_path / "imagenet", data_path / "ImageNet", data_path]
    found = next((each for each in places if _parts_of(each)), None)
    if found is None:
        raise MissingData(
            f"no ImageNet in {data_path}: there must be imagenet/train and imagenet/val, a folder per class"
        )
    return found


def _parts_of(folder: Path) -> tuple[Path, Path] | None:
    for learn, test in _PARTS:
        if (folder / learn).is_dir() and (folder / test).is_dir():
            return folder / learn, folder / test
    return None


def _of_parts(name: str, folder: Path, size: int, say: Callable[[str], None] | None) -> VitData:
    import numpy as np

    from attnknn.study.vit_run import VitData

    parts = _parts_of(folder)
    if parts is None:
        raise MissingData(f"{folder} has no folders train and val, or train and test")
    (train, train_labels), (test, test_labels) = (_files(part, size, say) for part in parts)
    classes = np.unique(train_labels)
    strange = sorted(set(test_labels.tolist()) - set(classes.tolist()))
    if strange:
        raise InvalidInput(f"{parts[1]} has a folder {strange[0]!r}, which {parts[0]} has not")
    codes = [np.searchsorted(classes, labels) for labels in (train_labels, test_labels)]
    return VitData(name, tuple(map(str, classes)), train, codes[0], test, codes[1])


def _dealt(name: str, folder: Path, size: int, seed: int, say: Callable[[str], None] | None) -> VitData:
    import numpy as np

    from attnknn.data import split
    from attnknn.study.vit_run import VitData

    images, labels = _files(folder, size, say)
    classes, codes = np.unique(labels, return_inverse=True)
    learn, test = split(codes, test=_TEST_SHARE, seed=seed)
    return VitData(name, tuple(map(str, classes)), images[learn], codes[learn], images[test], codes[test])


def _files(
    folder: Path, size: int, say: Callable[[str], None] | None
) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    import numpy as np

    from attnknn.cli.pictures import Canvas, from_disk
    from attnknn.data.images import LEAST_SIDE, MOST_SIDE

    if not LEAST_SIDE <= size <= MOST_SIDE:
        raise InvalidInput(
            f"--resize {size}: files are brought to a side from {LEAST_SIDE} to {MOST_SIDE} as they are read"
        )
    rows = from_disk(str(folder), Canvas((size, size), 3), labelled=True, say=say)
    return np.asarray(rows.X), np.asarray(rows.labels)

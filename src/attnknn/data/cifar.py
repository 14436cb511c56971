"""CIFAR-10 and CIFAR-100: the original files are pickles, and are read here without running them."""

from __future__ import annotations

import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput

TRAIN_ROWS = 50_000
SIDE = 32
COLUMNS = 3 * SIDE * SIDE

Labelled = tuple[NDArray[np.uint8], NDArray[np.str_]]

_ARRAY, _TYPE = "numpy.core.multiarray _reconstruct", "numpy dtype"
_NAMES = (_ARRAY, _TYPE, "numpy ndarray")  # all that these pickles ask for
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_cifar10(folder: Path) -> Labelled:
    """Photographs of ten kinds, the five training batches first; labels are the names of the kinds."""
    home = folder / "cifar-10-batches-py"
    batches = [home / f"data_batch_{number}" for number in range(1, 6)] + [home / "test_batch"]
    return _read(batches, "labels", home / "batches.meta", "label_names")


def read_cifar100(folder: Path) -> Labelled:
    """Photographs of a hundred kinds, the training rows first; labels are the fine ones."""
    home = folder / "cifar-100-python"
    return _read([home / "train", home / "test"], "fine_labels", home / "meta", "fine_label_names")


def read_pickle(path: Path) -> Any:
    """What a pickle of CIFAR holds; arrays come as the notes from which they are made.

    Nothing of the file is run: the few instructions that the originals consist of are followed one by one,
    names are only compared, and anything else is refused.

    Raises:
        InvalidInput: The file is cut short, or asks for anything that the originals do not.
    """
    try:
        with path.open("rb") as file:
            return _follow(pickletools.genops(file))
    except InvalidInput as error:
        raise InvalidInput(f"{path} is refused: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a whole pickle of CIFAR: {error}") from None


@dataclass(slots=True)
class _Noted:
    """An object that a pickle asks for, not made but noted: its maker's name, arguments and state."""

    maker: Any
    arguments: Any
    state: Any = None


def _follow(steps: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    for step, value, _ in steps:
        match step.name:
            case "PROTO" | "BINPUT" | "LONG_BINPUT":
                pass  # what is put aside is never fetched in these files
            case "MARK":
                marks.append(len(stack))
            case "SHORT_BINSTRING" | "BINSTRING" | "BININT" | "BININT1" | "BININT2" | "NONE":
                stack.append(value)
            case "NEWFALSE":
                stack.append(False)
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(_cut(stack, len(stack) - _TUPLES[step.name])))
            case "TUPLE":
                stack.append(tuple(_cut(stack, marks.pop())))
            case "APPENDS":
                items = _cut(stack, marks.pop())
                stack[-1].extend(items)
            case "SETITEMS":
                items = _cut(stack, marks.pop())
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL":
                stack.append(_known(value))
            case "REDUCE":
                maker, arguments = _cut(stack, len(stack) - 2)
                stack.append(_Noted(maker, arguments))
            case "BUILD":
                noted, state = _cut(stack, len(stack) - 2)
                noted.state = state
                stack.append(noted)
            case "STOP":
                return stack.pop()
            case other:
                raise InvalidInput(f"the original files hold no {other} instruction")
    raise InvalidInput("it does not end")


def _cut(stack: list[Any], at: int) -> list[Any]:
    if at < 0:
        raise InvalidInput("an instruction lacks its arguments")
    items = stack[at:]
    del stack[at:]
    return items


def _known(name: str) -> str:
    if name not in _NAMES:
        raise InvalidInput(f"it asks for {name!r}, which the original files do not")
    return name


def _read(batches: list[Path], labels: str, meta: Path, names: str) -> Labelled:
    kinds = _entry(meta, read_pickle(meta), names)
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise InvalidInput(f"{meta}: {names!r} is not a list of names")
    parts = [_batch(path, labels, len(kinds)) for path in batches]
    X = np.concatenate([pixels for pixels, _ in parts])
    return X, np.array(kinds, dtype=np.str_)[np.concatenate([codes for _, codes in parts])]


def _batch(path: Path, labels: str, kinds: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content = read_pickle(path)
    pixels, codes = _pixels(path, _entry(path, content, "data")), _entry(path, content, labels)
    fine = isinstance(codes, list) and all(isinstance(code, int) and 0 <= code < kinds for code in codes)
    if not fine or len(codes) != len(pixels):
        raise InvalidInput(f"{path}: {labels!r} is not one number from 0 to {kinds - 1} for each image")
    return pixels, np.array(codes, dtype=np.int64)


def _entry(path: Path, content: Any, key: str) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise InvalidInput(f"{path} has no entry {key!r}")
    return content[key]


def _pixels(path: Path, noted: Any) -> NDArray[np.uint8]:
    """Images of (32, 32, 3) from rows of 1,024 red, then green, then blue values."""
    try:
        _, (rows, width), kind, by_column, text = noted.state
        # u1 is NumPy's name for unsigned bytes.
        plain = (noted.maker, kind.maker, kind.arguments[0], by_column) == (_ARRAY, _TYPE, "u1", False)
        planes = np.frombuffer(text.encode("latin-1"), np.uint8).reshape(rows, 3, SIDE, SIDE)
    except (AttributeError, TypeError, ValueError, LookupError):
        plain = False
    if not plain or width != COLUMNS:
        raise InvalidInput(f"{path}: 'data' is not an array of bytes with {COLUMNS} columns")
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))

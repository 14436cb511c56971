"""The folder of a study: its recipe, and one cell for each method and seed, written once and whole."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput
from attnknn.study.claims import CLAIMS
from attnknn.study.job import Floats
from attnknn.study.recipe import JUDGES, Recipe
from attnknn.study.record import write_bytes, write_json
from attnknn.study.splits import Rows

RECIPE = "recipe.json"


class Answers(NamedTuple):
    """What a method said of the test rows of a seed, or of several in turn, and what is true."""

    said: Floats  # (rows, classes), sums are 1
    truth: Rows  # (rows,)
    classes: tuple[str, ...]

    @classmethod
    def together(cls, some: Sequence[Answers]) -> Answers:
        """Those of several seeds as if they were one."""
        said, truth = (np.concatenate([each[at] for each in some]) for at in (0, 1))
        return cls(said, truth, some[0].classes)


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one recipe in a folder."""

    folder: Path
    recipe: Recipe

    @classmethod
    def open(cls, folder: Path, recipe: Recipe) -> Cells:
        """Claim a new or empty folder for a recipe, or go on in one that holds the same recipe.

        Raises:
            InvalidInput: The folder holds another recipe, or something else.
        """
        file = folder / RECIPE
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"{folder} is a file; a study needs a folder")
        if not file.exists() and _holds_other(folder) and not file.exists():  # another run may write it meanwhile
            raise InvalidInput(f"{folder} holds other files than a study; name a folder of its own")
        if not file.exists() and write_json(file, recipe.config(), new=True):
            return cls(folder, recipe)
        _check_same(_object(file), recipe.config(), folder)
        return cls(folder, recipe)

    def path(self, method: str, seed: int) -> Path:
        """The cell's file; its predictions lie beside it with the suffix .npz."""
        return self.folder / "cells" / f"{method}-{seed}.json"

    def read(self, method: str, seed: int) -> dict[str, Any] | None:
        """A cell, or None where there is none.

        Raises:
            InvalidInput: The cell belongs to another recipe, or cannot be read.
        """
        path = self.path(method, seed)
        if not path.exists():
            return None
        cell = _object(path)
        if cell.get("recipe") != self.recipe.hash:
            raise InvalidInput(f"{path} was made by another recipe than {self.folder / RECIPE}; remove it")
        if (cell.get("method"), cell.get("seed")) != (method, seed):
            raise InvalidInput(f"{path} is the cell of {cell.get('method')}, seed {cell.get('seed')}; remove it")
        return cell

    def done(self, method: str, seed: int) -> bool:
        """Whether the cell holds numbers; one that was not run, or whose predictions are lost, is made again."""
        cell = self.read(method, seed)
        if cell is None or "not_run" in cell:
            return False
        return "predictions" not in cell or self.path(method, seed).with_suffix(".npz").exists()

    def not_run(self, method: str, seed: int, since: float) -> bool:
        """Whether somebody found since a moment, as ``time.time`` tells it, that the cell cannot be run here."""
        return _is_younger(self.path(method, seed), since) and "not_run" in (self.read(method, seed) or {})

    def failure(self, method: str, seed: int, since: float) -> str | None:
        """Why the cell failed since a moment; None where it did not."""
        path = self._failure(method, seed)
        return str(_object(path)["failed"]) if _is_younger(path, since) else None

    def write_failure(self, method: str, seed: int, reason: str) -> None:
        """Tell other runs, so that they do not try it too."""
        write_json(self._failure(method, seed), {"failed": reason})

    def _failure(self, method: str, seed: int) -> Path:
        return self.folder / CLAIMS / f"failed-{method}-{seed}.json"

    def all(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Every cell of the folder by method and seed, those that were not run included."""
        found = {}
        for path in sorted((self.folder / "cells").glob("*.json")):
            method, _, seed = path.stem.rpartition("-")
            if not path.name.startswith(".") and method and seed.isdigit():
                found[method, int(seed)] = self.read(method, int(seed)) or {}
        return found

    def write(
        self, method: str, seed: int, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Write a cell: predictions first, for the JSON file is what makes it one."""
        path = self.path(method, seed)
        head: dict[str, Any] = {"method": method, "seed": seed, "recipe": self.recipe.hash}
        if arrays is not None:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
            write_bytes(path.with_suffix(".npz"), buffer.getvalue())
            head["predictions"] = hashlib.sha256(buffer.getvalue()).hexdigest()
        write_json(path, {**head, **content})

    def predictions(self, method: str, seed: int) -> dict[str, NDArray[Any]]:
        """Arrays of a cell that is done.

        Raises:
            InvalidInput: They are absent, or not those that the cell speaks of.
        """
        path = self.path(method, seed).with_suffix(".npz")
        cell = self.read(method, seed) or {}
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content).hexdigest() != cell.get("predictions"):
            raise InvalidInput(f"{path} is not what its cell was made with; remove both and run again")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, zipfile.BadZipFile) as problem:
            raise InvalidInput(f"{path} cannot be read: {problem}") from None

    def answers(self, method: str, seeds: Sequence[int]) -> list[Answers]:
        """What a method said, seed by seed, where it is done."""
        found = []
        for arrays in (self.predictions(method, seed) for seed in seeds if self.done(method, seed)):
            said, truth = arrays["probabilities"].astype(np.float64), arrays["labels"].astype(np.int64)
            classes = tuple(map(str, arrays["classes"].tolist()))
            found.append(Answers(said / said.sum(axis=1, keepdims=True), truth, classes))
        return found


def _is_younger(path: Path, since: float) -> bool:
    return path.exists() and path.stat().st_mtime > since


def _holds_other(folder: Path) -> bool:
    """Whether a folder has anything but drafts."""
    return folder.is_dir() and any(not path.name.endswith(".tmp") for path in folder.iterdir())


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} is not a JSON object; remove it or name another folder")
    return found


def _check_same(there: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    before, now = dict(flat(there)), dict(flat(here))
    names = [name for name in {**before, **now} if name not in JUDGES]
    differ = [name for name in names if before.get(name) != now.get(name)]
    if differ:
        some = ", ".join(f"{name} ({before.get(name)} there, {now.get(name)} here)" for name in differ[:3])
        raise InvalidInput(f"{folder} holds a study with another recipe; they differ in {some}")


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings, under a name with dots."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value

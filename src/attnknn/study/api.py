"""Studies from Python: make a recipe, run it, read the report."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from attnknn.data import as_frame, is_images, load_named
from attnknn.errors import InvalidInput
from attnknn.study.engine import Outcome, run_all, run_study
from attnknn.study.filling import Say
from attnknn.study.recipe import EVERYTHING, STUDIES, Recipe
from attnknn.study.scopes import all_scopes, scope_of
from attnknn.study.splits import content_hash, recipe_for, task_of
from attnknn.study.written import Extra

if TYPE_CHECKING:
    import pandas as pd

FIGURES: Final[tuple[Extra, ...]] = ("figures",)
_SEEDS: Final = 2**32


def recipe_of(
    study: str,
    data: str,
    X: Any = None,
    y: Any = None,
    *,
    target: str = "label",
    data_dir: str | PathLike[str] | None = None,
    **options: Any,
) -> Recipe:
    """The recipe of a study: all that decides its numbers.

    Args:
        study: ``main``, ``noise`` and so on, or ``all``; see ``attnknn study list``.
        data: A data set by name, as ``attnknn data list`` tells; with ``X`` and ``y`` any name for them.
        X: A frame, numbers (n, columns), or images (n, h, w[, c]) of uint8.
        y: Their labels.
        target: What the labels are.
        data_dir: Folder of the data sets' files; else ATTNKNN_DATA.
        **options: ``quick``, ``k``, ``noise``, ``members``, ``test_share``, ``images``, ``source``: see
            ``attnknn.study.splits.recipe_for``.

    Raises:
        InvalidInput: An unknown study, or rows that no study can be made of.

    >>> recipe = recipe_of("k-sweep", "iris", quick=True)
    >>> recipe.test_share
    0.2
    """
    if study not in (*STUDIES, EVERYTHING.name):
        raise InvalidInput(f"no study is called {study!r}; try one of: {', '.join([*STUDIES, EVERYTHING.name])}")
    named = X is None
    rows, labels = _rows(data, X, y, data_dir)
    target = load_named(data, data_dir).target if named else target
    return recipe_for(rows, labels, data=data, target=target, named=named, study=study, **options)


def run(
    recipe: Recipe,
    X: Any = None,
    y: Any = None,
    *,
    methods: Sequence[str] | None = None,
    along: Sequence[float] | None = None,
    seeds: int | Sequence[int] | None = None,
    out: str | PathLike[str] | None = None,
    device: str = "auto",
    minutes: float | None = None,
    jobs: int = 1,
    data_dir: str | PathLike[str] | None = None,
    also: Collection[Extra] = FIGURES,
    say: Say = lambda text: None,
) -> Outcome:
    """Run a recipe, as ``attnknn study`` does.

    Args:
        recipe: As ``recipe_of`` makes it.
        X: The rows it speaks of; not needed for a data set by name.
        y: Their labels.
        methods: Some of those that the study offers; None takes the usual ones.
        along: Places on the axis of a study that has one.
        seeds: How many, or which; None takes 5, or 2 for a quick recipe.
        out: Folder for cells, report, page and tables; what it has already is not run again. None keeps nothing.
        device: Where our methods run.
        minutes: After so many nothing is begun, and what is left is told as not run.
        jobs: How many processes share the work, and the processors; what is timed is timed beside others.
        data_dir: Folder of the data sets' files; else ATTNKNN_DATA.
        also: ``figures`` draws them as .png beside .svg, where there is matplotlib; ``pdf`` writes ``report.pdf``.
        say: Hears what is being done and how long it may take.

    Returns:
        The report, and why some cells have no numbers.

    Raises:
        InvalidInput: No recipe, other rows than it speaks of, or a folder of another study.
    """
    _check_recipe(recipe)
    if not (out is None or isinstance(out, str | PathLike)):
        raise InvalidInput(f"out must be the path of a folder, got {out!r}")
    rows, labels = _rows(recipe.data, X, y, data_dir)
    if content_hash(rows, labels) != recipe.data_hash:
        raise InvalidInput(f"these are not the rows of {recipe.data!r} that the recipe was made for")
    task, quick = task_of(rows, labels, recipe), recipe.most_rows is not None
    images = is_images(rows)
    which = range(2 if quick else 5) if seeds is None else _seeds(seeds)
    with tempfile.TemporaryDirectory() as nowhere:
        kept = () if out is None else also  # nobody would see what is drawn into a folder that goes
        how: dict[str, Any] = {"seeds": which, "out": Path(out or nowhere), "device": device, "also": kept,
                               "minutes": minutes, "jobs": jobs}  # fmt: skip
        if recipe.study == EVERYTHING.name:
            if methods is not None or along is not None:
                raise InvalidInput("all studies run as usual; name one of them to choose its methods or places")
            return run_all(recipe, task, all_scopes(images=images, quick=quick), say=say, **how)
        scope = scope_of(STUDIES[recipe.study], images=images, methods=methods, along=along, quick=quick)
        return run_study(recipe, task, methods=scope.methods, points=scope.points, say=say, **how)


def _seeds(given: Any) -> Sequence[int]:
    """Which seeds are meant by a count of them, or by themselves."""
    each = range(given) if _is_whole(given) else given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(each, str | bytes) or not isinstance(each, Sequence) or not len(each):
        raise InvalidInput(f"seeds must be a count of at least 1, or the seeds themselves, got {given!r}")
    if not all(_is_whole(seed) and 0 <= seed < _SEEDS for seed in each):
        raise InvalidInput(f"seeds must be whole numbers of at least 0 and below 2**32, got {given!r}")
    if len({*each}) < len(each):
        raise InvalidInput(f"each of the seeds must be another one, got {given!r}")
    return [int(seed) for seed in each]


def _is_whole(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool)


def _check_recipe(given: Any) -> None:
    if not isinstance(given, Recipe):
        study = given if given in (*STUDIES, EVERYTHING.name) else "main"
        raise InvalidInput(f"run takes a recipe, such as study.recipe_of({study!r}, 'iris'); got {given!r}")


def _rows(
    data: str, X: Any, y: Any, data_dir: str | PathLike[str] | None
) -> tuple[pd.DataFrame | NDArray[np.uint8], NDArray[Any]]:
    """Rows as studies take them: a frame, or images."""
    if X is None:
        found = load_named(data, data_dir)
        X, y = found.X, found.y
    rows = X if is_images(X) else as_frame(X)
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(rows):
        raise InvalidInput(f"there must be a label for each of {len(rows)} rows, got shape {labels.shape}")
    return rows, labels

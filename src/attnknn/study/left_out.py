"""What a study offers and a run was not asked for, with the reason: a page tells it among what was not run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from attnknn.study.efficiency import PLACES, quick_places
from attnknn.study.methods import METHODS, has_meaning
from attnknn.study.points import Scope, meant_points, method_of, points_of
from attnknn.study.recipe import STUDIES, UNMEANT, Recipe
from attnknn.study.scopes import scope_of

_BY_QUICK: Final = "not asked for: --quick leaves them out"
_ENDS: Final = "not asked for: --quick takes the ends of each line"
_UNNAMED: Final = "not asked for: not named by --methods"
_ELSEWHERE: Final = "not asked for: not among the places of --along"
_UNMEANT: Final = "not asked for: the methods named by --methods have no meaning there"
_SAME: Final = "of two classes a wrong label is always the other one: symmetric noise is the same"
_LARGE: Final = "not asked for: --quick measures the ends of what has at most 20,000 rows"


def left_out(recipe: Recipe, cells: Collection[str], classes: int) -> dict[str, str]:
    """Methods, places on the axis (as ``@NAME``) and banks of a study that have no cell, and why.

    Args:
        recipe: That of the study.
        cells: Names of all cells that a run is to have, or that are there.
        classes: How many the rows have.
    """
    if recipe.study not in STUDIES:
        return {}
    study, images = STUDIES[recipe.study], recipe.ours.images is not None
    offered = scope_of(study, images=images).methods
    usual = scope_of(study, images=images, quick=recipe.most_rows is not None)
    methods, places = {method_of(name) for name in cells}, {name.partition("@")[2] for name in cells}
    lacking = [name for name in offered if name not in methods]
    found = {name: _UNNAMED if name in usual.methods else _reason(recipe) for name in lacking}
    lacks = _places(recipe, usual, methods, classes)
    found |= {f"@{name}": why for name, why in lacks.items() if name not in places}
    if study.name == "efficiency" and recipe.most_rows is not None:
        found |= {place.name: _LARGE for place in PLACES if place not in quick_places()}
    return {**found, **(UNMEANT if study.name == "main" and _UNNAMED not in found.values() else {})}


def _reason(recipe: Recipe) -> str:
    return _UNNAMED if recipe.most_rows is None else _BY_QUICK


def _places(recipe: Recipe, usual: Scope, methods: Collection[str], classes: int) -> dict[str, str]:
    """Places of the axis, and why one of them may be lacking."""
    kept: Sequence[str] = [point.name for point in usual.points]
    found, every = {}, points_of(recipe.study)
    meant = meant_points(every, classes)
    for point in every:
        if point not in meant:
            found[point.name] = _SAME
        elif point.name and not any(has_meaning(METHODS[name], point) for name in methods):
            found[point.name] = _UNMEANT
        elif point.name:
            found[point.name] = _ELSEWHERE if point.name in kept else _ENDS
    return found

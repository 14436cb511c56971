"""What a study compares, as its user may ask for it. Imports nothing slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnknn.errors import InvalidInput
from attnknn.study.points import POINTS, Scope, points_of
from attnknn.study.recipe import STUDIES, TOGETHER, Study

_SLOW = ("lightgbm", "attention+ensemble")  # a quick run has them only where they are named
_BOUNDS = {"k-sweep": (1, 1_000_000), "noise": (0, 0.9), "imbalance": (1e-6, 1)}


def scope_of(
    study: Study,
    *,
    images: bool,
    methods: Sequence[str] | None = None,
    along: Sequence[float] | None = None,
    quick: bool = False,
) -> Scope:
    """The methods and points of a study.

    Args:
        study: Which.
        images: Whether it is of images, not of a table.
        methods: Some of those that the study offers; None takes what is usual.
        along: Places on its axis; None takes the usual ones.
        quick: Only the ends of the axis, and what takes long only where it is named.

    Raises:
        InvalidInput: The study has no such method or place.
    """
    asked = chosen(methods, study.on_images if images else study.methods)
    if quick and methods is None:
        slow = _SLOW if images else (*_SLOW, *study.slow)
        asked = [name for name in asked if name in (study.quick or asked) and name not in slow]
    return Scope(asked, points_of(study.name, _along(study, along), quick=quick))


def all_scopes(
    *,
    images: bool,
    quick: bool = False,
    studies: Sequence[str] | None = None,
    along: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Scope]:
    """What each study compares that runs together with others; None takes all that can.

    ``along`` has places on the axis of some of them, by name.

    Raises:
        InvalidInput: No such study runs together with others, or it has no such place.
    """
    alone = [name for name in studies or () if name in STUDIES and name not in TOGETHER]
    if alone:
        raise InvalidInput(f"{alone[0]} does not run together with others: attnknn study {alone[0]}")
    asked, places = chosen(studies, TOGETHER, "study"), along or {}
    unasked = [name for name in places if name in TOGETHER and name not in asked]
    if unasked:
        raise InvalidInput(f"there are places for {unasked[0]}, which is none of the studies: {', '.join(asked)}")
    chosen(list(places) or None, asked, "study")
    return {name: scope_of(STUDIES[name], images=images, along=places.get(name), quick=quick) for name in asked}


def chosen(names: Sequence[str] | None, offered: Sequence[str], what: str = "method") -> list[str]:
    """Those of the offered methods, or of ``what`` they are, that are named, in their order; all where none is.

    Raises:
        InvalidInput: A name that is not offered, or no name.
    """
    if names is None:
        return list(offered)
    unknown = [name for name in names if name not in offered]
    if unknown or not names:
        problem = f"no {what} is called {unknown[0]!r}" if unknown else f"no {what} is named"
        raise InvalidInput(f"{problem}; try one of: {', '.join(offered)}")
    return [name for name in offered if name in names]


def _along(study: Study, along: Sequence[float] | None) -> Sequence[float] | None:
    """Places on the axis of a study, checked."""
    if along is None:
        return None
    if study.name not in POINTS:
        raise InvalidInput(f"{study.name} has no axis to place points along; {', '.join(POINTS)} have one")
    low, high = _BOUNDS[study.name]
    whole = study.name == "k-sweep"
    fits = [low <= each <= high and (not whole or float(each).is_integer()) for each in along]
    if not fits or not all(fits):
        kind = "whole numbers" if whole else "numbers"
        raise InvalidInput(f"{study.name} goes along {kind} from {low:g} to {high:g}, got {list(along)}")
    return [int(each) for each in along] if whole else along

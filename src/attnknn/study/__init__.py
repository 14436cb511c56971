"""Recipes to reports: methods compared over seeds and along axes, figures, and the demo.

>>> from attnknn import study
>>> study.recipe_of("main", "iris", quick=True).study
'main'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnknn.study.api import recipe_of, run
    from attnknn.study.displays import KSweepDisplay, NeighborsDisplay, ReliabilityDisplay

_MODULE = {
    "recipe_of": "attnknn.study.api",
    "run": "attnknn.study.api",
    "KSweepDisplay": "attnknn.study.displays",
    "NeighborsDisplay": "attnknn.study.displays",
    "ReliabilityDisplay": "attnknn.study.displays",
}

__all__ = ["KSweepDisplay", "NeighborsDisplay", "ReliabilityDisplay", "recipe_of", "run"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _MODULE:
        raise AttributeError(f"module 'attnknn.study' has no attribute {name!r}")
    return getattr(import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

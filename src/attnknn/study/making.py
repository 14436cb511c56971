"""How several studies were made: what they share told once, and what each has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attnknn.study.cells import flat

_PLAIN: Final = ("command", "commit", "source_hash")

Told = dict[str, Any]


def made_of_all(studies: Mapping[str, Mapping[str, Any]]) -> tuple[Told, dict[str, Told]]:
    """Command, commit, settings and machines that all studies have, and by study those that are its own.

    Settings have flat names, such as ``config.ours.n_neighbors``. A machine that made all cells of a study is told
    without them.

    Args:
        studies: The report of each.
    """
    each = {name: _told(report) for name, report in studies.items()}
    first = next(iter(each.values()), {})
    shared = {key: value for key, value in first.items() if all(told.get(key) == value for told in each.values())}
    own = {name: {key: value for key, value in told.items() if key not in shared} for name, told in each.items()}
    return shared, own


def alike(own: Mapping[str, Told]) -> str:
    """Which studies have nothing of their own, in a sentence; empty where each has something.

    >>> alike({"main": {}, "noise": {"config.ours.n_neighbors": 5}, "theory": {}})
    'Nothing differs from this in main, theory.'
    """
    same = [name for name, told in own.items() if not told]
    return f"Nothing differs from this in {', '.join(same)}." if same else ""


def _told(report: Mapping[str, Any]) -> Told:
    """All of one report under flat names."""
    settings = {f"config.{name}": value for name, value in flat(report["config"]) if name != "study"}
    made = report["environments"]
    if len(made) == 1:
        made = [{key: value for key, value in made[0].items() if key != "cells"}]
    return {**{name: report.get(name) for name in _PLAIN}, **settings, "environments": made}

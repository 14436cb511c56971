"""Published numbers beside ours: in the same place of a study, and with what else differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from attnknn.study.published import Published, published
from attnknn.study.tables import in_words

_TIMED: Final = {"search_ms_per_query": lambda each: each["ms_per_query"]["batch"]["median"],
                 "build_seconds": lambda each: each["build_s"]}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Beside:
    """A published number and ours.

    Args:
        entry: What was published.
        ours: Ours in the same place: as many wrong labels of that kind, as long a tail; None where there is none.
        other: What ours has otherwise, by name, such as the k that was chosen; empty where all is the same.
    """

    entry: Published
    ours: Mapping[str, Any] | None
    other: Mapping[str, str]

    @property
    def here(self) -> str:
        """Ours in words, each line but the first small; another setting than the published one is told."""
        mean, interval = in_words(self.ours, self.entry.metric)
        if self.ours is None:
            return "published only\nnot run here"
        if self.other:
            setting = "\n".join(f"{name} {value}" for name, value in self.other.items())
            return f"published only\nours {mean} with\n{setting}"
        return "\n".join(each for each in (mean, interval) if each)

    @property
    def setting(self) -> str:
        """What the published number was measured with."""
        return ", ".join(f"{name} {_told(value)}" for name, value in self.entry.setting.items())

    @property
    def where(self) -> str:
        """Document and place, and what to know of it."""
        return f"{self.entry.document}, {self.entry.place}" + (f": {self.entry.note}" if self.entry.note else "")


def published_beside(report: Mapping[str, Any]) -> list[Beside]:
    """Every number that others reported for the study and the data of a report, with ours."""
    return [_beside(each, report) for each in published(report["study"], report["config"]["data"])]


def _beside(entry: Published, report: Mapping[str, Any]) -> Beside:
    if entry.metric in _TIMED:
        return _search(entry, report.get("places", {}))
    place = _place(entry, report)
    cell = None if place is None else f"{entry.method}@{place}" if place else entry.method
    ours = None if cell is None else report["methods"].get(cell, {}).get(entry.metric)
    return Beside(entry, ours, {} if ours is None else dict(_otherwise(entry, report, str(cell))))


def _place(entry: Published, report: Mapping[str, Any]) -> str | None:
    """The name of the point with the labels, rows or k of a published number; None where the study has none."""
    setting = entry.setting
    bank = "-bank" if setting.get("bank_only") else ""
    if setting.get("noise"):
        line, at = f"{setting.get('kind')}{bank}", setting["noise"]
    elif setting.get("tail", 1.0) < 1:
        line, at = f"tail{bank}", setting["tail"]
    elif entry.study == "k-sweep":
        line, at = "k", setting["k"]
    else:
        return ""
    points = report["points"].items()
    return next((name for name, each in points if each["line"] == line and math.isclose(each["at"], at)), None)


def _otherwise(entry: Published, report: Mapping[str, Any], cell: str) -> Iterable[tuple[str, str]]:
    """What ours was measured with, where that is not as published."""
    ours, setting = report["config"]["ours"], entry.setting
    images = ours.get("images") or {}  # a report of an older version may lack it
    if "backbone" in setting and images.get("backbone") != setting["backbone"]:
        yield "backbone", str(images.get("backbone"))
    if "epoch" in setting or setting.get("epochs", images.get("epochs")) != images.get("epochs"):
        yield "epochs", str(images.get("epochs") or "as usual")
    if isinstance(setting.get("k"), list):
        if setting["k"] != list(ours["k_ensemble"]):
            yield "k", _told(ours["k_ensemble"])
    elif "k" in setting and entry.study != "k-sweep":
        chosen = sorted({each["k"] for each in report["settings"].get(cell, ()) if each and "k" in each})
        if chosen != [setting["k"]]:
            yield "k", " to ".join(map(str, dict.fromkeys([chosen[0], chosen[-1]]))) if chosen else "unknown"


def _search(entry: Published, places: Mapping[str, Mapping[str, Any]]) -> Beside:
    """A search of as many rows and dimensions by the same kind of index, one by one."""
    rows, dim = (entry.setting.get(name) for name in ("rows", "dim"))
    each = places.get(f"{entry.method}-{rows}x{dim}-cpu", {"not_run": ""})
    if "not_run" in each:
        return Beside(entry, None, {})
    ours = {"mean": _TIMED[entry.metric](each), "low": math.nan, "high": math.nan}
    asked = {"k": (each["k"], entry.setting.get("k")), "metric": ("cosine", entry.setting.get("metric"))}
    return Beside(entry, ours, {name: str(mine) for name, (mine, its) in asked.items() if mine != its})


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

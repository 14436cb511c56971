"""Figures of the study of long tails: the recall of each class, from the most frequent to the rarest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from attnknn.metrics import seed_interval
from attnknn.study.figures import MOST_SERIES, Figure, Lines, Series
from attnknn.study.points import method_of
from attnknn.study.recipe import CORRECTED

_LISTED: Final = 20  # classes that a note names


def recall_figures(report: Mapping[str, Any]) -> dict[str, Figure]:
    """A figure for the longest tail of each line: methods as they are, and with their prior corrected.

    Args:
        report: As ``report_of`` makes it.
    """
    points, found = report["points"], dict[str, Figure]()
    longest = {each["line"]: name for name, each in sorted(points.items(), key=lambda item: -float(item[1]["at"]))}
    for line, place in longest.items():
        cells = [name for name in report["recalls"] if line and name.endswith(f"@{place}")]
        for end in ("", "-corrected"):
            some = [name for name in cells if method_of(name).endswith(CORRECTED) == bool(end)][:MOST_SERIES]
            if some:
                found[f"recall-{line}{end}"] = _lines(report, some, f"{place}{end.replace('-', ', ')}")
    return found


def _lines(report: Mapping[str, Any], cells: Sequence[str], place: str) -> Lines:
    names = report.get("classes", [])
    listed = ", ".join(names[:_LISTED]) + ", ..." * (len(names) > _LISTED)
    note = f"From left to right: {listed}." if names else ""
    title = f"Recall of each class on {report['config']['data']}, {place}"
    series = tuple(_series(method_of(cell), report["recalls"][cell]) for cell in cells)
    return Lines(title, "class, the rarest last", "recall", series, note=note)


def _series(name: str, recalls: Sequence[Sequence[float | None] | None]) -> Series:
    """The mean over seeds of each class, with a t interval between 0 and 1; NaN where no row was tested."""
    each = [[math.nan if value is None else value for value in some] for some in recalls if some]
    found = [
        seed_interval([value for value in some if not math.isnan(value)] or [math.nan])
        for some in zip(*each, strict=True)
    ]
    places = tuple(float(at + 1) for at in range(len(found)))
    low, high = (np.clip(ends, 0.0, 1.0) for ends in zip(*((one.low, one.high) for one in found), strict=True))
    ends = (tuple(low.tolist()), tuple(high.tolist())) if not np.isnan(low).all() else (None, None)
    return Series(name, places, tuple(one.value for one in found), *ends)

"""Of several runs that filled a folder together, one writes its reports, and the others take what it wrote."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnknn.study.claims import CLAIMS, claimed
from attnknn.study.filling import Lacking, Plan, Say
from attnknn.study.record import write_json


@dataclass(frozen=True, slots=True)
class Turn:
    """A run that is to have the reports of a folder; ``before`` is what was told of them when it began."""

    out: Path
    before: dict[str, Any]

    @classmethod
    def of(cls, out: Path) -> Turn:
        """That of a run that begins."""
        return cls(out, _told(out))

    def report(self, state: str, write: Callable[[], dict[str, Any]], say: Say) -> tuple[dict[str, Any], bool]:
        """The report of a folder, and whether it was written here.

        Args:
            state: Of the cells, from which another run has perhaps written it since this one began.
            write: Makes and writes it.
            say: Hears that another run is at it.
        """
        file = self.out / CLAIMS / "report"
        with claimed(file) as mine:
            if mine:
                return self._report(state, write)
        say("waiting for another run, which writes the report")
        with claimed(file, wait=True):
            return self._report(state, write)

    def _report(self, state: str, write: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        told = _told(self.out)
        if told != self.before and told["state"] == state:
            return json.loads((self.out / "report.json").read_text(encoding="utf-8")), False
        report = write()
        write_json(self.out / CLAIMS / "reported", {"state": state, "at": time.time_ns()})
        return report, True


def state_of(plans: Sequence[Plan], lacking: Sequence[Lacking], also: Collection[str]) -> str:
    """Stands for what a report is made from: cells as they are, those that are asked for, and how it is drawn."""
    files = [sorted((plan.cells.folder / "cells").glob("*.json")) for plan in plans]
    cells = [[(file.name, file.stat().st_mtime_ns) for file in some] for some in files]
    asked = [[each.cell for each in plan.every] for plan in plans]
    told = json.dumps([cells, asked, list(lacking), sorted(also)], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def _told(out: Path) -> dict[str, Any]:
    file = out / CLAIMS / "reported"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found

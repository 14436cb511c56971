"""What a study says on the screen when it is done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnknn.cli import screen
from attnknn.study.recipe import STUDIES, Study

if TYPE_CHECKING:
    from attnknn.study.engine import Outcome


def tell(study: Study, found: Outcome, out: Path, save: Path | None, *, as_json: bool) -> None:
    """Save and show what was found; a failed cell is named, and the exit code is 1."""
    from attnknn.study.record import write_json

    if save is not None:
        write_json(save, found.report)
    if as_json:
        screen.emit(found.report)
    elif found.written:
        _show_all(study, found.report, out)
    else:
        screen.line(f"another run wrote the report: all numbers are in {out / 'report.json'}")
    for cell, reason in found.failed.items():
        screen.note(f"cell {cell} failed: {reason}")
    if found.failed:
        raise typer.Exit(1)


def _show_all(study: Study, report: Mapping[str, Any], out: Path) -> None:
    for name, each in report.get("studies", {study.name: report}).items():
        if "studies" in report:
            screen.line(f"{name.upper()}")
        _show(STUDIES[name], each)
    screen.line(f"all numbers and verdicts are in {out / 'report.json'}, and {out / 'index.html'} shows them")


def _show(study: Study, report: Mapping[str, Any]) -> None:
    from attnknn.study.answers import by_reason
    from attnknn.study.verdicts import of_leads

    config, seeds = report["config"], len(report["seeds"])
    share = config["test_share"]
    tested = "official test rows" if share is None else f"{share:.0%} of the rows tested"
    screen.line(
        f"{config['data']}: {seeds} seed{'s' * (seeds != 1)}, {tested}; ± is half a 95 % t interval over seeds"
    )
    names = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "ece_floor": "floor", "auc": "AUC"}
    names |= {"recall_new": "new class", "accuracy_others": "others"}
    shown = {name: head for name, head in names.items() if any(name in m for m in report["methods"].values())}
    if shown:
        body = [
            [
                method,
                *(_cell(each.get(name), name) for name in shown),
                f"{report['seconds'][method]['fit']['mean']:.1f}",
            ]
            for method, each in report["methods"].items()
        ]
        screen.table(["method", *shown.values(), "fit s"], body)
    _show_found(report)
    for sentence in by_reason(report["not_run"]):
        screen.line(sentence)
    for note in report["notes"]:
        screen.line(f"note: {note}")
    sentences = of_leads(report["verdicts"], study.leads)
    found = [each for each in sentences if " has higher " in each or " has lower " in each]
    for sentence in sentences if len(report["points"]) == 1 else found:  # along an axis there are too many to read
        screen.line(sentence)
    if len(report["points"]) > 1 and len(found) < len(sentences):
        unknown = sum(" cannot be compared " in each for each in sentences)
        none = len(sentences) - len(found) - unknown
        screen.line(f"{none} other comparisons find no difference, {unknown} cannot be made: see the page")


def _show_found(report: Mapping[str, Any]) -> None:
    """What some studies find beside metrics: checks of the theory, times, what is left under noise."""
    from attnknn.study.answers import checked, overheads, retained
    from attnknn.study.efficiency import HEAD, table

    for sentence in (*checked(report), *overheads(report), *retained(report)):
        screen.line(sentence)
    if "places" in report:
        screen.table([*HEAD], table(report["places"]))


def _cell(found: Mapping[str, Any] | None, metric: str) -> str:
    """Mean, and half the interval for the metrics that decide; one seed has none."""
    from attnknn.study.verdicts import has_width, short

    if found is None or not math.isfinite(found["mean"]):
        return "-"
    reach = (found["high"] - found["low"]) / 2
    told = metric in ("accuracy", "nll") and math.isfinite(reach) and has_width(found["low"], found["high"])
    spread = f" ±{short(reach)}" if told else ""
    return short(found["mean"]) + spread

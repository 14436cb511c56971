"""``attnknn study diff``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from attnknn.cli import arguments, screen

_FEW = 12  # cells of which every sentence is printed


@screen.examples(
    "attnknn study diff runs/before runs/after",
    "attnknn study diff runs/k-16 runs/k-64 --json",
)
def diff(
    first: Annotated[Path, typer.Argument(metavar="DIR1", help="Folder of a study.")],
    second: Annotated[Path, typer.Argument(metavar="DIR2", help="Folder of another, tested on the same rows.")],
    as_json: arguments.Json = False,
) -> None:
    """Compare two runs of a study, as before and after a change of code or options.

    Says what differs in their recipes, commits and machines; then, for each cell that both have, the second
    minus the first in accuracy, NLL and ECE, paired by seed and test row, with 95 % intervals; then what only one
    has.

    Exits 0, also where differences are found, or 2 for bad input, such as runs that were tested on different rows.
    """
    with screen.progress("reading both runs"):
        from attnknn.study.compared import compare

        found = compare(first, second)
    if as_json:
        screen.emit(found)
    else:
        _show(found)


def _show(found: Mapping[str, Any]) -> None:
    screen.facts(
        {side: f"{run['folder']}: {run['study']} of {run['data']}" for side, run in found["runs"].items()}
    )
    _show_differing("recipe", found["recipes"], "the recipes are the same")
    _show_differing("made with", found["records"], "commits, machines and versions are the same")
    if found["cells"]:
        _show_cells(found["cells"])
        _show_sentences(found)
    else:
        screen.line("no cell is in both")
    for side, names in found["only"].items():
        for seeds in dict.fromkeys(map(tuple, names.values())):
            some = ", ".join(name for name, its in names.items() if tuple(its) == seeds)
            screen.line(f"only in the {side}, seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}: {some}")


def _show_differing(head: str, differ: Mapping[str, Mapping[str, Any]], same: str) -> None:
    if differ:
        rows = [[name, *(_told(value) for value in each.values())] for name, each in differ.items()]
        screen.table([head, "first", "second"], rows, left=(0, 1, 2))
    else:
        screen.line(same)


def _told(value: Any) -> str:
    """A value for reading: several with commas, long hashes by their beginnings."""
    text = ", ".join(map(_told, value)) if isinstance(value, list) else "-" if value is None else str(value)
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b", r"\1", text)


def _show_cells(cells: Mapping[str, Mapping[str, Any]]) -> None:
    """The means of the first run over the seeds that both have, each with the change to the second."""
    names = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}
    rows = [
        [name, *(text for metric in names for text in _change(cell, metric))]
        for name, cell in cells.items()
        if cell["identical_seeds"] != cell["seeds"]
    ]
    if rows:
        screen.line("means of the first over the seeds that both have, and the change to the second:")
        screen.table(["cell", *(head for name in names.values() for head in (name, "change"))], rows)


def _change(cell: Mapping[str, Any], metric: str) -> tuple[str, str]:
    from attnknn.study.verdicts import short

    if metric not in cell["differences"] or not math.isfinite(cell["differences"][metric]["mean"]):
        return "-", "-"
    return short(cell["first"][metric]), short(cell["differences"][metric]["mean"], sign=True)


def _show_sentences(found: Mapping[str, Any]) -> None:
    """What was found about a few cells; of many only the differences."""
    cells, said = found["cells"], found["verdicts"]
    same = [name for name, cell in cells.items() if cell["identical_seeds"] == cell["seeds"]]
    if same:
        screen.line(f"identical predictions: {', '.join(same)}")
    none = [each for each in said if ": no difference found " in each]
    differ = [each for each in said if " has higher " in each or " has lower " in each]
    few = len(cells) <= _FEW
    for sentence in said:
        if sentence in differ or (few and sentence in none):
            screen.line(sentence)
    if none and not few:
        screen.line(f"{len(none)} other comparisons find no difference: --json has them")
    unknown = sum(" cannot be compared " in each for each in said)
    if unknown:
        screen.line(f"{unknown} comparisons cannot be made: an interval takes two seeds and finite values")

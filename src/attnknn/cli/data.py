"""``attnknn data``: the named data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from attnknn.cli import screen
from attnknn.errors import InvalidInput

app = typer.Typer(help="See and check the data sets that commands know by name.")

ROWS: Final = {
    "iris": 150,
    "wine": 178,
    "breast-cancer": 569,
    "digits": 1797,
    "adult": 48842,
    "wine-quality-red": 1599,
    "wine-quality-red-good": 1599,
    "wine-quality-white": 4898,
    "wine-quality-white-good": 4898,
    "bank-marketing": 41188,
    "letter": 20000,
    "german-credit": 1000,
    "cifar10": 60000,
    "cifar100": 60000,
    "mnist": 70000,
    "fashion-mnist": 70000,
}

DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the data sets' files; else $ATTNKNN_DATA.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command("list")
@screen.examples("attnknn data list", "attnknn data list --data-dir ~/data --json")
def list_sets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets: rows, what is to be predicted, where to get them, and whether they are here.

    Exits 0, or 2 for bad input.
    """
    _check_folder(data_dir)
    found = [_about(name, data_dir) for name in _named()]
    if as_json:
        screen.emit({"data_sets": found})
        return
    heads = ("name", "kind", "rows", "target", "source", "state")
    body = [[each[head] for head in heads] for each in found]
    screen.table(["name", "kind", "rows", "target", "from", "state"], body, left=(0, 1, 3, 4, 5))
    screen.line("A set that is absent: get its files and name their folder with --data-dir or $ATTNKNN_DATA;")
    screen.line("`attnknn data verify NAME` says which files.")


@app.command()
@screen.examples("attnknn data verify", "attnknn data verify adult letter --data-dir ~/data --json")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Data sets; all when left out.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check the files of data sets against their SHA-256.

    Exits 0 when all is well, 1 when a file is not the original or a named set is absent, 2 for bad input.
    """
    _check_folder(data_dir)
    asked = names or []
    unknown = [name for name in asked if name not in _named()]
    if unknown:
        raise InvalidInput(f"no data set is called {unknown[0]!r}; try one of: {', '.join(_named())}")
    checked = [each for name in asked or _named() for each in _checked(name, data_dir)]
    fine = all(each["state"] == "ready" or (each["state"] == "absent" and not asked) for each in checked)
    if as_json:
        screen.emit({"ok": fine, "files": checked})
    else:
        screen.table(
            ["name", "file", "state"], [(e["name"], e["file"], e["state"]) for e in checked], left=(0, 1, 2)
        )
        for message in _problems(checked, asked):
            screen.line(message)
    if not fine:
        raise typer.Exit(1)


def _named() -> list[str]:
    from attnknn.data import NAMED

    return list(NAMED)


def _about(name: str, data_dir: Path | None) -> dict[str, Any]:
    from attnknn.data import NAMED

    source = NAMED[name]
    states = {each["state"] for each in _checked(name, data_dir)}
    return {
        "name": name,
        "kind": "images" if source.pictures else "table",
        "rows": ROWS.get(name),
        "target": source.target,
        "description": source.description,
        "source": f"{source.place}: {source.title}" if source.files else "scikit-learn",
        "files": [file for file, _ in source.files],
        "state": next(state for state in ("damaged", "absent", "ready") if state in states),
    }


def _checked(name: str, data_dir: Path | None) -> list[dict[str, str]]:
    from attnknn.data import verify as verify_set

    folder = Path(data_dir or os.environ.get("ATTNKNN_DATA") or os.devnull)
    found = []
    for file, fine, message in verify_set(name, data_dir):
        state = "ready" if fine else "damaged" if (folder / file).exists() else "absent"
        found.append({"name": name, "file": file, "state": state, "message": message})
    return found


def _problems(checked: list[dict[str, str]], asked: list[str]) -> list[str]:
    """What is wrong with each damaged file, and once with each absent set: that message names all of its files."""
    damaged = [each["message"] for each in checked if each["state"] == "damaged"]
    absent = {each["name"]: each["message"] for each in reversed(checked) if each["state"] == "absent"}
    return list(dict.fromkeys([*damaged, *(absent[name] for name in asked if name in absent)]))


def _check_folder(data_dir: Path | None) -> None:
    if data_dir is not None and not data_dir.is_dir():
        raise InvalidInput(f"--data-dir {data_dir} is not a folder")

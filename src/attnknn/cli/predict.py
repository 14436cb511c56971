"""``attnknn predict``."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from attnknn.cli.rows import Rows
    from attnknn.estimator import AttnKNNClassifier

_SHOWN = 20
_FORMULA = ("=", "+", "-", "@")
_CONTROL = ("\t", "\r", "\n")


@screen.examples(
    "attnknn predict people-model new.csv",
    "attnknn predict people-model new.csv --proba --out answers.csv",
    "attnknn predict people-model new.csv --abstain-below 0.8 \\",
    "  --abstain-label unsure --json",
    "attnknn predict photo-model new-photos/ --out answers.csv",
    "attnknn predict photo-model cat.jpg --proba",
)
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    data: arguments.Asked,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="CSV file to write.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    abstain_below: Annotated[
        float | None, typer.Option(metavar="P", min=0.0, help="Give no answer where confidence is below this.")
    ] = None,
    abstain_label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="What to answer then; else nothing.")
    ] = None,
    data_dir: arguments.DataDir = None,
    as_json: arguments.Json = False,
) -> None:
    """Label the rows of a file, or images.

    Columns are picked by name; others are ignored. Images are brought to the size that the model was fitted
    with, and answers name their files. Without --out, a terminal shows the first rows as a table, and a pipe
    gets all of them as CSV.

    Exits 0 when every row is answered, 2 for bad input.
    """
    if abstain_label is not None and abstain_below is None:
        raise typer.BadParameter("needs --abstain-below, which says when", param_hint="--abstain-label")
    from attnknn.cli import model as models
    from attnknn.cli import rows as reading

    fitted = models.load(model)
    canvas = models.canvas(fitted, data)
    with screen.progress(f"predicting {data}") as say:
        rows = reading.read(data, data_dir, canvas=canvas, say=say)
        X, ignored = models.features(fitted, rows)
        if out is not None:
            check_out(out, data, model)
        say(f"predicting {data}")
        answers = _answers(fitted, X, rows, abstain_below, abstain_label)
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    heads = ["row", *(["file"] if rows.are_files else []), "prediction", "confidence"]
    heads += [f"p_{label}" for label in fitted.classes_] if proba else []
    cells = [_cells(answer, proba=proba) for answer in answers]
    if out is not None:
        _write(out, heads, cells)
    abstained = None if abstain_below is None else sum(each.confidence < abstain_below for each in answers)
    if as_json:
        found = _objects(fitted, answers, proba=proba)
        screen.emit({"model": model, "data": data, "out": out, "abstained": abstained, **found})
    elif out is not None:
        screen.line(f"{len(answers)} rows in {out}{_held_back(abstained)}")
    elif sys.stdout is not None and sys.stdout.isatty():
        _show(heads, cells, abstained)
    else:
        print(_csv(heads, cells), end="")


@dataclass(frozen=True, slots=True)
class _Answer:
    row: int
    file: str | None
    prediction: Any
    confidence: float
    chances: list[float]


def _answers(
    model: AttnKNNClassifier, X: Any, rows: Rows, below: float | None, instead: str | None
) -> list[_Answer]:
    chances = model.predict_proba(X)
    labels = model.classes_.tolist()
    answers = []
    for number, name, each in zip(rows.numbers.tolist(), rows.names, chances.tolist(), strict=True):
        confidence = max(each)
        unsure = below is not None and confidence < below
        prediction = instead if unsure else labels[each.index(confidence)]
        answers.append(_Answer(number, name if isinstance(name, str) else None, prediction, confidence, each))
    return answers


def _cells(answer: _Answer, *, proba: bool) -> list[Any]:
    file = [] if answer.file is None else [answer.file]
    return [answer.row, *file, answer.prediction, answer.confidence, *(answer.chances if proba else ())]


def _objects(model: AttnKNNClassifier, answers: list[_Answer], *, proba: bool) -> dict[str, Any]:
    labels = model.classes_.tolist()
    each = []
    for answer in answers:
        told: dict[str, Any] = {
            "row": answer.row,
            "prediction": answer.prediction,
            "confidence": answer.confidence,
        }
        if answer.file is not None:
            told["file"] = answer.file
        if proba:
            told["probabilities"] = dict(zip(labels, answer.chances, strict=True))
        each.append(told)
    return {"rows": len(answers), "classes": labels, "predictions": each}


def _show(heads: Sequence[str], answers: list[list[Any]], abstained: int | None) -> None:
    scores = heads.index("confidence")
    body = [[*each[:scores], *map(screen.number, each[scores:])] for each in answers[:_SHOWN]]
    screen.table(heads, [["" if cell is None else cell for cell in each] for each in body], left=range(1, scores))
    more = f"the first {_SHOWN} of " if len(answers) > _SHOWN else ""
    screen.line(f"{more}{len(answers)} rows{_held_back(abstained)}")


def _held_back(abstained: int | None) -> str:
    return "" if abstained is None else f", {abstained} without an answer"


def check_out(out: Path, data: str, model: Path) -> None:
    """Refuse to write over what is read, or into the model."""
    from attnknn.data import is_image_file

    if out.is_dir():
        raise InvalidInput(f"{out} is a folder; name a file")
    if not out.parent.is_dir():
        raise InvalidInput(f"{out.parent} is not a folder; make it first")
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise InvalidInput(f"{out} is the file that is read; choose another name")
    if out.exists() and Path(data).resolve() in out.resolve().parents and is_image_file(out):
        raise InvalidInput(f"{out} is one of the images that are read; choose another name")
    if model.resolve() in out.resolve().parents:
        raise InvalidInput(f"{out} lies inside the model; choose another folder")


def _write(out: Path, heads: Sequence[str], answers: Iterable[Sequence[Any]]) -> None:
    """Whole, or not at all."""
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(_csv(heads, answers), encoding="utf-8", newline="")
        draft.replace(out)
    except FileNotFoundError:
        raise InvalidInput(f"{out.parent} is not a folder; make it first") from None
    finally:
        draft.unlink(missing_ok=True)


def _csv(heads: Sequence[str], answers: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, heads))
    writer.writerows([harmless(cell) for cell in answer] for answer in answers)
    return text.getvalue()


def harmless(cell: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a quote in front."""
    if isinstance(cell, str) and (cell.lstrip()[:1] in _FORMULA or cell[:1] in _CONTROL) and cell:
        return f"'{cell}"
    return cell

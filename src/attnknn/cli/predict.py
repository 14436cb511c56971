"""``attnknn predict``."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput

if TYPE_CHECKING:
    from attnknn.estimator import AttnKNNClassifier

_SHOWN = 20
_FORMULA = ("=", "+", "-", "@")
_CONTROL = ("\t", "\r", "\n")


@screen.examples(
    "attnknn predict people-model new.csv",
    "attnknn predict people-model new.csv --proba --out answers.csv",
    "attnknn predict people-model new.csv --abstain-below 0.8 \\",
    "  --abstain-label unsure --json",
)
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV or Parquet file, or a data set.")],
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
    """Label the rows of a file.

    Columns are picked by name; others are ignored. Without --out, a terminal shows the first rows as a
    table, and a pipe gets all of them as CSV.

    Exits 0 when every row is answered, 2 for bad input.
    """
    if abstain_label is not None and abstain_below is None:
        raise typer.BadParameter("needs --abstain-below, which says when", param_hint="--abstain-label")
    from attnknn.cli import model as models
    from attnknn.cli import rows as reading

    fitted = models.load(model)
    with screen.working(f"predicting {data}"):
        table = reading.read(data, data_dir)
        X, ignored = models.features(fitted, table)
        if out is not None:
            check_out(out, data, model)
        answers = _answers(fitted, X, abstain_below, abstain_label, proba=proba)
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    heads = ["row", "prediction", "confidence", *([f"p_{label}" for label in fitted.classes_] if proba else [])]
    if out is not None:
        _write(out, heads, answers)
    abstained = None if abstain_below is None else sum(answer[2] < abstain_below for answer in answers)
    if as_json:
        screen.emit(
            {"model": model, "data": data, "out": out, "abstained": abstained, **_objects(fitted, answers)}
        )
    elif out is not None:
        screen.line(f"{len(answers)} rows in {out}{_held_back(abstained)}")
    elif sys.stdout is not None and sys.stdout.isatty():
        _show(heads, answers, abstained)
    else:
        print(_csv(heads, answers), end="")


def _answers(
    model: AttnKNNClassifier, X: Any, below: float | None, instead: str | None, *, proba: bool
) -> list[list[Any]]:
    """Row, prediction, confidence, and the probabilities when asked for."""
    chances = model.predict_proba(X)
    labels = model.classes_.tolist()
    answers = []
    for row, each in enumerate(chances.tolist()):
        confidence = max(each)
        unsure = below is not None and confidence < below
        prediction = instead if unsure else labels[each.index(confidence)]
        answers.append([row, prediction, confidence, *(each if proba else ())])
    return answers


def _objects(model: AttnKNNClassifier, answers: list[list[Any]]) -> dict[str, Any]:
    labels = model.classes_.tolist()
    each = []
    for row, prediction, confidence, *chances in answers:
        answer = {"row": row, "prediction": prediction, "confidence": confidence}
        if chances:
            answer["probabilities"] = dict(zip(labels, chances, strict=True))
        each.append(answer)
    return {"rows": len(answers), "classes": labels, "predictions": each}


def _show(heads: Sequence[str], answers: list[list[Any]], abstained: int | None) -> None:
    body = [[row, prediction, *map(screen.number, rest)] for row, prediction, *rest in answers[:_SHOWN]]
    screen.table(heads, [["" if cell is None else cell for cell in each] for each in body], left=(1,))
    more = f"the first {_SHOWN} of " if len(answers) > _SHOWN else ""
    screen.line(f"{more}{len(answers)} rows{_held_back(abstained)}")


def _held_back(abstained: int | None) -> str:
    return "" if abstained is None else f", {abstained} without an answer"


def check_out(out: Path, data: str, model: Path) -> None:
    """Refuse to write over what is read, or into the model."""
    if out.is_dir():
        raise InvalidInput(f"{out} is a folder; name a file")
    if not out.parent.is_dir():
        raise InvalidInput(f"{out.parent} is not a folder; make it first")
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise InvalidInput(f"{out} is the file that is read; choose another name")
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

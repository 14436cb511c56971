"""``attnknn evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnknn.cli import arguments, screen


@screen.examples(
    "attnknn evaluate people-model test.csv --target income",
    "attnknn evaluate adult-model adult --data-dir ~/data --json",
    "attnknn evaluate photo-model more-photos/",
)
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    data: arguments.Labelled,
    target: arguments.Target = None,
    draws: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Seed of the draws.")] = 0,
    data_dir: arguments.DataDir = None,
    as_json: arguments.Json = False,
) -> None:
    """Say how good and how honest a model is on labelled rows or images.

    A data set with an official split is evaluated on its test rows. A label that the model does not know
    counts as wrong. Images are brought to the size that the model was fitted with.

    Exits 0 when the rows are evaluated, 2 for bad input.
    """
    from attnknn.cli import model as models
    from attnknn.cli import rows as reading
    from attnknn.cli import scores

    fitted = models.load(model)
    canvas = models.canvas(fitted, data)
    with screen.progress(f"evaluating {data}") as say:
        rows = reading.read_labelled(data, target, data_dir, "test", canvas=canvas, say=say)
        say(f"evaluating {data}")
        found, ignored = scores.score(fitted, rows, draws=draws, seed=seed)
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    if as_json:
        scores.remark(found)
        screen.emit({"model": model, "data": data, **found.to_dict()})
    else:
        scores.show(found)

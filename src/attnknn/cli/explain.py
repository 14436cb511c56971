"""``attnknn explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnknn.cli import arguments, screen


@screen.examples(
    "attnknn explain people-model new.csv --row 3",
    "attnknn explain people-model new.csv --row 3 --html why.html",
    "attnknn explain digits-model digits --row 0 --json",
    "attnknn explain photo-model new-photos/ --row 7 --html why.html",
    "attnknn explain photo-model cat.jpg --html why.html",
)
def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    data: arguments.Asked,
    row: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Which row, counted from 0; of a folder, which of its images."),
    ] = None,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Neighbors to show; JSON has them all.")] = 10,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="HTML file to write.")] = None,
    data_dir: arguments.DataDir = None,
    as_json: arguments.Json = False,
) -> None:
    """Show the neighbors behind one prediction, their weights, and what each class got from them.

    The page of --html needs nothing else, and shows images as pictures.

    Exits 0 when the row is explained, 2 for bad input.
    """
    from attnknn.data import is_image_file

    if row is None and not is_image_file(data):
        raise typer.BadParameter("say which row of DATA is to be explained", param_hint="--row")
    from attnknn.cli import model as models
    from attnknn.cli import rows as reading
    from attnknn.cli.predict import check_out
    from attnknn.estimator.reasons import with_pictures
    from attnknn.predict.page import page

    fitted = models.load(model)
    asked = reading.read(data, data_dir, canvas=models.canvas(fitted, data), only=row or 0)
    if html is not None:
        check_out(html, data, model)
    X, ignored = models.features(fitted, asked)
    reasons = with_pictures(fitted.explain(X), fitted.embedder_, X)[0]
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    file = str(asked.names[0]) if asked.are_files else None
    title = f"row {row} of {data}" if file is None else file
    if html is not None:
        html.write_text(page(reasons, f"Why: {title}", most=most, name=file), "utf-8", "backslashreplace")
    if as_json:
        about = {"model": model, "data": data, "row": row or 0, **({} if file is None else {"file": file})}
        screen.emit({**about, "html": html, **reasons.to_dict()})
        return
    screen.line(title)
    for each in reasons.text(most).splitlines():
        screen.line(each)
    if html is not None:
        screen.line(f"written to {html}")

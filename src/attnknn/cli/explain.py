"""``attnknn explain``."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput


@screen.examples(
    "attnknn explain people-model new.csv --row 3",
    "attnknn explain people-model new.csv --row 3 --html why.html",
    "attnknn explain digits-model digits --row 0 --json",
)
def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    data: Annotated[str, typer.Argument(metavar="DATA", help="CSV, TSV or Parquet file, or a data set.")],
    row: Annotated[int, typer.Option(metavar="N", min=0, help="Which row, counted from 0.")],
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Neighbors to show; JSON has them all.")] = 10,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="HTML file to write.")] = None,
    data_dir: arguments.DataDir = None,
    as_json: arguments.Json = False,
) -> None:
    """Show the neighbors behind one prediction, their weights, and what each class got from them.

    Exits 0 when the row is explained, 2 for bad input.
    """
    import numpy as np

    from attnknn.cli import model as models
    from attnknn.cli import rows as reading
    from attnknn.cli.predict import check_out

    fitted = models.load(model)
    table = reading.read(data, data_dir)
    if row >= len(table):
        raise InvalidInput(f"there is no row {row}: {data} has rows 0 to {len(table) - 1}")
    if html is not None:
        check_out(html, data, model)
    X, ignored = models.features(fitted, table.take(np.array([row])))
    reasons = fitted.explain(X)[0]
    if ignored:
        screen.note(f"columns that the model does not use: {models.some(ignored)}")
    if html is not None:
        html.write_text(_page(f"Row {row} of {data}", reasons._repr_html_(most)), encoding="utf-8")
    if as_json:
        screen.emit({"model": model, "data": data, "row": row, "html": html, **reasons.to_dict()})
        return
    screen.line(f"row {row} of {data}")
    for each in reasons.text(most).splitlines():
        screen.line(each)
    if html is not None:
        screen.line(f"written to {html}")


def _page(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 1.5rem; overflow-x: auto }}
table {{ border-collapse: collapse }}
th, td {{ padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left }}
</style></head>
<body><h1>{escape(title)}</h1>{body}</body></html>
"""

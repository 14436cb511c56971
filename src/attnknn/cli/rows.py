"""DATA on the command line: a file, a folder or a named set, read into a frame or images, and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from attnknn.cli.pictures import Canvas, Say

Part = Literal["all", "train", "test"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of DATA: a frame, or images (n, h, w, c) of uint8.

    ``numbers`` says which rows of DATA they are, from 0, and ``names`` what to call them: files by their path,
    others by their number. ``labels`` is None where no target was asked for.
    """

    source: str
    X: pd.DataFrame | NDArray[np.uint8]
    labels: NDArray[Any] | None
    numbers: NDArray[np.int64]
    names: Sequence[int | str]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def are_images(self) -> bool:
        """Whether these are images."""
        from attnknn.data import is_images

        return is_images(self.X)

    @property
    def are_files(self) -> bool:
        """Whether each row is a file of its own."""
        return len(self.names) > 0 and isinstance(self.names[0], str)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows of a table; refuses images."""
        import pandas as pd

        if not isinstance(self.X, pd.DataFrame):
            raise InvalidInput(
                f"{self.source} is a set of images, {self.X.shape[1:]} each; this command takes tables"
            )
        return self.X

    def take(self, at: NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        from attnknn.data import is_images

        X = self.X[at] if is_images(self.X) else self.frame.iloc[at]
        labels = None if self.labels is None else self.labels[at]
        return Rows(self.source, X, labels, self.numbers[at], [self.names[row] for row in at.tolist()])


def holds_images(data: str) -> bool:
    """Whether DATA is an image, a folder or a named set of images; refuses what is not there at all.

    A file wins over a data set of the same name, and that over a folder.
    """
    from attnknn.data import NAMED, is_image_file

    if Path(data).is_file():
        return is_image_file(data)
    if data in NAMED:
        return NAMED[data].pictures
    if Path(data).is_dir():
        return True
    if Path(data).suffix or "/" in data:
        raise MissingData(f"no such file: {data}")
    raise InvalidInput(f"no file, folder or data set is called {data!r}; the data sets are: {', '.join(NAMED)}")


def is_named(data: str) -> bool:
    """Whether DATA is the name of a data set."""
    from attnknn.data import NAMED

    return data in NAMED and not Path(data).is_file()


def read(
    data: str,
    data_dir: Path | None = None,
    *,
    canvas: Canvas | None = None,
    only: int | None = None,
    say: Say | None = None,
) -> Rows:
    """Rows of DATA, without labels.

    Args:
        data: What the user named.
        data_dir: Folder of the named sets.
        canvas: What images are brought to; None takes what they have.
        only: The one row that is asked for, counted from 0.
        say: Told how far it is.
    """
    import numpy as np

    from attnknn.cli import pictures

    if holds_images(data) and not is_named(data):
        return pictures.from_disk(data, canvas or pictures.Canvas(), labelled=False, only=only, say=say)
    rows = _of_set(data, data_dir, "all", labelled=False) if is_named(data) else _of_file(data, None)
    if only is not None:
        rows = rows.take(np.array([pictures.checked_row(only, len(rows), data)]))
    return _on_canvas(rows, canvas)


def read_labelled(
    data: str,
    target: str | None,
    data_dir: Path | None = None,
    part: Part = "all",
    *,
    canvas: Canvas | None = None,
    say: Say | None = None,
) -> Rows:
    """Rows of DATA with labels.

    Args:
        data: What the user named; images lie in a folder for each class.
        target: The column of labels, where DATA is a file.
        data_dir: Folder of the named sets.
        part: Counts for named sets with an official split.
        canvas: What images are brought to; None takes what they have.
        say: Told how far it is.
    """
    from attnknn.cli import pictures

    pictured = holds_images(data)
    if is_named(data):
        _check_target(data, target)
        return _on_canvas(_of_set(data, data_dir, part, labelled=True), canvas)
    if pictured:
        if target is not None:
            raise InvalidInput(f"--target {target}: {data} holds images, whose folders are their labels")
        return pictures.from_disk(data, canvas or pictures.Canvas(), labelled=True, say=say)
    return _of_file(data, target, labelled=True)


def with_ids(rows: Rows, column: str | None) -> tuple[Rows, list[int | str] | None]:
    """The rows without their column of ids, and the ids; None where no column is named."""
    if column is None:
        return rows, None
    if rows.are_images:
        raise InvalidInput(f"--ids {column}: {rows.source} holds images, which have no columns")
    names = [str(name) for name in rows.frame.columns]
    if column not in names:
        raise InvalidInput(f"{rows.source} has no column {column!r} for ids; its columns are: {', '.join(names)}")
    if len(names) == 1:
        raise InvalidInput(f"{rows.source} has no column besides the ids {column!r}")
    at = names.index(column)
    ids = _checked_ids(rows.frame.iloc[:, at], column)
    rest = rows.frame.drop(columns=rows.frame.columns[at])
    return replace(rows, X=rest), ids


def _of_file(data: str, target: str | None, *, labelled: bool = False) -> Rows:
    import numpy as np

    from attnknn.data import read_table_file

    if labelled and target is None:
        names = ", ".join(map(str, read_table_file(data)[0].columns))
        raise InvalidInput(f"name the column of labels with --target; the columns of {data} are: {names}")
    frame, labels = read_table_file(data, target) if labelled else read_table_file(data)
    return Rows(data, frame, labels, np.arange(len(frame)), range(len(frame)))


def _on_canvas(rows: Rows, canvas: Canvas | None) -> Rows:
    """Images of a named set as they are asked for; tables as they are."""
    from attnknn.cli.pictures import brought_to
    from attnknn.data import is_images

    if canvas is None or not is_images(rows.X):
        return rows
    return replace(rows, X=brought_to(rows.X, canvas))


def _check_target(name: str, target: str | None) -> None:
    from attnknn.data import NAMED

    known = NAMED[name].target
    if target not in (None, known):
        raise InvalidInput(f"the target of the data set {name} is {known!r}, not {target!r}; leave --target out")


def _of_set(name: str, data_dir: Path | None, part: Part, *, labelled: bool) -> Rows:
    import numpy as np

    from attnknn.data import as_frame, is_images, load_named

    found = load_named(name, data_dir)
    X = found.X if is_images(found.X) else as_frame(found.X)
    count = len(found.y)
    rows = Rows(name, X, found.y if labelled else None, np.arange(count), range(count))
    official = {"all": None, "train": found.train_rows, "test": found.test_rows}[part]
    return rows if official is None else rows.take(official)


def _checked_ids(column: pd.Series[Any], name: str) -> list[int | str]:
    if absent := int(column.isna().sum()):
        raise InvalidInput(f"the ids in {name!r} are missing in {absent} row{'s' * (absent > 1)}")
    ids = column.tolist()
    wrong = [each for each in ids if isinstance(each, bool) or not isinstance(each, int | str)]
    if wrong:
        raise InvalidInput(f"ids must be whole numbers or text; {name!r} holds {wrong[0]!r}")
    return ids

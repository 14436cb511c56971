"""DATA on the command line: a file or a named set, read into a frame and labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from attnknn.data import DataSet

Part = Literal["all", "train", "test"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of DATA.

    ``numbers`` says which rows of DATA they are, from 0. ``labels`` is None where no target was asked for.
    """

    source: str
    frame: pd.DataFrame
    labels: NDArray[Any] | None
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, at: NDArray[np.int64]) -> Rows:
        """Some of the rows."""
        labels = None if self.labels is None else self.labels[at]
        return Rows(self.source, self.frame.iloc[at], labels, self.numbers[at])


def read(data: str, data_dir: Path | None = None) -> Rows:
    """All rows of DATA, without labels."""
    import numpy as np

    if _is_named(data):
        return _of_set(data, data_dir, "all", labelled=False)
    from attnknn.data import read_table_file

    frame, _ = read_table_file(data)
    return Rows(data, frame, None, np.arange(len(frame)))


def read_labelled(data: str, target: str | None, data_dir: Path | None = None, part: Part = "all") -> Rows:
    """Rows of DATA with labels; ``part`` counts for named sets with an official split."""
    import numpy as np

    if _is_named(data):
        _check_target(data, target)
        return _of_set(data, data_dir, part, labelled=True)
    from attnknn.data import read_table_file

    if target is None:
        names = ", ".join(map(str, read_table_file(data)[0].columns))
        raise InvalidInput(f"name the column of labels with --target; the columns of {data} are: {names}")
    frame, labels = read_table_file(data, target)
    return Rows(data, frame, labels, np.arange(len(frame)))


def with_ids(rows: Rows, column: str | None) -> tuple[Rows, list[int | str] | None]:
    """The rows without their column of ids, and the ids; None where no column is named."""
    if column is None:
        return rows, None
    names = [str(name) for name in rows.frame.columns]
    if column not in names:
        raise InvalidInput(f"{rows.source} has no column {column!r} for ids; its columns are: {', '.join(names)}")
    if len(names) == 1:
        raise InvalidInput(f"{rows.source} has no column besides the ids {column!r}")
    at = names.index(column)
    ids = _checked_ids(rows.frame.iloc[:, at], column)
    rest = rows.frame.drop(columns=rows.frame.columns[at])
    return Rows(rows.source, rest, rows.labels, rows.numbers), ids


def _is_named(data: str) -> bool:
    """Whether DATA is a set's name; a file of that name wins. Refuses what is neither."""
    from attnknn.data import NAMED

    if Path(data).is_file():
        return False
    if data in NAMED:
        return True
    if Path(data).suffix or "/" in data or Path(data).exists():
        if Path(data).exists():
            raise InvalidInput(f"{data} is a folder; give a CSV or Parquet file, or the name of a data set")
        raise MissingData(f"no such file: {data}")
    raise InvalidInput(f"no file and no data set is called {data!r}; the data sets are: {', '.join(NAMED)}")


def _check_target(name: str, target: str | None) -> None:
    from attnknn.data import NAMED

    known = NAMED[name].target
    if target not in (None, known):
        raise InvalidInput(f"the target of the data set {name} is {known!r}, not {target!r}; leave --target out")


def _of_set(name: str, data_dir: Path | None, part: Part, *, labelled: bool) -> Rows:
    import numpy as np

    from attnknn.data import is_images, load_named

    found = load_named(name, data_dir)
    if is_images(found.X):
        raise InvalidInput(f"{name} is a set of images, {found.X.shape[1:]} each; this command takes tables")
    rows = Rows(name, _frame(found), found.y if labelled else None, np.arange(len(found.y)))
    official = {"all": None, "train": found.train_rows, "test": found.test_rows}[part]
    return rows if official is None else rows.take(official)


def _frame(found: DataSet) -> pd.DataFrame:
    """Features with names, so that a model fitted on them finds them in any file again."""
    import numpy as np
    import pandas as pd

    if isinstance(found.X, np.ndarray):
        return pd.DataFrame(found.X, columns=[f"x{at}" for at in range(found.X.shape[1])])
    return found.X


def _checked_ids(column: pd.Series[Any], name: str) -> list[int | str]:
    if column.isna().any():
        raise InvalidInput(f"the ids in {name!r} are missing in {int(column.isna().sum())} rows")
    ids = column.tolist()
    wrong = [each for each in ids if isinstance(each, bool) or not isinstance(each, int | str)]
    if wrong:
        raise InvalidInput(f"ids must be whole numbers or text; {name!r} holds {wrong[0]!r}")
    return ids

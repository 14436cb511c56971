"""Files and frames to checked columns: tables, named data sets, splits."""

from attnknn.data.files import read_table_file
from attnknn.data.named import NAMED, DataSet, Source, load_named, verify
from attnknn.data.splits import duplicate_groups, folds, split
from attnknn.data.table import Column, Table, as_table, is_frame

__all__ = [
    "NAMED",
    "Column",
    "DataSet",
    "Source",
    "Table",
    "as_table",
    "duplicate_groups",
    "folds",
    "is_frame",
    "load_named",
    "read_table_file",
    "split",
    "verify",
]

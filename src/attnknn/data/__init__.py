"""Files and frames to checked columns and pixels: tables, images, named data sets, splits."""

from attnknn.data.files import read_table_file
from attnknn.data.image_folder import (
    ImageFiles,
    find_images,
    has_loose_images,
    is_image_file,
    list_images,
    load_images,
    usual_size,
)
from attnknn.data.images import as_images, decode_image, is_images, recolor, resize_image
from attnknn.data.named import DataSet, load_named, verify
from attnknn.data.png import png, png_uri
from attnknn.data.sources import NAMED, Source
from attnknn.data.splits import duplicate_groups, folds, split
from attnknn.data.table import Column, Table, as_frame, as_table, is_frame

__all__ = [
    "NAMED",
    "Column",
    "DataSet",
    "ImageFiles",
    "Source",
    "Table",
    "as_frame",
    "as_images",
    "as_table",
    "decode_image",
    "duplicate_groups",
    "find_images",
    "folds",
    "has_loose_images",
    "is_frame",
    "is_image_file",
    "is_images",
    "list_images",
    "load_images",
    "load_named",
    "png",
    "png_uri",
    "read_table_file",
    "recolor",
    "resize_image",
    "split",
    "usual_size",
    "verify",
]

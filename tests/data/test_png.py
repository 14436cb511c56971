"""Our PNG files against an independent decoder."""

import base64
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnknn.data import png, png_uri
from attnknn.errors import InvalidInput


def decoded(content):
    return np.asarray(Image.open(io.BytesIO(content)))


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([None, 1, 3]), st.integers(0, 2**32 - 1))
def test_pillow_decodes_the_very_pixels(height, width, channels, seed):
    shape = (height, width) if channels is None else (height, width, channels)
    image = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    expected = image[..., 0] if channels == 1 else image
    np.testing.assert_array_equal(decoded(png(image)), expected)


def test_views_that_are_not_contiguous_are_written_as_seen():
    image = np.arange(300, dtype=np.uint16).astype(np.uint8).reshape(10, 10, 3)[::-1, ::2]
    np.testing.assert_array_equal(decoded(png(image)), image)


def test_an_address_holds_the_whole_file():
    image = np.full((9, 8, 3), 7, np.uint8)
    head, content = png_uri(image).split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(content) == png(image)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((8, 8), float),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros((0, 8), np.uint8),
        np.zeros(8, np.uint8),
        [[1]],
    ],
)
def test_what_is_no_picture_is_refused(wrong):
    with pytest.raises(InvalidInput, match="expected uint8 pixels"):
        png(wrong)

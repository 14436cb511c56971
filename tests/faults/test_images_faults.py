"""Image bombs, damaged files and files that are no images: refused by name, bombs before they are decoded."""

from __future__ import annotations

import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from attnknn.data import decode_image
from attnknn.data.images import MOST_PIXELS
from attnknn.errors import InvalidInput, MissingData

KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def encoded(kind="PNG", size=(23, 17), mode="RGB", **options):
    draw = np.random.default_rng(0)
    file = io.BytesIO()
    noise = Image.fromarray(draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    noise.convert(mode).save(file, kind, **options)
    return file.getvalue()


def claiming(kind, width, height):
    """A small file whose header claims a size; the pixels for it are not there."""
    content = bytearray(encoded(kind))
    if kind == "PNG":
        content[16:24] = struct.pack(">II", width, height)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    elif kind == "JPEG":
        frame = content.index(b"\xff\xc0")
        content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    elif kind == "BMP":
        content[18:26] = struct.pack("<ii", width, height)
    elif kind == "GIF":
        content[6:10] = struct.pack("<HH", width, height)
    return bytes(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF"])
@pytest.mark.parametrize(("width", "height"), [(4001, 4000), (12_000, 12_000), (20_000, 20_000), (65_000, 65_000)])
def test_a_bomb_is_refused_by_its_header_alone(kind, width, height):
    # Of the larger ones the pixels are not there: a decoder would speak of damage. Pillow itself warns at
    # 12,000 and raises at 20,000; a warning is an error in these tests.
    with pytest.raises(InvalidInput, match=f"the given bytes: {width} x {height} pixels; at most 16,000,000"):
        decode_image(claiming(kind, width, height))


def test_a_bomb_of_webp_is_refused_too(tmp_path):
    file = tmp_path / "flat.webp"
    Image.new("L", (16_000, 1001)).save(file, lossless=True, method=0)
    with pytest.raises(InvalidInput, match=r"flat\.webp: 16000 x 1001 pixels"):
        decode_image(file)


def test_an_image_of_just_the_most_pixels_is_decoded():
    file = io.BytesIO()
    Image.new("1", (4000, MOST_PIXELS // 4000)).save(file, "PNG")
    np.testing.assert_equal(decode_image(file.getvalue(), channels=1).shape, (4000, 4000, 1))


def test_our_limit_decides_and_that_of_pillow_stays_as_it_was(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    np.testing.assert_equal(decode_image(encoded()).shape, (17, 23, 3))
    for bad in (claiming("PNG", 20_000, 20_000), b"nothing", encoded()[:40]):
        with pytest.raises(InvalidInput):
            decode_image(bad)
    np.testing.assert_equal(Image.MAX_IMAGE_PIXELS, 10)


def test_many_threads_decode_alike_and_leave_pillow_as_it_was():
    limit, good = Image.MAX_IMAGE_PIXELS, encoded()
    expected = decode_image(good)

    def one(at):
        if at % 3:
            return decode_image(good)
        with pytest.raises(InvalidInput, match="12000 x 12000"):
            decode_image(claiming("PNG", 12_000, 12_000))
        return expected

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(one, range(300)):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_equal(Image.MAX_IMAGE_PIXELS, limit)


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'
PBM = b"P6 1 1 255 \0\0\0"  # Pillow would read it, as it would TIFF and some thirty others
TIFF = encoded("TIFF")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (SVG, "no image that can be read"),
        (PBM, "no image that can be read"),
        (TIFF, "no image that can be read"),
        (b"GIF89a", "no image that can be read"),
        (b"hello, world\n" * 50, "no image that can be read"),
        (claiming("PNG", 0, 10), "image"),
    ],
)
def test_what_is_no_image_is_refused_with_its_name_and_the_kinds_that_are(tmp_path, content, said):
    file = tmp_path / "picture.png"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"picture\.png: .*({said})"):
        decode_image(file)
    with pytest.raises(InvalidInput, match=f"the given bytes: .*({said})"):
        decode_image(content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_short_is_refused(kind, tmp_path):
    whole, file = encoded(kind), tmp_path / "half"
    for share in (0.02, 0.1, 0.3, 0.5, 0.9):
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(InvalidInput, match=r"half: .*(cut short|damaged)"):
            decode_image(file)


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    with pytest.raises(MissingData, match=r"loop\.png"):
        decode_image(tmp_path / "loop.png")


def test_damaged_exif_does_not_spoil_a_good_picture():
    good = encoded("PNG")
    for exif in (
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12",
        b"junk" * 9,
    ):
        np.testing.assert_array_equal(decode_image(encoded("PNG", exif=exif)), decode_image(good))


@settings(max_examples=150)
@given(
    st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.data()
)
def test_no_damage_makes_anything_but_pixels_or_our_error(kind, changes, data):
    content = bytearray(encoded(kind, mode=data.draw(st.sampled_from(["RGB", "L"]))))
    for at, value in changes:
        content[at % len(content)] = value
    end = data.draw(st.integers(0, len(content)))
    try:
        found = decode_image(bytes(content[: end or None]))
    except InvalidInput:
        return
    np.testing.assert_equal((found.ndim, found.dtype, found.shape[2]), (3, np.uint8, 3))


@given(st.binary(max_size=80), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF89a"]))
def test_no_bytes_make_anything_but_pixels_or_our_error(content, start):
    try:
        found = decode_image(start + content)
    except InvalidInput:
        return
    np.testing.assert_equal(found.dtype, np.uint8)

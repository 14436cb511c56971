"""Sizes, colors and names of images: chosen from headers, converted as Pillow would."""

import os

import numpy as np
import pytest
from PIL import Image

from attnknn.data import find_images, has_loose_images, list_images, load_images, recolor, resize_image, usual_size
from attnknn.data.images import image_header
from attnknn.errors import InvalidInput, MissingData


def write(path, size=(8, 8), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path, **options)
    return path


@pytest.mark.parametrize("size", [(16, 24), (24, 16), (40, 10), (9, 64)])
@pytest.mark.parametrize("shape", [(32, 48), (48, 32), (20, 20)])
def test_height_and_width_keep_the_middle_as_pillow_fits_it(shape, size):
    from PIL import ImageOps

    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    expected = ImageOps.fit(Image.fromarray(image), size[::-1], Image.Resampling.BICUBIC)
    found = resize_image(image, size)
    assert found.shape == (*size, 3)
    np.testing.assert_allclose(found.astype(int), np.asarray(expected).astype(int), atol=3)


def test_a_square_may_be_said_in_either_way():
    image = np.random.default_rng(1).integers(0, 256, (30, 21, 1), dtype=np.uint8)
    np.testing.assert_array_equal(resize_image(image, 12), resize_image(image, (12, 12)))
    for wrong in ((8,), (8, 8, 8), (7, 8), (8, 1025), (8.0, 8)):
        with pytest.raises(InvalidInput, match="or height and width"):
            resize_image(image, wrong)


def test_colors_change_as_pillow_changes_them():
    images = np.random.default_rng(2).integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    gray = recolor(images, 1)
    assert gray.shape == (3, 8, 9, 1)
    np.testing.assert_array_equal(gray[1, ..., 0], np.asarray(Image.fromarray(images[1]).convert("L")))
    np.testing.assert_array_equal(recolor(gray, 3), np.concatenate([gray] * 3, axis=3))
    assert recolor(images, 3) is images
    assert recolor(images[:0], 1).shape == (0, 8, 9, 1)


def test_a_header_tells_the_size_as_seen(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6  # turned by a quarter
    write(tmp_path / "lying.jpg", (30, 20), exif=tags)
    found = image_header(tmp_path / "lying.jpg")
    assert (found.height, found.width, found.gray) == (30, 20, False)
    assert load_images([tmp_path / "lying.jpg"]).shape == (1, 30, 20, 3)
    assert image_header(write(tmp_path / "gray.png", mode="L")).gray


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(12, 10)] * 3, ((10, 12), True)),
        ([(10, 20), (20, 12), (30, 31)], ((12, 12), False)),
        ([(400, 300)] * 2, ((224, 224), False)),
        ([(4, 4)] * 2, ((8, 8), False)),
        ([(300, 8), (9, 300)], ((8, 8), False)),
    ],
)
def test_the_usual_size_is_what_all_share_or_the_median(tmp_path, sizes, expected):
    paths = [write(tmp_path / f"{at}.png", size) for at, size in enumerate(sizes)]
    assert usual_size(paths) == expected


def test_any_layout_can_be_asked_about(tmp_path):
    for name in ("b.png", "a/2.GIF", "a/deep/1.bmp", ".hidden/x.png", "c.txt"):
        path = tmp_path / name
        write(path) if path.suffix != ".txt" else path.write_text("x")
    found = find_images(tmp_path)
    assert found.names == ("a/2.GIF", "a/deep/1.bmp", "b.png")
    assert (found.ignored, len(found)) == (1, 3)
    assert has_loose_images(tmp_path)
    with pytest.raises(MissingData, match="no such folder"):
        find_images(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="has no images"):
        find_images(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_a_name_that_is_no_utf_8_is_spelled_out(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    os.rename(tmp_path / "x.png", folder + b"/\xff.png")
    found = list_images(tmp_path)
    assert found.names == (r"caf\xe9/\xff.png",)
    assert found.classes == (r"caf\xe9",)
    assert load_images(found.paths).shape == (1, 8, 8, 3)

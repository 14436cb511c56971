import builtins
import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch.nn.functional import interpolate

from attnknn.data import as_images, decode_image, is_images, resize_image
from attnknn.errors import InvalidInput, MissingData, MissingExtra


def picture(height=12, width=20, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    """The bytes of a file that holds an image of Pillow, or an array."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width, height, depth, color, rows, *chunks):
    """A PNG made by hand, for kinds that Pillow does not write; ``rows`` are the bytes of each row."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    extra = b"".join(chunk(name, body) for name, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True}), ("PNG", {"interlace": 1})]
)
def test_a_picture_comes_back_as_it_was_from_bytes_and_from_a_file(kind, options, tmp_path):
    pixels = picture()
    content = encoded(pixels, kind, **options)
    file = tmp_path / "a name with spaces.any"
    file.write_bytes(content)
    for source in (content, file, str(file)):
        found = decode_image(source)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, pixels)


def test_a_jpeg_is_close_to_what_it_was():
    smooth = np.linspace(0, 255, 32 * 32 * 3).reshape(32, 32, 3).astype(np.uint8)
    found = decode_image(encoded(smooth, "JPEG", quality=95, subsampling=0))
    np.testing.assert_allclose(found.astype(int), smooth.astype(int), atol=8)


def twins():
    """Images of every kind, each beside the RGB picture that a viewer with a white ground would show."""
    rgb, draw = picture(), np.random.default_rng(1)
    gray = rgb[..., 0]
    shown = np.repeat(gray[..., None], 3, axis=2)
    alpha = draw.choice(np.array([0, 255], np.uint8), gray.shape)
    on_white = np.where(alpha[..., None] == 255, rgb, 255)
    palette = Image.fromarray(rgb).quantize(16)
    few = np.asarray(palette.convert("RGB"))
    first = np.where(np.asarray(palette)[..., None] == 0, 255, few)
    yield "gray", encoded(gray), shown
    yield (
        "gray with alpha",
        encoded(Image.fromarray(np.dstack([gray, alpha]))),
        np.where(alpha[..., None] == 255, shown, 255),
    )
    yield "one bit", encoded(Image.fromarray(gray > 127)), np.where(shown > 127, 255, 0)
    yield "color with alpha", encoded(np.dstack([rgb, alpha])), on_white
    yield "WebP with alpha", encoded(np.dstack([rgb, alpha]), "WEBP", lossless=True), on_white
    yield "palette", encoded(palette), few
    yield "palette, one clear color", encoded(palette, transparency=0), first
    yield "palette, alpha of each color", encoded(palette, transparency=b"\0" + b"\xff" * 15), first
    yield "GIF", encoded(palette, "GIF"), few
    yield "GIF, one clear color", encoded(palette, "GIF", transparency=0), first
    yield (
        "gray, one clear value",
        encoded(gray, transparency=int(gray[0, 0])),
        np.where(shown == gray[0, 0], 255, shown),
    )
    yield (
        "color, one clear color",
        encoded(rgb, transparency=tuple(map(int, rgb[0, 0]))),
        np.where((rgb == rgb[0, 0]).all(axis=2, keepdims=True), 255, rgb),
    )
    deep = gray.astype(np.uint16) * 257
    yield "16 bits", encoded(deep), shown
    rows = [row.astype(">u2").tobytes() for row in deep]
    clear = (b"tRNS", struct.pack(">H", deep[0, 0]))
    yield "16 bits, one clear value", png(20, 12, 16, 0, rows, clear), np.where(shown == gray[0, 0], 255, shown)
    rows = [row.astype(">u2").tobytes() for row in rgb.astype(np.uint16) * 257]
    yield "color of 16 bits", png(20, 12, 16, 2, rows), rgb


@pytest.mark.parametrize(("content", "rgb"), [pytest.param(*rest, id=name) for name, *rest in twins()])
def test_every_kind_equals_its_rgb_twin(content, rgb):
    twin = encoded(rgb.astype(np.uint8))
    np.testing.assert_array_equal(decode_image(content), rgb)
    np.testing.assert_array_equal(decode_image(content), decode_image(twin))
    np.testing.assert_array_equal(decode_image(content, channels=1), decode_image(twin, channels=1))


def test_what_is_half_clear_is_mixed_with_white():
    half = np.full((4, 4, 4), (200, 0, 100, 128), np.uint8)
    mixed = np.array([200, 0, 100]) * 128 / 255 + 255 * 127 / 255
    np.testing.assert_allclose(decode_image(encoded(half)), np.broadcast_to(mixed, (4, 4, 3)), atol=1)


def test_cmyk_is_converted():
    rgb = np.repeat(np.repeat(picture(2, 2), 8, axis=0), 8, axis=1)
    content = encoded(Image.fromarray(rgb).convert("CMYK"), "JPEG", quality=100, subsampling=0)
    assert Image.open(io.BytesIO(content)).mode == "CMYK"
    np.testing.assert_allclose(decode_image(content).astype(int), rgb.astype(int), atol=4)


def test_16_bits_are_scaled_and_not_cut_off():
    values = np.array([[0, 128, 129, 257, 40_000, 65_535]], np.uint16)
    assert decode_image(encoded(values), channels=1).ravel().tolist() == [0, 0, 1, 1, 156, 255]


def test_gray_has_one_channel_on_demand():
    rgb = picture()
    luma = rgb @ np.array([0.299, 0.587, 0.114])  # as in ITU-R BT.601
    found = decode_image(encoded(rgb), channels=1)
    assert found.shape == (12, 20, 1)
    np.testing.assert_allclose(found[..., 0], luma, atol=1)
    for channels in (0, 2, 4, None):
        with pytest.raises(InvalidInput, match="channels must be 1 or 3"):
            decode_image(encoded(rgb), channels=channels)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientation_is_applied(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(picture(), kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert expected.shape[:2] == ((20, 12) if 5 <= orientation <= 8 else (12, 20))
    np.testing.assert_array_equal(decode_image(content), expected)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_counts(kind):
    frames = [np.full((9, 9, 3), color, np.uint8) for color in ((255, 0, 0), (0, 255, 0))]
    others = [Image.fromarray(frame) for frame in frames[1:]]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(frames[0], kind, save_all=True, append_images=others, **options)
    assert Image.open(io.BytesIO(content)).n_frames == 2
    np.testing.assert_array_equal(decode_image(content), frames[0])


def test_absent_files_and_folders_are_named(tmp_path):
    with pytest.raises(MissingData, match=r"no such file: .*gone\.png"):
        decode_image(tmp_path / "gone.png")
    with pytest.raises(InvalidInput, match="not a file"):
        decode_image(tmp_path)


def test_without_pillow_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    content = encoded(picture())
    monkeypatch.setattr(builtins, "__import__", without)
    for call in (lambda: decode_image(content), lambda: resize_image(picture(), 8)):
        with pytest.raises(MissingExtra, match=r"pip install 'attnknn\[images\]'"):
            call()


@pytest.mark.parametrize("shape", [(40, 40), (40, 64), (64, 40)])
@pytest.mark.parametrize("size", [16, 40, 56])
def test_resizing_equals_torch_on_the_central_square(shape, size):
    image = picture(*shape) // 4 + 96  # away from 0 and 255, where Pillow cuts off between its two passes
    side = min(shape)
    top, left = (shape[0] - side) // 2, (shape[1] - side) // 2
    square = torch.from_numpy(image[top : top + side, left : left + side].astype(np.float32))
    wide = interpolate(
        square.permute(2, 0, 1)[None], (size, size), mode="bicubic", antialias=True, align_corners=False
    )
    expected = wide[0].permute(1, 2, 0).clamp(0, 255).numpy()
    inner = slice(3, -3)  # near its border the square sees what lies beside it
    found = resize_image(image, size)
    assert found.shape == (size, size, 3)
    np.testing.assert_allclose(found[inner, inner], expected[inner, inner], atol=2)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(8, 40), st.sampled_from([1, 3]), st.integers(0, 255))
def test_resizing_gives_a_square_and_keeps_what_is_even(height, width, size, channels, value):
    image = np.full((height, width, channels), value, np.uint8)
    found = resize_image(image, size)
    assert (found.shape, found.dtype) == ((size, size, channels), np.uint8)
    assert (found == value).all()


def test_an_image_of_that_size_is_returned_as_is():
    image = picture(16, 16)
    assert resize_image(image, 16) is image


def test_resizing_averages_what_it_drops():
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    found = resize_image(board.astype(np.uint8)[..., None], 16)
    np.testing.assert_allclose(found[2:-2, 2:-2], 127.5, atol=2)


def test_a_strip_as_long_as_may_be_is_resized_in_little_memory():
    assert resize_image(np.zeros((1, 16_000_000, 1), np.uint8), 1024).shape == (1024, 1024, 1)


@pytest.mark.parametrize("size", [0, 7, 1025, -1, 16.0, True, None, "16"])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(InvalidInput, match="size must be a whole number from 8 to 1024"):
        resize_image(picture(), size)


@pytest.mark.parametrize(
    "image",
    [picture() / 255, picture()[..., :2], picture()[..., 0], np.empty((0, 4, 3), np.uint8), [[1]], None],
)
def test_what_is_no_image_is_not_resized(image):
    with pytest.raises(InvalidInput, match="expected uint8 pixels"):
        resize_image(image, 16)


@pytest.mark.parametrize("shape", [(2, 8, 9), (2, 8, 9, 1), (2, 1024, 9, 3), (0, 8, 8)])
def test_images_are_seen_as_such_and_given_their_channels(shape):
    X = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert is_images(X)
    images = as_images(X)
    assert images.shape == (*shape[:3], shape[3] if len(shape) == 4 else 1)
    np.testing.assert_array_equal(images.reshape(shape), X)


def test_images_may_be_read_only_and_out_of_order():
    X = np.zeros((3, 9, 8, 5), np.uint8).transpose(3, 2, 1, 0)
    X.flags.writeable = False
    assert np.shares_memory(as_images(X), X)


@pytest.mark.parametrize(
    ("X", "said", "seen"),
    [
        (np.zeros((2, 9, 9)), "pixels are uint8 from 0 to 255, got float64", False),
        (np.zeros((2, 9, 9, 3), np.int64), "pixels are uint8 from 0 to 255, got int64", False),
        (np.zeros((2, 3, 32, 32), np.uint8), "channels come last", False),
        (np.zeros((2, 1, 32, 32), np.uint8), "channels come last", False),
        (np.zeros((2, 32, 32, 2), np.uint8), "1 or 3 channels, got 2", False),
        (np.zeros((2, 32, 32, 4), np.uint8), "1 or 3 channels, got 4", False),
        (np.zeros((2, 64), np.uint8), r"got \(2, 64\)", False),
        (np.zeros((1, 2, 9, 9, 3), np.uint8), r"got \(1, 2, 9, 9, 3\)", False),
        (np.zeros((2, 7, 9), np.uint8), "8 to 1024 pixels high and wide, got 7 x 9", True),
        (np.zeros((2, 9, 1025, 1), np.uint8), "got 9 x 1025", True),
        (np.zeros((32, 32, 3), np.uint8), "one image alone needs a leading axis", True),
        ([[[1]]], "NumPy array, got list", False),
        (None, "NumPy array, got NoneType", False),
    ],
)
def test_what_are_no_images_is_refused_with_the_reason(X, said, seen):
    assert is_images(X) is seen
    with pytest.raises(InvalidInput, match=said):
        as_images(X)

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from attnknn.data import load_named
from attnknn.data.idx import FASHION, FILES, read_fashion_mnist, read_idx, read_mnist
from attnknn.errors import InvalidInput

needs_files = pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="ATTNKNN_DATA is not set")


def idx(array):
    """The bytes of an IDX file, after its description: magic number, sides, values."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def lay(tmp_path):
    """Lays small files out as the originals are; ``changed`` replaces some of them."""
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 256, (rows, 28, 28), dtype=np.uint8) for rows in (10, 4)]
    labels = [np.arange(10, dtype=np.uint8), np.array([3, 1, 0, 9], np.uint8)]

    def to_files(**changed):
        contents = dict(zip(FILES, map(idx, (images[0], labels[0], images[1], labels[1])), strict=True))
        for folder in ("MNIST", "FashionMNIST"):
            (tmp_path / folder / "raw").mkdir(parents=True, exist_ok=True)
            for name, content in (contents | changed).items():
                (tmp_path / folder / "raw" / name).write_bytes(content)
        return tmp_path

    to_files.images, to_files.labels = np.concatenate(images), np.concatenate(labels)
    return to_files


def test_training_rows_come_first_and_digits_are_integers(lay):
    X, y = read_mnist(lay())
    np.testing.assert_array_equal(X, lay.images[..., None])
    np.testing.assert_array_equal(y, lay.labels)
    assert (X.dtype, y.dtype) == (np.uint8, np.int64)


def test_clothes_have_their_names(lay):
    X, y = read_fashion_mnist(lay())
    np.testing.assert_array_equal(X, lay.images[..., None])
    assert y.tolist() == [FASHION[label] for label in lay.labels]
    assert y[:2].tolist() == ["T-shirt/top", "Trouser"]


WHOLE = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "wrong header"),
        (WHOLE[:15], "wrong header"),
        (b"\x1f\x8b" + WHOLE[2:], "wrong header"),
        (WHOLE[:2] + b"\x0d" + WHOLE[3:], "wrong header"),  # floats
        (idx(np.arange(24, dtype=np.uint8)), "3 axes"),
        (WHOLE[:-1], "promises 40 bytes, it has 39"),
        (WHOLE + b"\0", "promises 40 bytes, it has 41"),
        (WHOLE[:4] + b"\xff" * 12, "cut short"),
    ],
)
def test_a_file_that_is_not_what_its_header_says_is_refused(tmp_path, content, said):
    file = tmp_path / "images"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=said) as caught:
        read_idx(file, 3)
    assert str(file) in str(caught.value)


def test_files_that_do_not_belong_together_are_refused(lay):
    with pytest.raises(InvalidInput, match=r"has 10 images, but .* has 9 labels"):
        read_mnist(lay(**{FILES[1]: idx(np.zeros(9, np.uint8))}))
    with pytest.raises(InvalidInput, match="holds the label 10"):
        read_mnist(lay(**{FILES[3]: idx(np.array([0, 1, 10, 2], np.uint8))}))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_idx(lay() / "MNIST", 3)


@pytest.mark.data
@needs_files
@pytest.mark.parametrize(("name", "labels"), [("mnist", range(10)), ("fashion-mnist", FASHION)])
def test_the_original_files_load_in_full(name, labels):
    home = Path(os.environ["ATTNKNN_DATA"]) / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name]
    if not home.is_dir():
        pytest.skip(f"the original files of {name} are not shipped: there is no {home.name} in ATTNKNN_DATA")
    data = load_named(name)
    assert (data.X.shape, data.X.dtype, data.image_shape) == ((70_000, 28, 28, 1), np.uint8, (28, 28))
    assert data.train_rows.tolist() == list(range(60_000))
    assert data.test_rows.tolist() == list(range(60_000, 70_000))
    assert set(data.y.tolist()) == set(labels)
    if name == "fashion-mnist":  # its description: every article is as frequent as the others
        assert set(np.unique(data.y[:60_000], return_counts=True)[1]) == {6_000}

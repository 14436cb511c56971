import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from attnknn.data import load_named
from attnknn.data.cifar import read_cifar10, read_cifar100, read_pickle
from attnknn.errors import InvalidInput

needs_files = pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="ATTNKNN_DATA is not set")

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"


def text(value):
    return b"T" + struct.pack("<i", len(value)) + value


def number(value):
    return b"J" + struct.pack("<i", value)


def pickled(entries):
    """A pickle as Python 2 wrote them: a dict of lists of numbers or names, and arrays of bytes."""
    return b"\x80\x02}(" + b"".join(text(key.encode()) + _value(value) for key, value in entries.items()) + b"u."


def _value(value):
    if isinstance(value, np.ndarray):
        shape = b"".join(map(number, value.shape)) + b"\x86"
        kind = (
            b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffK\0tb"
        )
        state = b"(K\x01" + shape + kind + b"\x89" + text(value.tobytes()) + b"tb"
        return RECONSTRUCT + b"cnumpy\nndarray\n" + b"K\0\x85" + text(b"b") + b"\x87R" + state
    if isinstance(value, bytes):
        return value
    return b"](" + b"".join(number(v) if isinstance(v, int) else text(v.encode()) for v in value) + b"e"


def rows(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Small files, laid out as the originals are."""
    ten, hundred = tmp_path / "cifar-10-batches-py", tmp_path / "cifar-100-python"
    for each in (ten, hundred):
        each.mkdir()
    for at, name in enumerate(BATCHES):
        (ten / name).write_bytes(pickled({"labels": [at, 9 - at], "data": rows(2, at)}))
    (ten / "batches.meta").write_bytes(pickled({"label_names": list("abcdefghij")}))
    for at, name in enumerate(("train", "test")):
        entries = {"coarse_labels": [0, 0], "fine_labels": [at, 2], "data": rows(2, at)}
        (hundred / name).write_bytes(pickled(entries))
    names = {"coarse_label_names": ["x"], "fine_label_names": ["apple", "bear", "cattle"]}
    (hundred / "meta").write_bytes(pickled(names))
    return tmp_path


def test_batches_follow_one_another_and_pixels_have_their_colors(folder):
    X, y = read_cifar10(folder)
    assert (X.shape, X.dtype, y.dtype.kind) == ((12, 32, 32, 3), np.uint8, "U")
    assert "".join(y) == "ajbichdgeffe"
    for at in range(6):
        planes = rows(2, at)[1].reshape(3, 32, 32)
        for color in range(3):
            np.testing.assert_array_equal(X[2 * at + 1, :, :, color], planes[color])


def test_cifar_100_has_its_fine_labels(folder):
    X, y = read_cifar100(folder)
    assert (X.shape, y.tolist()) == ((4, 32, 32, 3), ["apple", "cattle", "bear", "cattle"])


def test_the_small_files_are_pickles_to_python_too(folder):
    content = pickle.loads((folder / "cifar-10-batches-py" / "data_batch_1").read_bytes(), encoding="bytes")
    np.testing.assert_array_equal(content[b"data"], rows(2, 0))


class Payload:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_runs_nothing(tmp_path, protocol):
    mark, file = tmp_path / "ran", tmp_path / "batch"
    content = pickle.dumps({"data": Payload(mark)}, protocol)
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"batch is refused: ") as caught:
        read_pickle(file)
    assert str(file) in str(caught.value)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists(), "the payload is a real one"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x02cposix\nsystem\n" + text(b"true") + b"\x85R.", "asks for 'posix system'"),
        (b"\x80\x02cnumpy\nload\n.", "asks for 'numpy load'"),
        (b"\x80\x02(i__builtin__\neval\n.", "no INST instruction"),
        (b"\x80\x02h\x01.", "no BINGET instruction"),
        (b"\x80\x02R.", "lacks its arguments"),
        (b"\x80\x02}b.", "lacks its arguments"),
        (b"\x80\x02}}b.", "not a whole pickle"),
        (b"\x80\x02e.", "not a whole pickle"),
        (b"\x80\x02](}u.", "not a whole pickle"),
        (b"\x80\x02}(](K\x01eK\x01u.", "not a whole pickle"),
        (b"\x80\x02}(K\x01u.", "not a whole pickle"),
        (b".", "not a whole pickle"),
        (b"", "not a whole pickle"),
        (b"\xff", "not a whole pickle"),
    ],
)
def test_other_instructions_are_refused(tmp_path, content, said):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(InvalidInput, match=said):
        read_pickle(tmp_path / "batch")


def test_a_file_cut_short_anywhere_is_refused_by_name(tmp_path):
    whole = pickled({"labels": [1, 2], "data": rows(2, 0)})
    for end in [*range(120), *range(120, len(whole), 97), len(whole) - 1]:
        (tmp_path / "batch").write_bytes(whole[:end])
        with pytest.raises(InvalidInput, match="batch is not a whole pickle"):
            read_pickle(tmp_path / "batch")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"labels": [0, 1]}, "no entry 'data'"),
        ({"data": rows(2, 0)}, "no entry 'labels'"),
        ({"labels": [0], "data": rows(2, 0)}, "one number from 0 to 9 for each image"),
        ({"labels": [0, 10], "data": rows(2, 0)}, "one number from 0 to 9 for each image"),
        ({"labels": [0, -1], "data": rows(2, 0)}, "one number from 0 to 9 for each image"),
        ({"labels": ["a", "b"], "data": rows(2, 0)}, "one number from 0 to 9 for each image"),
        ({"labels": [0, 1], "data": rows(2, 0)[:, :3000]}, "with 3072 columns"),
        ({"labels": [0, 1], "data": rows(2, 0).reshape(4, 1536)}, "with 3072 columns"),
        ({"labels": [0, 1], "data": rows(2, 0).ravel()}, "with 3072 columns"),
        ({"labels": [0, 1], "data": [1, 2]}, "with 3072 columns"),
        ({"labels": [0, 1], "data": _value(rows(2, 0)).replace(b"u1", b"i1")}, "with 3072 columns"),
        ({"labels": [0, 1], "data": RECONSTRUCT}, "with 3072 columns"),
    ],
)
def test_a_batch_of_another_shape_is_refused_by_name(folder, entries, said):
    file = folder / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(pickled(entries))
    with pytest.raises(InvalidInput, match=said) as caught:
        read_cifar10(folder)
    assert str(file) in str(caught.value)


def test_names_of_classes_must_be_names(folder):
    file = folder / "cifar-100-python" / "meta"
    for wrong in ([1, 2], RECONSTRUCT):
        file.write_bytes(pickled({"fine_label_names": wrong}))
        with pytest.raises(InvalidInput, match=r"meta.*not a list of names"):
            read_cifar100(folder)
    file.write_bytes(b"\x80\x02].")
    with pytest.raises(InvalidInput, match="no entry 'fine_label_names'"):
        read_cifar100(folder)
    file.unlink()
    with pytest.raises(InvalidInput, match="meta cannot be read"):
        read_cifar100(folder)


@pytest.mark.data
@needs_files
@pytest.mark.parametrize(
    ("name", "folder", "batches", "meta", "key"),
    [
        ("cifar10", "cifar-10-batches-py", BATCHES, "batches.meta", b"label"),
        ("cifar100", "cifar-100-python", ["train", "test"], "meta", b"fine_label"),
    ],
)
def test_the_original_files_load_as_python_reads_them(name, folder, batches, meta, key):
    home = Path(os.environ["ATTNKNN_DATA"]) / folder
    if not home.is_dir():
        pytest.skip(f"the original files of {name} are not shipped: there is no {folder} in ATTNKNN_DATA")
    data = load_named(name)
    assert (data.X.shape, data.X.dtype, data.image_shape) == ((60_000, 32, 32, 3), np.uint8, (32, 32))
    assert data.train_rows.tolist() == list(range(50_000))
    names = pickle.loads((home / meta).read_bytes(), encoding="bytes")[key + b"_names"]
    start = 0
    for batch in batches:
        content = pickle.loads((home / batch).read_bytes(), encoding="bytes")
        end = start + len(content[b"data"])
        planes = content[b"data"].reshape(-1, 3, 32, 32)
        np.testing.assert_array_equal(data.X[start:end].transpose(0, 3, 1, 2), planes)
        assert data.y[start:end].tolist() == [names[code].decode() for code in content[key + b"s"]]
        start = end
    for part in (data.train_rows, data.test_rows):  # every class is as frequent as the others
        assert set(np.unique(data.y[part], return_counts=True)[1]) == {len(part) // len(names)}

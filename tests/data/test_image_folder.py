from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attnknn.data import list_images, load_images
from attnknn.errors import InvalidInput, MissingData


@pytest.fixture
def folder(tmp_path):
    """Lays files out below a root: images where the name ends like one, else text."""

    def lay(*names, size=(8, 8), mode="RGB"):
        for at, name in enumerate(names):
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"):
                Image.new(mode, size, at).save(path)
            else:
                path.write_text("no image")
        return tmp_path

    return lay


def test_finds_images_by_class_at_any_depth_in_one_order(folder):
    root = folder(
        "dog/b.PNG", "dog/a/z.webp", "dog/a.jpg", "cat/2.jpeg", "cat/10.Png", "b/x.png",
        "dog/notes.txt", "README", "cat/.hidden.png", ".git/x.png", "dog/.cache/y.png", "cat/a/Thumbs.db",
    )  # fmt: skip
    found = list_images(root)
    assert [path.relative_to(root).as_posix() for path in found.paths] == [
        "b/x.png", "cat/10.Png", "cat/2.jpeg", "dog/a/z.webp", "dog/a.jpg", "dog/b.PNG",
    ]  # fmt: skip
    assert found.labels.tolist() == ["b", "cat", "cat", "dog", "dog", "dog"]
    assert found.labels.dtype.kind == "U"
    assert (found.classes, found.ignored, len(found)) == (("b", "cat", "dog"), 3, 6)
    assert list_images(str(root)).paths == found.paths


def test_links_to_classes_are_followed_and_those_inside_cannot_go_in_circles(folder, tmp_path_factory):
    root = folder("cat/1.png")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    Image.new("L", (8, 8)).save(elsewhere / "2.png")
    (root / "dog").symlink_to(elsewhere, target_is_directory=True)
    (root / "cat" / "again").symlink_to(root / "cat", target_is_directory=True)
    assert list_images(root).labels.tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["cat/1.png", "loose.JPG"], r"loose\.JPG lies outside"),
        (["README"], "has no folders"),
        ([".cat/1.png"], "has no folders"),
        (["cat/1.png", "dog/notes.txt"], "dog has no images"),
        (["cat/1.png", "dog/.1.png"], "dog has no images"),
    ],
)
def test_another_layout_is_refused_and_the_right_one_shown(folder, names, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        list_images(folder(*names))
    assert f"one folder for each class, such as {folder() / 'cat' / '1.png'}" in str(caught.value)


def test_an_absent_root_and_a_file_are_named(tmp_path):
    with pytest.raises(MissingData, match=r"no such folder: .*gone"):
        list_images(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file cannot be listed"):
        list_images(tmp_path / "file")


def test_loads_what_was_listed_in_its_order_and_says_how_far_it_is(folder):
    root, said = folder("a/1.png", "a/2.png", "b/3.png", mode="L"), []
    images = load_images(list_images(root).paths, progress=said.append)
    assert (images.shape, images.dtype) == ((3, 8, 8, 3), np.uint8)
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert said == [1, 2, 3]


def test_channels_follow_the_files_on_demand(folder):
    gray = list(list_images(folder("a/1.png", "b/2.png", mode="L")).paths)
    assert load_images(gray, channels=None).shape == (2, 8, 8, 1)
    assert load_images(gray, channels=3).shape == (2, 8, 8, 3)
    mixed = list_images(folder("b/3.png")).paths
    assert load_images(mixed, channels=None).shape == (3, 8, 8, 3)
    assert load_images(mixed, channels=1).shape == (3, 8, 8, 1)


@pytest.mark.parametrize(
    ("mode", "gray"), [("1", True), ("L", True), ("LA", True), ("I;16", True), ("P", False), ("RGBA", False)]
)
def test_every_gray_kind_counts_as_gray(folder, mode, gray):
    paths = list_images(folder("a/1.png", mode=mode)).paths
    assert load_images(paths, channels=None).shape[3] == (1 if gray else 3)


def test_sizes_must_agree_or_be_given(folder):
    folder("a/1.png", size=(8, 9))
    paths = list_images(folder("b/2.png", size=(10, 20))).paths
    with pytest.raises(InvalidInput, match=r"1\.png has 8 x 9 pixels, .*2\.png has 10 x 20; give a size"):
        load_images(paths)
    assert load_images(paths, size=16).shape == (2, 16, 16, 3)
    with pytest.raises(InvalidInput, match="size must be"):
        load_images(paths, size=4)


def test_a_broken_or_absent_file_names_itself(folder):
    root = folder("a/1.png", "a/2.png", "a/3.png")
    paths = list_images(root).paths
    whole = paths[1].read_bytes()
    for channels in (3, None):
        paths[1].write_bytes(whole[:-30])
        with pytest.raises(InvalidInput, match=r"2\.png"):
            load_images(paths, channels=channels)
        paths[1].unlink()
        with pytest.raises(MissingData, match=r"2\.png"):
            load_images(paths, channels=channels)


def test_there_must_be_something_to_load():
    with pytest.raises(InvalidInput, match="no images to load"):
        load_images([])
    with pytest.raises(MissingData, match=r"gone\.png"):
        load_images([Path("gone.png")])

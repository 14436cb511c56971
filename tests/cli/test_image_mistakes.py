"""Options that make no sense for the data, broken and missing pictures: refused in one line, never ignored."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from gallery import write_digits, write_patch

from attnknn import AttnKNNClassifier
from attnknn.train import ImageOptions

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_digits(tmp_path_factory.mktemp("gallery"), 0, 1, count=4)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """A model of pictures that was hardly trained; tests only read it."""
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    training = ImageOptions(epochs=1, batch_size=8, embed_dim=4)
    model = AttnKNNClassifier(2, weights="softmax", training=training, random_state=0)
    out = tmp_path_factory.mktemp("models") / "tiny"
    model.fit(images, np.array(["a", "b"] * 12)).save(out)
    return out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--image-size", "32"], "--image-size is for images"),
        (["--backbone", "resnet18"], "--backbone is for images"),
        (["--pretrained", "w.pth"], "--pretrained is for images"),
        (["--frozen"], "--frozen is for images"),
        (["--augmentation", "photos"], "--augmentation is for images"),
        (["--compile"], "--compile is for images"),
        (["--mix", "cutmix"], "--mix is for images"),
        (["--relabel", "0"], "--relabel is for images"),
        (["--tta"], "--tta is for images"),
        (["--head-prior"], "--head-prior is for images"),
        (["--k-ensemble", "4,x"], "whole numbers between commas"),
        (["--k-ensemble", "4"], "at least two"),
        (["--k-ensemble", "4,8", "--adaptive-k", "entropy"], "choose"),
        (["--test", "."], "both be tables, or both images"),
    ],
)
def test_a_table_refuses_what_is_for_images(attnknn, tables, tmp_path, flags, said):
    args = ("fit", tables["train"], "--target", "income", "--out", tmp_path / "m")
    assert said in attnknn.refused(*args, *flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--target", "class"], "--target class"),
        (["--ids", "name"], "--ids is for tables"),
        (["--blocks", "0"], "--blocks is for tables"),
        (["--embedder", "periodic"], "--embedder periodic is for tables"),
        (["--image-size", "7"], "from 8 to 1024"),
        (["--image-size", "32x"], "32x48"),
        (["--image-size", "8x9x10"], "32x48"),
        (["--image-size", "²"], "32x48"),
        (["--backbone", "alexnet"], "efficientnet-lite0"),
        (["--backbone", "timm:"], "timm:<name>"),
        (["--pretrained", "gone.pth"], "no such file: gone.pth"),
        (["--frozen"], "--pretrained FILE"),
        (["--frozen", "--backbone", "efficientnet-lite0", "--epochs", "3"], "--epochs is of a backbone"),
        (["--frozen", "--backbone", "efficientnet-lite0", "--members", "2"], "--members is of a backbone"),
        (["--frozen", "--backbone", "efficientnet-lite0", "--relabel", "1"], "--relabel is of a backbone"),
        (["--batch-size", "1"], "at least 2"),
        (["--augmentation", "birds"], "photos"),
        (["--batch-size", "0"], "--batch-size"),
        (["--test", "iris"], "both be tables, or both images"),
        (["--test", "gone/"], "no such file"),
        (["--test", "cifar10", "--test-share", "0.2"], "--test-share"),
        (["--epochs", "1"], "too few to train on"),
    ],
)
def test_images_refuse_what_is_for_tables_and_what_cannot_be(attnknn, folder, tmp_path, flags, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in attnknn.refused("fit", folder, "--out", "m", *flags)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["empty", "flat", "one class", "empty class", "one image"])
def test_a_folder_that_cannot_be_learned_from_is_refused(attnknn, layout, tmp_path):
    root = tmp_path / "in"
    root.mkdir()
    if layout == "flat":
        write_digits(root, 0, count=3, flat=True)
    if layout == "one class":
        write_digits(root, 0)
    if layout == "empty class":
        write_digits(root, 0, count=3)
        (root / "none").mkdir()
    if layout == "one image":
        root = write_patch(root / "a.png")
    said = {
        "empty": "one folder for each class",
        "flat": "lies outside the folders of classes",
        "one class": "too few to train on",
        "empty class": "none has no images",
        "one image": "one image without a label",
    }
    assert said[layout] in attnknn.refused("fit", root, "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_broken_picture_is_named_and_nothing_is_answered(attnknn, folder, tiny_model, tmp_path):
    root = shutil.copytree(folder, tmp_path / "in")
    broken = root / "one" / "002.png"
    broken.write_bytes(broken.read_bytes()[:-40])
    model = tmp_path / "m"
    shutil.copytree(tiny_model, model)
    for args in (("fit", root, "--out", tmp_path / "n"), ("predict", model, root), ("evaluate", model, root),
                 ("bank", "add", model, root), ("predict", model, broken)):  # fmt: skip
        assert "002.png" in attnknn.refused(*args)
    found = attnknn.json("explain", model, root, "--row", 0)  # another picture
    assert found["file"] == "one/000.png"


def test_a_model_refuses_data_of_the_other_kind(attnknn, tiny_model, trained, tables, folder, iris):
    for command in ("predict", "evaluate"):
        assert "fitted on images of 8 x 8" in attnknn.refused(command, tiny_model, tables["test"])
        assert "fitted on images of 8 x 8" in attnknn.refused(command, tiny_model, "iris")
        assert "fitted on a table" in attnknn.refused(command, trained, folder)
        assert "fitted on a table" in attnknn.refused(command, iris, "cifar10")
    assert "fitted on a table" in attnknn.refused("explain", trained, folder / "one" / "000.png")
    assert "fitted on a table" in attnknn.refused("bank", "add", trained, folder)


def test_questions_that_have_no_answer_are_refused(attnknn, tiny_model, folder, tmp_path):
    assert "--row" in attnknn.refused("explain", tiny_model, folder)
    assert "rows 0 to 7" in attnknn.refused("explain", tiny_model, folder, "--row", 8)
    assert "rows 0 to 0" in attnknn.refused("explain", tiny_model, folder / "one" / "000.png", "--row", 1)
    (tmp_path / "empty").mkdir()
    assert "has no images" in attnknn.refused("predict", tiny_model, tmp_path / "empty")
    assert "lies outside" in attnknn.refused("evaluate", tiny_model, folder / "one")
    assert "no such file" in attnknn.refused("predict", tiny_model, tmp_path / "gone.png")


def test_pictures_are_never_overwritten(attnknn, tiny_model, folder):
    victim = folder / "one" / "000.png"
    before = victim.read_bytes()
    assert "images that are read" in attnknn.refused("predict", tiny_model, folder, "--out", victim)
    assert "is read" in attnknn.refused("explain", tiny_model, victim, "--html", victim)
    assert victim.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--target", "y"], "--target y"),
        (["--ids", "y"], "--ids y"),
        (["--new-class", " "], "names no label"),
        (["--new-class", "a"], "knows that class already"),
        ([], "--new-class one"),
    ],
)
def test_bank_add_refuses_what_images_cannot_have(attnknn, tiny_model, folder, flags, said):
    assert said in attnknn.refused("bank", "add", tiny_model, folder, *flags)


def test_loose_images_beside_folders_are_not_all_taught_as_one_class(attnknn, tiny_model, tmp_path):
    root = write_digits(tmp_path / "in", 0, count=2)
    write_patch(root / "loose.png")
    assert "beside the folder 'zero'" in attnknn.refused("bank", "add", tiny_model, root, "--new-class", "c")
    assert "--new-class NAME" in attnknn.refused("bank", "add", tiny_model, root)


def test_policies_are_those_of_the_package():
    from attnknn.cli.choices import Policy
    from attnknn.train.policies import POLICIES

    assert [each.value for each in Policy] == list(POLICIES)


@pytest.mark.parametrize("flag", ["--out", "--checkpoint"])
def test_nothing_is_written_among_the_pictures_that_are_read(attnknn, folder, tmp_path, flag):
    inside = folder / "zero" / "new"
    places = {"--out": tmp_path / "m", flag: inside}
    said = attnknn.refused("fit", folder, *(part for pair in places.items() for part in pair))
    assert "lies inside" in said
    assert not inside.exists()
    assert "lies inside" in attnknn.refused("study", "main", "--data", folder, "--out", folder)


def test_what_cannot_be_saved_is_not_trained(attnknn, folder, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be made" in attnknn.refused("fit", folder, "--out", tmp_path / "file" / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

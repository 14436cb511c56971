"""The study of images: one training for all our methods, one for the CNN, and what their cells tell."""

from dataclasses import replace
from shutil import copytree, rmtree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from attnknn import AttnKNNClassifier, CNNClassifier, ImageOptions
from attnknn.errors import InvalidInput
from attnknn.estimator import cnn as cnn_module
from attnknn.estimator import image_benches
from attnknn.study.audit import audit
from attnknn.study.cells import Cells
from attnknn.study.engine import run_study
from attnknn.study.job import Job
from attnknn.study.plots import plots_of
from attnknn.study.recipe import Noise
from attnknn.study.splits import parts, recipe_for, task_of

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"epochs": 2, "augmentation": "digits", "embed_dim": 16, "batch_size": 16, "validate_every": 2}
ASKED = ("cnn", "cnn+tta", "attention", "attention+tta+k-ensemble", "attention+head-prior")


def pictures(count=90):
    digits = load_digits()
    kept = np.flatnonzero(digits.target < 3)[:count]
    return np.clip(digits.images[kept] * 16, 0, 255).astype(np.uint8)[..., None], digits.target[kept]


@pytest.fixture(scope="module")
def recipe():
    found = recipe_for(*pictures(), data="digits/", target="folder", named=False, images=OPTIONS)
    return replace(found, draws=20, ours=replace(found.ours, k_ensemble=(2, 8)))


@pytest.fixture(scope="module")
def task(recipe):
    return task_of(*pictures(), recipe)


@pytest.fixture(scope="module")
def ran(recipe, task, tmp_path_factory):
    """A study that ran, its folder, and how often images were trained on."""
    out, trainings = tmp_path_factory.mktemp("study"), []
    with pytest.MonkeyPatch.context() as patch:
        for module in (cnn_module, image_benches):
            real = module.train_images
            patch.setattr(module, "train_images", lambda *a, r=real, **k: (trainings.append(1), r(*a, **k))[1])
        outcome = run_study(
            recipe, task, methods=ASKED, seeds=[0], out=out, device="cpu", commit="x", keep=["attention"]
        )
    return outcome, out, trainings


def test_every_method_has_its_cell_and_two_trainings_serve_them_all(ran):
    outcome, _, trainings = ran
    assert outcome.failed == {}
    assert set(outcome.report["methods"]) == set(ASKED)
    assert len(trainings) == 2
    assert outcome.report["config"]["ours"]["images"]["epochs"] == 2


def test_the_cnn_differs_from_the_attention_in_one_option(ran):
    for name in ("cnn", "cnn+tta"):
        (told,) = ran[0].report["settings"][name]
        assert told["differs"] == {"nca": {"attention": 1.0, "cnn": 0.0}}
    assert set(ran[0].report["differences"]["attention+head-prior"]) == {"attention", "cnn", "cnn+tta"}


def test_both_trainings_are_told_by_one_cell_each_and_drawn(ran, recipe):
    history = ran[0].report["history"]
    assert set(history) == {"cnn", "attention"}
    assert history["cnn"][0]["epoch"] == history["attention"][0]["epoch"] == [1, 2]
    assert {"loss_auxiliary", "loss_nca", "validation_entropy", "validation_scale"} < set(history["attention"][0])
    figures = plots_of(ran[0].report, Cells.open(ran[1], recipe), ())
    assert {line.name for line in figures["training-loss-attention"].series} == {"total", "auxiliary", "nca"}
    for name in ("entropy", "scale"):
        assert [line.name for line in figures[f"training-{name}"].series] == ["attention, seed 0"]


def test_a_second_run_trains_nothing(ran, recipe, task, monkeypatch):
    monkeypatch.setattr(image_benches, "train_images", None)
    monkeypatch.setattr(cnn_module, "train_images", None)
    again = run_study(recipe, task, methods=ASKED, seeds=[0], out=ran[1], device="cpu", commit="x")
    assert again.report["methods"] == ran[0].report["methods"]


def test_the_kept_model_gives_what_the_cell_holds(ran, recipe, task):
    model = AttnKNNClassifier.load(ran[1] / "models" / "attention-0", device="cpu")
    kept = Cells.open(ran[1], recipe).predictions("attention", 0)
    np.testing.assert_allclose(model.predict_proba(task.take(kept["rows"])), kept["probabilities"], atol=1e-5)


def test_wrong_labels_that_were_found_are_counted(recipe, task):
    noisy = recipe_for(
        *pictures(), data="digits/", target="folder", named=False, images=OPTIONS, noise=Noise(0.4, "symmetric")
    )
    assert noisy.ours.images["relabel"] == 3
    job = Job(noisy, task, parts(task, noisy, 0), 0)
    rows = job.parts.train
    wrong = np.flatnonzero(job.parts.labels[rows] != task.codes[rows])
    right = np.flatnonzero(job.parts.labels[rows] == task.codes[rows])
    mended = [
        SimpleNamespace(id=int(at), label=task.classes[task.codes[rows[at]]]) for at in wrong[: len(wrong) // 2]
    ]
    spoiled = [SimpleNamespace(id=int(at), label=task.classes[(task.codes[rows[at]] + 1) % 3]) for at in right[:5]]
    found = audit(SimpleNamespace(suspects_=(*mended, *spoiled)), job)["audit"]
    assert found["recall"] == pytest.approx(len(mended) / len(wrong))
    assert found["precision"] == pytest.approx(len(mended) / (len(mended) + 5))
    assert found["labels_right_before"] == pytest.approx(0.6, abs=0.01)
    assert found["labels_right_after"] == pytest.approx((len(right) - 5 + len(mended)) / len(rows))
    assert audit(SimpleNamespace(suspects_=()), replace(job, recipe=recipe)) == {}


def test_images_and_tables_do_not_take_each_others_options():
    with pytest.raises(InvalidInput, match="does not read epochs"):
        recipe_for(np.ones((30, 2)), np.arange(30) % 2, data="f", target="y", named=False, images={"epochs": 2})


@pytest.fixture(scope="module")
def cnn():
    images, labels = pictures()
    return CNNClassifier(training=ImageOptions(**OPTIONS), device="cpu", random_state=0).fit(images, labels)


def test_a_cnn_answers_by_its_head_alone(cnn):
    images, labels = pictures()
    chances = cnn.predict_proba(images[:7])
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert cnn.options_ == replace(ImageOptions(**OPTIONS), nca=0.0)
    assert cnn.score(images, labels) == np.mean(cnn.predict(images) == labels)
    assert clone(cnn).get_params()["training"] == ImageOptions(**OPTIONS)


def test_views_are_averaged_before_calibration(cnn):
    images = pictures()[0][:5]
    several = cnn.with_views()
    assert several.network_ is cnn.network_
    assert several.calibrator_ != cnn.calibrator_
    shown = cnn._policy.views(torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
    each = [cnn.network_.head_logits(cnn.network_.trunk_features(view)).softmax(dim=1) for view in shown]
    mean = sum(each).detach().numpy() / len(shown)
    np.testing.assert_allclose(several.head_proba(images), mean, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training": {"epochs": 1}}, "training must be"),
        ({"validation_fraction": 0}, "validation_fraction"),
        ({"training": ImageOptions(frozen=True, backbone="efficientnet-lite0")}, "frozen"),
        ({"calibration": "density"}, "calibration"),
    ],
)
def test_what_a_cnn_cannot_do_is_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        CNNClassifier(**arguments).fit(*pictures(40))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_cnn_says_that_images_are_too_few(count):
    with pytest.raises(InvalidInput, match="too few to train on"):
        CNNClassifier(training=ImageOptions(**OPTIONS)).fit(*(each[:count] for each in pictures()))


def test_a_cnn_answers_nothing_about_no_images_and_nothing_before_fit(cnn):
    assert cnn.predict(pictures()[0][:0]).shape == (0,)
    with pytest.raises(NotFittedError):
        CNNClassifier().predict(pictures()[0])


def test_a_model_that_cannot_be_kept_or_is_lacking_is_told_or_made(ran, recipe, task, tmp_path):
    out = tmp_path / "study"
    copytree(ran[1], out)
    rmtree(out / "models")
    asked = {"methods": ["cnn", "attention"], "seeds": [0], "out": out, "device": "cpu", "commit": "x"}
    with pytest.raises(InvalidInput, match="a model of cnn cannot be saved"):
        run_study(recipe, task, **asked, keep=["cnn"])
    assert run_study(recipe, task, **asked, keep=["attention"]).failed == {}
    assert (out / "models" / "attention-0" / "manifest.json").exists()


def test_another_recipe_is_told_by_what_differs(ran, recipe):
    other = replace(recipe, ours=replace(recipe.ours, images={**recipe.ours.images, "epochs": 7}))
    with pytest.raises(InvalidInput, match=r"differ in ours\.images\.epochs \(2 there, 7 here\)$"):
        Cells.open(ran[1], other)

"""The classifier on images: one face for tables and pictures."""

import copy
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attnknn import AttnKNNClassifier, InvalidInput, MemoryBank
from attnknn.data.named import load_named
from attnknn.train import ImageOptions, TrainingOptions
from attnknn.train.relabel import Beliefs

QUICK = ImageOptions(
    epochs=5, batch_size=20, embed_dim=16, validate_every=5, augmentation="digits", lr=0.4, ema=None
)


pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(classes):
    bunch = load_digits(n_class=classes)
    order = np.random.default_rng(0).permutation(len(bunch.images))
    return np.clip(bunch.images * 16, 0, 255).astype(np.uint8)[order], bunch.target[order]


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits of 8 x 8 pixels as bytes: three classes, some to learn from, some to ask about."""
    images, labels = pictures(3)
    return images[:160], labels[:160], images[160:360], labels[160:360]


@pytest.fixture(scope="module")
def model(digits):
    """The one that is trained: tests only read it."""
    return AttnKNNClassifier(random_state=0, training=QUICK).fit(*digits[:2])


def test_digits_are_learned_from_pixels(model, digits):
    _, _, asked, labels = digits
    chances = model.predict_proba(asked)
    assert (model.predict(asked) == labels).mean() > 0.85
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert model.score(asked, labels) > 0.85
    assert model.n_features_in_ == 64
    assert len(model.bank_) == 160  # validation images joined


def test_one_channel_may_be_named_or_not(model, digits):
    asked = digits[2][:20]
    np.testing.assert_array_equal(model.predict_proba(asked), model.predict_proba(asked[..., None]))


def test_a_saved_model_answers_the_same(model, digits, tmp_path):
    asked = digits[2]
    model.save(tmp_path / "model")
    again = AttnKNNClassifier.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(asked), model.predict_proba(asked), atol=1e-6)
    assert again.training == QUICK
    assert isinstance(again.bank_, MemoryBank)
    np.testing.assert_array_equal(again.bank_.features([0]), model.bank_.features([0]))
    with pytest.raises(InvalidInput, match="8 x 8 pixels"):
        again.predict(np.zeros((2, 9, 9), np.uint8))


def test_the_bank_keeps_the_pictures_as_bytes(model, digits):
    kept = model.bank_.features(model.bank_.rows([5]))
    assert kept.dtype == np.uint8
    np.testing.assert_array_equal(kept.reshape(8, 8), digits[0][5])


def test_an_explanation_names_pictures_and_adds_up(model, digits):
    asked = digits[2][:5]
    chances = model.predict_proba(asked)
    for each, expected in zip(model.explain(asked), chances, strict=True):
        assert sum(reason.weight for reason in each.neighbors) == pytest.approx(1)
        assert each.neighbors[0].row == {"image": "8 x 8"}
        vote = np.array([each.evidence[c] + each.prior_mass * each.prior[c] for c in model.classes_])
        powered = (vote / vote.sum()) ** (1 / each.temperature)
        np.testing.assert_allclose(powered / powered.sum(), expected, atol=1e-6)


def test_a_new_class_is_taught_without_retraining(model, digits):
    taught, (_, _, asked, wanted) = copy.deepcopy(model), digits
    images, labels = pictures(4)
    new = images[labels == 3]
    before = taught.predict(asked)
    taught.add(new[:20], [3] * 20, classes=[3])
    assert (taught.predict(new[20:]) == 3).mean() > 0.2  # five epochs teach little; without teaching it is 0
    assert (taught.predict(asked) == wanted).mean() > (before == wanted).mean() - 0.1
    taught.remove(taught.bank_.ids[:1])
    assert len(taught.bank_) == 160 + 19


REFUSED = {
    "options of tables": ({"training": TrainingOptions(epochs=1)}, "ImageOptions"),
    "another embedder": ({"embedder": "standardize", "weights": "softmax"}, "cannot read images"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_images_refuse_what_is_for_tables(case, digits):
    given, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=message):
        AttnKNNClassifier(**given).fit(digits[0][:40], digits[1][:40])


def test_tables_refuse_what_is_for_images(digits):
    flat = digits[0].reshape(160, -1).astype(float)
    with pytest.raises(InvalidInput, match="cannot read a table"):
        AttnKNNClassifier(embedder="image").fit(flat, digits[1])
    with pytest.raises(InvalidInput, match="ImageOptions"):
        AttnKNNClassifier(embedder="periodic", training=QUICK).fit(flat, digits[1])
    with pytest.raises(InvalidInput, match="ImageOptions"):
        AttnKNNClassifier(training=QUICK).fit(flat, digits[1])


def test_rows_and_images_are_not_mixed_up_after_fit(model, digits):
    with pytest.raises(InvalidInput, match="fitted on images"):
        model.predict(digits[2].reshape(len(digits[2]), -1).astype(float))
    table = AttnKNNClassifier(weights="uniform").fit(digits[0].reshape(160, -1).astype(float), digits[1])
    with pytest.raises(InvalidInput, match="got images"):
        table.predict(digits[2])


WRONG = {
    "channels first": (np.zeros((4, 3, 16, 16), np.uint8), "channels come last"),
    "too small": (np.zeros((4, 4, 4), np.uint8), "8 to 1024"),
    "no images": (np.zeros((0, 8, 8), np.uint8), "minimum of 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_are_no_images_are_refused(case):
    images, message = WRONG[case]
    with pytest.raises((InvalidInput, ValueError), match=message):
        AttnKNNClassifier().fit(images, np.arange(len(images)) % 2)


def test_too_few_images_are_refused_in_words(digits):
    with pytest.raises(InvalidInput, match="too few to train on"):
        AttnKNNClassifier().fit(digits[0][:6], digits[1][:6] % 2)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("ATTNKNN_DATA"), reason="ATTNKNN_DATA is not set")
def test_mnist_is_learned_from_a_few_pictures():
    if not (Path(os.environ["ATTNKNN_DATA"]) / "MNIST").is_dir():
        pytest.skip("the original files of mnist are not shipped: there is no MNIST in ATTNKNN_DATA")
    found = load_named("mnist")
    smaller, kept = found.X[:, ::2, ::2], np.flatnonzero(found.y < 4)  # four classes, a quarter of the pixels
    learn, asked = np.intersect1d(kept, found.train_rows)[:120], np.intersect1d(kept, found.test_rows)[:150]
    options = ImageOptions(epochs=4, augmentation="digits", embed_dim=32, batch_size=20, validate_every=4)
    model = AttnKNNClassifier(training=options, random_state=0, device="cpu").fit(smaller[learn], found.y[learn])
    assert model.score(smaller[asked], found.y[asked]) > 0.7


def test_members_agree_on_labels_that_the_first_revised(digits, tmp_path):
    images, labels = digits[:2]
    options, asked = replace(QUICK, relabel=1, epochs=2, validate_every=2), []
    wrong = Beliefs.wrong

    def noted(beliefs, given, weights):
        asked.append((given, wrong(beliefs, given, weights)))
        return asked[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Beliefs, "keeps_classes", lambda self, given: True)
        patch.setattr("attnknn.train.image_settings.LEAST_ROUND", 1)
        patch.setattr(Beliefs, "wrong", noted)
        model = AttnKNNClassifier(4, n_estimators=2, training=options, random_state=0, device="cpu").fit(
            images[:80], labels[:80]
        )
    first, second = (each.bank for each in model.voter_.members)
    assert first.labels(first.live).tolist() == second.labels(second.live).tolist()
    now = model.classes_[first.labels(first.live)]
    changed = {each.id: each for each in model.suspects_}
    assert {at for at in range(80) if now[at] != labels[at]} == set(changed)
    assert all(changed[at].label == now[at] and changed[at].given == labels[at] for at in changed)
    before = model._benches[0].hearings[0].judges.labels
    model.add(images[80:82], [-1, -1], classes=[-1])  # first of all: the others move
    for judges in (bench.hearings[0].judges for bench in model._benches):
        assert judges.labels.tolist() == (before + 1).tolist()
        assert model.classes_[judges.given.labels].tolist() == labels[judges.rows].tolist()
        assert [judges.given.wrong] == [share for _, share in asked]
    assert sorted(asked[0][0]) == sorted(judges.given.labels - 1)
    model.save(tmp_path / "model")
    assert AttnKNNClassifier.load(tmp_path / "model", device="cpu").suspects_ == model.suspects_


def test_neighbors_need_vectors_that_were_trained_for_them(digits):
    with pytest.raises(InvalidInput, match="CNNClassifier"):
        AttnKNNClassifier(training=replace(QUICK, nca=0.0), device="cpu").fit(*digits[:2])


def test_ids_that_repeat_are_refused_before_the_training(digits, monkeypatch):
    monkeypatch.setattr("attnknn.estimator.image_benches.train_images", None)
    with pytest.raises(InvalidInput, match="'a' was given twice"):
        AttnKNNClassifier(training=QUICK, device="cpu").fit(*digits[:2], ids=["a"] * len(digits[0]))

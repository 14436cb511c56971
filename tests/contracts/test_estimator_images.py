"""The classifier on images: one face for tables and pictures."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attnknn import AttnKNNClassifier, InvalidInput, MemoryBank
from attnknn.train import ImageOptions, TrainingOptions

QUICK = ImageOptions(
    epochs=5, batch_size=20, embed_dim=16, validate_every=5, augmentation="digits", lr=0.4, ema=None
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits of 8 x 8 pixels as bytes: three classes, some to learn from, some to ask about."""
    bunch = load_digits(n_class=3)
    images = np.clip(bunch.images * 16, 0, 255).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order[:160]], bunch.target[order[:160]], images[order[160:360]], bunch.target[order[160:360]]


@pytest.fixture(scope="module")
def model(digits):
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


def test_a_new_class_is_taught_without_retraining(digits):
    images, labels, asked, wanted = digits
    old = labels < 2
    taught = AttnKNNClassifier(random_state=0, training=QUICK).fit(images[old], labels[old])
    before = taught.predict(asked[wanted < 2])
    few = np.flatnonzero(labels == 2)[:20]
    taught.add(images[few], labels[few], classes=[2])
    answers = taught.predict(asked)
    assert (answers[wanted == 2] == 2).mean() > 0.2  # five epochs teach little; without teaching it is 0
    assert (answers[wanted < 2] == wanted[wanted < 2]).mean() > (before == wanted[wanted < 2]).mean() - 0.1
    taught.remove(taught.bank_.ids[:1])
    assert len(taught.bank_) == old.sum() + 19


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

"""Prediction options on images: views, the head's prior, and both with several k. One model serves all tests."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits

from attnknn import AttentionOptions, AttnKNNClassifier, CorruptModel, InvalidInput, PredictionOptions
from attnknn.embed import embed
from attnknn.embed.images import embed_views
from attnknn.estimator import saved
from attnknn.predict import Lens
from attnknn.train import ImageOptions
from attnknn.train.policies import Augmentation, policy

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ImageOptions(
    epochs=2, batch_size=16, embed_dim=16, validate_every=2, augmentation="digits", lr=0.4, ema=None
)
FLIP = Augmentation(flip=True)


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits of 8 x 8 pixels as bytes: three classes, some to learn from, some to ask about."""
    bunch = load_digits(n_class=3)
    images = np.clip(bunch.images * 16, 0, 255).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    return images[order[:140]], bunch.target[order[:140]], images[order[140:170]], bunch.target[order[140:170]]


FIRST = PredictionOptions(views="vectors", k_ensemble=(2, 10))


@pytest.fixture(scope="module")
def first(digits):
    """The one that is trained."""
    settings = {"training": QUICK, "validation_fraction": 0.2, "random_state": 0}
    return AttnKNNClassifier(8, weights="softmax", prediction=FIRST, **settings).fit(*digits[:2])


@pytest.fixture(scope="module")
def model(first):
    return first.with_weights("softmax")


def served(model, options=None, *, weights="softmax", attention=None, **settings):
    """The same vectors, other options; another augmentation only changes the views."""
    before = {name: getattr(model, name) for name in settings}
    model.set_params(**settings)
    try:
        return model.with_weights(weights, attention, options)
    finally:
        model.set_params(**before)


def evidence(model, images):
    features = model.embedder_.transform(images[..., None])
    return np.concatenate([poll.evidence.numpy() for poll in model.voter_.polls(features)])


VIEWS = ["probabilities", "vectors"]


@pytest.mark.parametrize("views", VIEWS)
def test_views_of_a_policy_that_changes_nothing_are_the_images(model, digits, views):
    still = replace(QUICK, augmentation="none")
    other = served(model, PredictionOptions(views=views), training=still, calibration=None)
    plain = served(model, calibration=None)
    np.testing.assert_array_equal(other.predict_proba(digits[2]), plain.predict_proba(digits[2]))


@pytest.mark.parametrize("views", VIEWS)
def test_a_flipped_image_gets_the_same_answer_where_the_policy_flips(model, digits, views):
    other = served(model, PredictionOptions(views=views), training=replace(QUICK, augmentation=FLIP))
    asked = digits[2]
    chances, mirrored = other.predict_proba(asked), other.predict_proba(asked[:, :, ::-1])
    np.testing.assert_allclose(mirrored, chances, atol=1e-4)
    assert np.abs(model.predict_proba(asked[:, :, ::-1]) - model.predict_proba(asked)).max() > 0.05


def test_probabilities_are_the_mean_over_the_views(model, digits):
    other, asked = served(model, PredictionOptions(views="probabilities")), digits[2][:10]
    views = policy("digits", 8).views(torch.from_numpy(asked[:, None] / np.float32(255)))
    assert len(views) == 5
    member = model.voter_.members[0]
    each = []
    for view in views:
        with torch.inference_mode():
            vectors = member.network.eval().body(view).numpy()
        near = member.bank.search(vectors, 8)
        weights = member.weigher(near, member.bank, vectors).numpy()
        each.append(np.stack([np.bincount(*row, minlength=3) for row in zip(near.labels, weights, strict=True)]))
    np.testing.assert_allclose(evidence(other, asked), np.mean(each, axis=0), atol=1e-5)


def test_the_mean_of_the_vectors_has_length_1(model, digits):
    network, asked = model.voter_.members[0].network, digits[2][:10, ..., None]
    lens = Lens("vectors", policy("digits", 8))
    (mean,) = lens(network, asked).views
    each, head = embed_views(network, asked, policy("digits", 8).views)
    assert head is None
    expected = np.sum(each, axis=0)
    np.testing.assert_allclose(np.linalg.norm(mean, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(mean, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_array_equal(each[0], embed(network, asked))


def test_batches_do_not_matter_and_no_images_give_no_vectors(model, digits):
    network, asked = model.voter_.members[0].network, digits[2][:10, ..., None]
    whole, said = embed_views(network, asked, policy("digits", 8).views, head=True)
    parts, told = embed_views(network, asked, policy("digits", 8).views, head=True, batch=7)
    np.testing.assert_allclose(np.stack(parts), np.stack(whole), atol=1e-5)
    np.testing.assert_allclose(told, said, atol=1e-5)
    (none,), nothing = embed_views(network, asked[:0], policy("digits", 8).views, head=True)
    assert none.shape == (0, 16)
    assert nothing.shape == (0, 3)
    rough, _ = embed_views(network, asked, precision="bfloat16")
    assert (rough[0] * embed(network, asked)).sum(axis=1).min() > 0.98


def test_the_bank_keeps_plain_vectors_and_learns_plain_ones(model, digits):
    other, asked = served(model, PredictionOptions(views="vectors")), digits[2][:3]
    np.testing.assert_array_equal(other.bank_.vectors(other.bank_.live), model.bank_.vectors(model.bank_.live))
    names = other.add(asked, digits[3][:3])
    plain = embed(model.voter_.members[0].network, asked[..., None])
    np.testing.assert_allclose(other.bank_.vectors(other.bank_.rows(names)), plain, atol=1e-6)


def test_the_head_changes_the_prior_and_nothing_else(model, digits):
    other, asked = served(model, PredictionOptions(prior="head")), digits[2]
    features = asked[..., None]
    (poll,) = other.voter_.polls(features)
    np.testing.assert_array_equal(poll.evidence.numpy(), evidence(model, asked))
    network = model.voter_.members[0].network
    with torch.inference_mode():
        logits = network.head_logits(network.trunk_features(network.front(torch.from_numpy(features))))
    prior = other.voter_.prior_of(poll)
    np.testing.assert_allclose(prior, logits.double().softmax(dim=1).numpy(), atol=1e-6)
    np.testing.assert_array_equal(model.voter_.prior_of(next(model.voter_.polls(features))), model.voter_.prior)
    votes = poll.evidence.numpy() + other.voter_.mass * prior
    expected = other.voter_.calibrator.transform(votes / votes.sum(axis=1, keepdims=True), poll.density)
    np.testing.assert_allclose(other.predict_proba(asked), expected, atol=1e-9)
    told = other.explain(asked[:2])
    np.testing.assert_allclose([list(each.prior.values()) for each in told], prior[:2], atol=1e-9)


def test_a_class_that_came_after_the_head_keeps_its_frequency(model, digits):
    other = served(model, PredictionOptions(prior="head"))
    other.add(digits[2][:10], [-1] * 10, classes=[-1])  # it sorts first: the others move up
    (poll,) = other.voter_.polls(digits[2][:5, ..., None])
    prior = other.voter_.prior_of(poll)
    np.testing.assert_allclose(prior[:, 0], 10 / 150)
    np.testing.assert_allclose(prior[:, 1:], poll.head * 140 / 150, atol=1e-9)
    assert other.explain(digits[2][:1])[0].neighbors[0].label == -1
    later = other.with_weights("softmax", None, PredictionOptions(prior="head"))
    np.testing.assert_allclose(later.voter_.prior_of(poll), prior)


ALL = {
    "views of probabilities": PredictionOptions(views="probabilities"),
    "views of vectors": PredictionOptions(views="vectors"),
    "head": PredictionOptions(prior="head"),
    "everything": PredictionOptions(views="probabilities", k_ensemble=(2, 8, 20), prior="head"),
    "adaptive": PredictionOptions(views="probabilities", adaptive_k="entropy"),
    "certified": PredictionOptions(views="vectors", adaptive_k="certificate", tiers=(4, 100)),
}


@pytest.mark.parametrize(
    ("name", "calibration"),
    [
        *((name, "density") for name in ALL),
        ("everything", "temperature"),
        ("certified", None),
        ("head", None),
    ],
)
def test_options_compose_with_calibration_abstention_explanations_and_files(
    model, digits, name, calibration, tmp_path
):
    if ALL[name].prior == "head" and calibration is None:
        with pytest.raises(InvalidInput, match="calibration=None"):
            served(model, ALL[name], calibration=calibration)
        return
    other, asked, labels = served(model, ALL[name], calibration=calibration), digits[2][:16], digits[3][:16]
    chances = other.predict_proba(asked)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert (chances.argmax(axis=1) == labels).mean() > 0.7
    bar = float(np.median(chances[:4].max(axis=1)))
    answers = other.predict(asked[:4], abstain_below=bar, abstain_label=-1)
    told = abs(chances[:4].max(axis=1) - bar) > 1e-6  # with fewer rows asked at once the last digits may differ
    np.testing.assert_array_equal((answers < 0)[told], (chances[:4].max(axis=1) < bar)[told])
    for each, expected in zip(other.explain(asked[:2]), chances, strict=False):
        assert sum(reason.weight for reason in each.neighbors) == pytest.approx(1)
        vote = np.array([each.evidence[c] + each.prior_mass * each.prior[c] for c in other.classes_])
        powered = (vote / vote.sum()) ** (1 / each.temperature)
        np.testing.assert_allclose(powered / powered.sum(), expected, atol=1e-4)
    if calibration != "density" or name in ("head", "views of probabilities"):
        return  # a folder of a network takes its time, and everything has these two
    other.save(tmp_path / "model")
    again = AttnKNNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(asked), chances)
    assert again.voter_.lens == other.voter_.lens
    assert again.prediction == ALL[name]


def test_calibration_is_fitted_on_answers_made_alike(model, digits):
    """The judges of the served model are asked once more, in the way that queries are."""
    other = served(model, PredictionOptions(views="probabilities", prior="head"), calibration="temperature")
    (hearing,) = other._benches[0].hearings
    voter = other.voter_
    votes = []
    for at, row in enumerate(hearing.judges.rows):
        bank = hearing.bank.copy()
        bank.remove([bank.ids[row]])
        judging = replace(voter, members=(replace(voter.members[0], bank=bank),))
        (poll,) = judging.polls(hearing.judges.features[[at]])
        votes.append(poll.evidence.numpy() + voter.mass * judging.prior_of(poll))
    votes = np.concatenate(votes)
    votes /= votes.sum(axis=1, keepdims=True)
    labels = hearing.judges.labels

    def nll(temperature):
        logs = np.log(votes) / temperature
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        surest = votes.max(axis=1).argmax()  # the fit adds one surprise
        wrong = np.argsort(-votes[surest])[1]
        return -(logs[np.arange(len(labels)), labels].sum() + logs[surest, wrong])

    chosen = voter.calibrator.value
    assert all(nll(chosen) <= nll(factor * chosen) + 1e-6 for factor in (0.5, 0.9, 1.1, 2.0))


def test_a_learned_attention_is_not_trained_again_for_other_options(model, digits):
    attention = AttentionOptions(always=True, heads=2)
    learned = served(model, weights="attention", attention=attention)
    other = learned.with_weights(
        "attention", attention, PredictionOptions(views="probabilities", k_ensemble=(3, 12))
    )
    assert other.voter_.weighting.attention is learned.voter_.weighting.attention
    assert other.score(*digits[2:]) > 0.7
    assert learned.voter_.k == 8
    assert other.voter_.k == 12


def test_the_constructor_means_the_same_as_other_options_later(first, model, digits):
    assert model.prediction is None
    later = model.with_weights("softmax", None, FIRST)
    np.testing.assert_array_equal(later.predict_proba(digits[2]), first.predict_proba(digits[2]))
    assert clone(later).prediction == FIRST


REFUSED = {
    "frozen=True has none": {"training": replace(QUICK, frozen=True, epochs=None)},
    "auxiliary=0 never trains it": {"training": replace(QUICK, auxiliary=0.0)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_head_that_is_not_there_or_not_trained_is_refused(digits, message):
    settings = REFUSED[message]
    with pytest.raises(InvalidInput, match=message):
        AttnKNNClassifier(prediction=PredictionOptions(prior="head"), **settings).fit(*digits[:2])


def test_a_lens_that_does_not_fit_its_model_is_refused(model):
    other = served(model, PredictionOptions(prior="head"))
    for outputs in [(0, 1), (0, 1, 7), (0, 1, 1), (0, 1, -1)]:
        with pytest.raises(CorruptModel, match="no head"):
            saved._check(replace(other.voter_, lens=Lens(outputs=outputs)), 64)
    saved._check(other.voter_, 64)
    with pytest.raises(InvalidInput, match="augmentation"):
        Lens("vectors")

"""Several k in one prediction: mixed, or one for each query; on tables, where nothing is trained."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from attnknn import AttentionOptions, AttnKNNClassifier, CorruptModel, InvalidInput, MemoryBank, PredictionOptions
from attnknn.attend import Weighting
from attnknn.predict import base_of
from attnknn.predict.adaptive import ByCertificate, ByEntropy, entropy_share, fit_thresholds
from attnknn.predict.several import KEnsemble, fit_shares, nearest

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ["uniform", "distance", "softmax", "reliability"]


@pytest.fixture(scope="module")
def rows():
    """Digits with some labels wrong, so that one neighbor is not enough: rows to learn from, rows to ask about."""
    X, y = load_digits(n_class=5, return_X_y=True)
    draw = np.random.default_rng(0)
    X = X + draw.normal(0, 0.1, X.shape)  # no two distances are equal
    y = np.where(draw.random(len(y)) < 0.2, draw.integers(0, 5, len(y)), y)
    order = draw.permutation(len(X))
    return X[order[:300]], y[order[:300]], X[order[300:350]], y[order[300:350]]


def fitted(rows, options=None, **settings):
    settings = {"weights": "softmax", "embedder": "identity", "random_state": 0, **settings}
    return AttnKNNClassifier(prediction=options, **settings).fit(*rows[:2])


@pytest.fixture(scope="module")
def plain(rows):
    return fitted(rows)


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model")
    return AttnKNNClassifier.load(tmp_path / "model")


@pytest.fixture(scope="module")
def bank(rows):
    bank = MemoryBank(64, metric="l2")
    weights = np.random.default_rng(1).uniform(0, 2, 300)
    bank.add(rows[0], rows[1], weights=np.where(weights < 0.2, 0.0, weights))
    return bank


WEIGHING = {
    "plain": {},
    "class weights": {"class_weight": np.array([1.0, 0.0, 2.0, 0.5, 1.0])},
}


@pytest.mark.parametrize("given", WEIGHING)
@pytest.mark.parametrize("kind", KINDS)
def test_an_ensemble_with_all_weight_on_one_k_is_that_k(bank, rows, kind, given):
    base, asked = Weighting(kind, 0.3, 0.5 if kind == "reliability" else 0.0), rows[2]
    near = bank.search(asked, 40)
    for place, k in enumerate((3, 12, 40)):
        shares = np.eye(3)[place]
        mixed = KEnsemble(base, (3, 12, 40), tuple(shares))(near, bank, asked, **WEIGHING[given]).numpy()
        alone = base(bank.search(asked, k), bank, asked, **WEIGHING[given]).numpy()
        np.testing.assert_array_equal(mixed[:, :k], alone)
        assert (mixed[:, k:] == 0).all()


@pytest.mark.parametrize("given", WEIGHING)
def test_the_weights_of_an_ensemble_sum_to_1_even_where_a_small_k_has_no_say(bank, rows, given):
    near = bank.search(rows[2], 40)
    mixed = KEnsemble(Weighting("softmax", 0.3), (1, 40), (3.0, 1.0))(near, bank, rows[2], **WEIGHING[given])
    np.testing.assert_allclose(mixed.sum(dim=1).numpy(), 1, atol=1e-12)


def test_shares_are_found_again_from_the_answers_that_they_made():
    draw = np.random.default_rng(0)
    evidence = draw.dirichlet([0.4] * 4, size=(20_000, 3))  # (judges, members, classes)
    true = np.array([0.5, 0.2, 0.3])
    chances = np.einsum("jmc,m->jc", evidence, true) * 0.9 + 0.1 / 4
    labels = (chances.cumsum(axis=1) > draw.random((20_000, 1))).argmax(axis=1)
    own = evidence[np.arange(20_000), :, labels]
    found = fit_shares(own, np.full(20_000, 0.25), np.ones(20_000))
    np.testing.assert_allclose(found, true, atol=0.03)
    assert sum(found) == pytest.approx(1)


def test_fitted_shares_are_better_on_their_judges_than_any_others():
    draw = np.random.default_rng(3)
    evidence, prior, weight = draw.random((300, 3)), np.full(300, 0.2), draw.uniform(0.5, 2, 300)

    def least(shares):
        """NLL with the best mass on a fine grid."""
        part = np.linspace(0, 0.999, 500)
        return float((weight @ -np.log((1 - part) * (evidence @ shares)[:, None] + part * prior[:, None])).min())

    found = least(np.array(fit_shares(evidence, prior, weight)))
    assert all(found <= least(other) + 1e-3 for other in [*draw.dirichlet([1] * 3, 50), *np.eye(3)])


def test_an_ensemble_of_the_classifier_is_the_mean_of_scikit_learns(rows):
    options = PredictionOptions(k_ensemble=(3, 15), k_shares=(1.0, 3.0))
    model = fitted(rows, options, n_neighbors=15, weights="uniform", calibration=None)
    few, many = (KNeighborsClassifier(k).fit(*rows[:2]).predict_proba(rows[2]) for k in (3, 15))
    np.testing.assert_allclose(model.predict_proba(rows[2]), 0.25 * few + 0.75 * many, atol=1e-12)
    assert model.n_neighbors_ == 15


ALL = {
    "ensemble": PredictionOptions(k_ensemble=(2, 8, 32)),
    "given shares": PredictionOptions(k_ensemble=(4, 16), k_shares=(0.5, 0.5)),
    "entropy": PredictionOptions(adaptive_k="entropy"),
    "tiers": PredictionOptions(adaptive_k="entropy", tiers=(2, 5, 9, 40)),
    "certificate": PredictionOptions(adaptive_k="certificate", tiers=(4, 32, 128), error=0.3),
}


@pytest.mark.parametrize("calibration", [None, "temperature", "density"])
@pytest.mark.parametrize("name", ALL)
def test_each_option_composes_with_calibration_abstention_explanations_and_files(
    rows, name, calibration, tmp_path
):
    model = fitted(rows, ALL[name], calibration=calibration)
    asked, labels = rows[2:]
    chances = model.predict_proba(asked)
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert model.score(asked, labels) > 0.65
    bar = float(np.median(chances.max(axis=1)))
    answers = model.predict(asked, abstain_below=bar, abstain_label=-1)
    np.testing.assert_array_equal(answers, np.where(chances.max(axis=1) >= bar, chances.argmax(axis=1), -1))
    bar = model.abstention_threshold(asked, labels, max_error=0.3)
    given = model.predict(asked, abstain_below=bar, abstain_label=-1)
    assert (given != labels)[given >= 0].mean() <= 0.3
    for each, expected in zip(model.explain(asked[:5]), chances, strict=False):
        assert sum(reason.weight for reason in each.neighbors) == pytest.approx(1)
        assert list(each.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-9)
    again = saved_and_loaded(model, tmp_path)
    np.testing.assert_array_equal(again.predict_proba(asked), chances)
    assert again.prediction == ALL[name]
    assert again.tuning_.k == model.tuning_.k


@pytest.mark.parametrize("name", ALL)
def test_one_search_finds_the_neighbors_of_every_k(rows, plain, name, monkeypatch):
    model, asked = plain.with_weights("softmax", None, ALL[name]), []
    search = MemoryBank.search

    def counted(self, queries, k, *args, **more):
        asked.append(k)
        return search(self, queries, k, *args, **more)

    monkeypatch.setattr(MemoryBank, "search", counted)
    model.predict_proba(rows[2])
    assert asked == [model.voter_.k]


@pytest.mark.parametrize(
    ("kind", "tiers"),
    [
        ("distance", (2, 5, 9, 40)),
        ("softmax", (1, 100)),
        ("softmax", None),
        ("reliability", (3, 9, 27)),
        ("attention", (2, 6)),
    ],
)
def test_every_tier_is_taken_by_some_judge(rows, kind, tiers):
    attention = AttentionOptions(always=True, projections=False) if kind == "attention" else None
    options = PredictionOptions(adaptive_k="entropy", tiers=tiers)
    model = fitted(rows, options, weights=kind, attention=attention)
    member = model.voter_.members[0]
    assert isinstance(member.weigher, ByEntropy)
    bank = member.bank
    near = bank.search(bank.vectors(bank.live), member.k, exclude=bank.ids)  # the judges, as they judged
    base = base_of(member.weigher)
    widest = base(near, bank, bank.vectors(bank.live), leaving_out=bank.live)
    picked = member.weigher.picked(widest)
    assert set(picked) == set(range(len(member.weigher.tiers)))
    spread = entropy_share(widest)
    assert spread[picked == 0].max() < spread[picked == picked.max()].min()


@pytest.mark.parametrize("seed", range(20))
def test_thresholds_leave_no_tier_empty_however_entropies_pile_up(seed):
    draw = np.random.default_rng(seed)
    tiers, judges = int(draw.integers(2, 6)), int(draw.integers(8, 60))
    few = draw.random(int(draw.integers(tiers, 8)))
    entropy = np.where(draw.random((1, judges)) < 0.7, few[0], draw.choice(few, (1, judges)))
    entropy[0, : len(few)] = few
    evidence = draw.random((1, judges, tiers))
    found = fit_thresholds(evidence, entropy, np.full(judges, 0.3), np.ones(judges))
    assert list(found) == sorted(set(found))
    assert set(np.searchsorted(found, entropy[0])) == set(range(tiers))


def test_thresholds_are_where_the_evidence_says():
    entropy = np.linspace(0, 1, 200)[None]
    right = np.where(entropy < 0.4, 0, np.where(entropy < 0.8, 1, 2))
    evidence = np.where(right[..., None] == np.arange(3), 0.9, 0.2)
    low, high = fit_thresholds(evidence, entropy, np.full(200, 0.1), np.ones(200))
    assert low == pytest.approx(0.4, abs=0.03)
    assert high == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_thresholds_that_force_one_tier_make_it_plain(bank, rows, place):
    tiers, base, asked = (3, 12, 40), Weighting("softmax", 0.3), rows[2]
    thresholds = [(2.0, 2.0), (-1.0, 2.0), (-1.0, -1.0)][place]
    weights = ByEntropy(base, tiers, thresholds)(bank.search(asked, 40), bank, asked).numpy()
    k = tiers[place]
    np.testing.assert_array_equal(weights[:, :k], base(bank.search(asked, k), bank, asked).numpy())
    assert (weights[:, k:] == 0).all()


@pytest.mark.parametrize("given", WEIGHING)
@pytest.mark.parametrize("kind", ["softmax", "reliability"])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_the_certificate_holds_against_the_softmax_over_all_rows(rows, metric, kind, given):
    bank = MemoryBank(64, metric=metric)
    bank.add(rows[0], rows[1], weights=np.random.default_rng(1).uniform(0.5, 2, 300))
    tiers, sparse = (1, 4, 16, 64, 200, 300), False
    for scale in {"l2": (0.05, 0.5, 2.0), "cosine": (5.0, 50.0, 200.0), "ip": (0.001, 0.01, 0.1)}[metric]:
        base = Weighting(kind, scale, 1.0 if kind == "reliability" else 0.0)
        whole = bank.search(rows[2], 300)
        full = base(whole, bank, rows[2], **WEIGHING[given]).numpy()
        lost = 1 - np.cumsum(full, axis=1)[:, np.array(tiers) - 1]
        rule = ByCertificate(base, tiers, 0.1)
        bounds = rule.bounds(whole, bank, **WEIGHING[given])
        assert (lost <= bounds + 1e-12).all()
        assert bounds[:, -1] == pytest.approx(0, abs=1e-12)
        served = rule(whole, bank, rows[2], **WEIGHING[given]).numpy()
        distance = 0.5 * np.abs(served - full).sum(axis=1)  # of what is served to the full softmax
        assert (distance <= 0.1 + 1e-9).all()
        sparse = sparse or bool((served[:, 64:] == 0).all(axis=1).any())
    assert sparse  # it was not all rows every time


def test_the_certificate_takes_the_smallest_tier_that_it_may(rows):
    bank = MemoryBank(64)
    bank.add(*rows[:2])
    near, base = bank.search(rows[2], 200), Weighting("softmax", 0.5)
    rule = ByCertificate(base, (4, 64, 200), 0.2)
    logits = -0.5 * near.distances
    mass = np.exp(logits).cumsum(axis=1)[:, [3, 63, 199]]
    outside = (300 - np.array([4, 64, 200])) * np.exp(logits[:, [3, 63, 199]])
    bounds = outside / (mass + outside)  # the formula, word for word
    np.testing.assert_allclose(rule.bounds(near, bank), bounds, rtol=1e-9)
    expected = np.where(bounds[:, 0] <= 0.2, 4, np.where(bounds[:, 1] <= 0.2, 64, 200))
    np.testing.assert_array_equal((rule(near, bank, rows[2]).numpy() > 0).sum(axis=1), expected)
    assert len(set(expected)) > 1


def test_other_prediction_options_take_the_weights_as_they_were_fitted(rows):
    parts = AttentionOptions(always=True, projections=False)
    model = fitted(rows, weights="attention", attention=parts, n_neighbors=8)
    attention = model.voter_.weighting.attention
    other = model.with_weights("attention", model.attention, PredictionOptions(k_ensemble=(4, 16)))
    assert other.voter_.weighting.attention is attention
    assert isinstance(other.voter_.members[0].weigher, KEnsemble)
    assert model.prediction is None
    back = other.with_weights("attention", model.attention)
    np.testing.assert_array_equal(back.predict_proba(rows[2]), model.predict_proba(rows[2]))
    anew = model.with_weights("attention", replace(model.attention, robust=0.7))
    assert anew.voter_.weighting.attention is not attention


def test_options_that_are_fitted_may_follow_a_model_of_which_nothing_was(rows):
    bare = fitted(rows, n_neighbors=5, weights="distance", calibration=None)
    options = PredictionOptions(adaptive_k="entropy", tiers=(2, 10))
    np.testing.assert_array_equal(
        bare.with_weights("distance", None, options).predict_proba(rows[2]),
        fitted(rows, options, n_neighbors=5, weights="distance", calibration=None).predict_proba(rows[2]),
    )


def test_ensembles_of_trained_members_share_their_k(rows):
    from attnknn import TrainingOptions

    model = fitted(
        rows,
        PredictionOptions(k_ensemble=(2, 16)),
        embedder="linear",
        n_estimators=2,
        training=TrainingOptions(epochs=1),
    )
    assert {member.weigher.shares for member in model.voter_.members} == {model.voter_.members[0].weigher.shares}
    assert model.score(*rows[2:]) > 0.65


def test_rows_that_are_taught_later_are_found_by_every_k(rows, plain):
    model = plain.with_weights("softmax", None, PredictionOptions(k_ensemble=(1, 4)))
    model.add(rows[2][:1], [4])
    near = model.explain(rows[2][:1])[0].neighbors[0]
    assert near.distance == 0


def test_a_broken_weigher_in_a_file_is_refused(plain, tmp_path):
    from attnknn.estimator import saved

    model = plain.with_weights("softmax", None, PredictionOptions(k_ensemble=(2, 8)))
    broken = (
        {"ks": [8, 2]},
        {"shares": [1.0]},
        {"shares": [-1.0, 2.0]},
        {"base": {"kind": "nonsense"}},
        {"more": 1},
    )
    for number, change in enumerate(broken):
        state = {**model.voter_.members[0].weigher.state(), **change}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KEnsemble, "state", lambda self, state=state: state)
            saved.write(tmp_path / str(number), model)
        with pytest.raises(CorruptModel):
            AttnKNNClassifier.load(tmp_path / str(number))


def test_options_survive_json_and_may_be_given_as_lists():
    options = PredictionOptions(k_ensemble=[2, 8], k_shares=[1, 3], views="vectors", prior="head")
    assert PredictionOptions(**json.loads(json.dumps(options.state()))) == options
    assert options.k_ensemble == (2, 8)
    assert PredictionOptions().plain
    assert not options.plain


WRONG = {
    "views": {"views": "all"},
    "k_ensemble must": {"k_ensemble": (3,)},
    "ascending": {"k_ensemble": (8, 2)},
    "whole numbers": {"tiers": (2.5, 3), "adaptive_k": "entropy"},
    "above 0": {"k_ensemble": (2, 8), "k_shares": (0.0, 1.0)},
    "2 members": {"k_ensemble": (2, 8), "k_shares": (1.0,)},
    "are of a k_ensemble": {"k_shares": (1.0,)},
    "choose": {"k_ensemble": (2, 8), "adaptive_k": "entropy"},
    "tiers=": {"tiers": (2, 8)},
    "of the certificate": {"adaptive_k": "entropy", "error": 0.1},
    "between 0 and 1": {"adaptive_k": "certificate", "error": 1.5},
    "adaptive_k must": {"adaptive_k": "sometimes"},
    "prior must": {"prior": None},
}


@pytest.mark.parametrize("message", WRONG)
def test_options_that_make_no_sense_or_that_nothing_reads_are_refused(message):
    with pytest.raises(InvalidInput, match=message):
        PredictionOptions(**WRONG[message])


REFUSED = {
    "views": (PredictionOptions(views="vectors"), {}),
    "has no head": (PredictionOptions(prior="head"), {}),
    "are even": (PredictionOptions(adaptive_k="entropy"), {"weights": "uniform"}),
    "softmax weights": (PredictionOptions(adaptive_k="certificate"), {"weights": "distance"}),
    "label_bias": (PredictionOptions(adaptive_k="certificate"), {"weights": "attention"}),
    "may miss": (PredictionOptions(adaptive_k="certificate"), {"index": "hnsw"}),
    "at most 256": (
        PredictionOptions(k_ensemble=(2, 300)),
        {"weights": "attention", "attention": AttentionOptions(self_attention=True)},
    ),
    "prediction must be": ({"views": None}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_that_do_not_suit_the_classifier_are_refused_in_fit_and_for_other_weights(rows, plain, message):
    options, settings = REFUSED[message]
    with pytest.raises(InvalidInput, match=message):
        fitted(rows, options, **settings)
    if "index" not in settings:
        with pytest.raises(InvalidInput, match=message):
            plain.with_weights(settings.get("weights", "softmax"), settings.get("attention"), options)


def test_entropies_that_are_all_alike_are_refused_in_words():
    X, y = np.zeros((40, 2)), np.arange(40) % 2
    with pytest.raises(InvalidInput, match="different entropies"):
        AttnKNNClassifier(
            4, weights="softmax", embedder="identity", prediction=PredictionOptions(adaptive_k="entropy")
        ).fit(X, y)


def test_only_the_nearest_are_left():
    bank = MemoryBank(1)
    bank.add([[0.0], [1.0], [2.0]], [0, 1, 0])
    near = bank.search([[0.1]], 3)
    assert nearest(near, 2).labels.tolist() == [[0, 1]]
    assert nearest(near, 2).ids.tolist() == [[0, 1]]
    assert nearest(near, 9) is near

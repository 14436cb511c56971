"""How the classifier chooses k and scale, what it makes of noise, when it keeps quiet, and how it explains."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from attnknn import AttnKNNClassifier, Explanations, InvalidInput

WEIGHTS = ["uniform", "distance", "softmax", "reliability"]
CALIBRATIONS = ["auto", "density", "temperature", "isotonic", "matrix", "prior", None]


def shuffled(load, rows=None, seed=0):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))[:rows]
    return X[order], y[order]


def loo_shares(X, y, k, weigh):
    """Weight share of the own label among the k nearest others, one row at a time; duplicates see no twin."""
    shares = []
    for at, row in enumerate(X):
        gaps = np.sqrt(((X - row) ** 2).sum(axis=1))
        others = np.flatnonzero((row != X).any(axis=1))
        near = others[np.argsort(gaps[others], kind="stable")[:k]]
        weights = weigh(gaps[near])
        shares.append((weights * (y[near] == y[at])).sum() / weights.sum())
    return np.array(shares)


def loo_nll(shares, y):
    """Each row's NLL with the mass of least mean NLL over the rows and one that no neighbor knows."""
    n = len(y)
    prior = np.array([((y == label).sum() - 1) / (n - 1) for label in y])

    def each(log_mass):
        mass = np.exp(log_mass)
        return -np.log((shares + mass * prior) / (1 + mass)), -np.log(mass * prior.mean() / (1 + mass))

    def total(log_mass):
        seen, unseen = each(log_mass)
        return (seen.sum() + unseen) / (n + 1)

    return each(minimize_scalar(total, bounds=(np.log(1e-4), np.log(10)), method="bounded").x)[0]


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize(("rows", "noise"), [(23, 0.3), (40, 0.6), (40, 2.0), (61, 1.0)])
def test_auto_takes_the_smallest_k_within_one_error_of_the_best(weights, rows, noise):
    draw = np.random.default_rng(rows)
    X = draw.normal(size=(rows, 2))
    y = (X[:, 0] + draw.normal(scale=noise, size=rows) > 0).astype(int)
    model = AttnKNNClassifier(weights=weights, embedder="identity", metric="l2", random_state=0).fit(X, y)
    weigh = np.ones_like if weights == "uniform" else lambda gaps: 1 / gaps
    ks = [k for k in (1, 2, 4, 8, 16, 32) if k < rows] + [rows]
    losses = np.array([loo_nll(loo_shares(X, y, k, weigh), y) for k in ks])
    means = losses.mean(axis=1)
    gaps = losses - losses[means.argmin()]
    allowed = means.min() + gaps.std(axis=1) / np.sqrt(rows)
    slack = 0.01  # we search the mass on a grid
    assert model.n_neighbors_ in ks
    chosen = ks.index(model.n_neighbors_)
    assert means[chosen] <= allowed[chosen] + slack
    assert (means[:chosen] > allowed[:chosen] - slack).all()


def test_auto_needs_few_neighbors_where_labels_are_clean_and_many_where_they_are_not():
    draw = np.random.default_rng(0)
    X = draw.uniform(size=(500, 2))
    clean = (X[:, 0] > 0.5).astype(int)
    noisy = (draw.random(500) < 0.3 + 0.4 * clean).astype(int)
    few = AttnKNNClassifier(weights="uniform").fit(X, clean).n_neighbors_
    many = AttnKNNClassifier(weights="uniform").fit(X, noisy).n_neighbors_
    assert few <= 4
    assert many >= 16


def test_auto_looks_beyond_the_first_neighbors_while_that_helps():
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(900, 2)), draw.integers(0, 2, 900)  # nothing to learn: the more the better
    y[0] = 1 - y[1]
    ks = [k for k, _, _ in AttnKNNClassifier(weights="uniform").fit(X, y).tuning_.curve]
    assert max(ks) > 64


@pytest.mark.parametrize("k", [1, 3, 10, 16, np.int64(7)])
def test_an_integer_is_honored(k):
    X, y = shuffled(load_iris)
    model = AttnKNNClassifier(k).fit(X, y)
    assert model.n_neighbors_ == k
    assert {len(said.neighbors) for said in model.explain(X[:5])} == {k}


def test_more_neighbors_than_examples_use_all_and_are_kept_for_when_the_bank_grows():
    X, y = shuffled(load_iris)
    for settings in ({}, {"weights": "uniform", "calibration": None}):
        model = AttnKNNClassifier(50, **settings).fit(X[:12], y[:12])
        assert model.n_neighbors_ == 12
        assert {len(said.neighbors) for said in model.explain(X[:3])} == {12}
        model.add(X[12:], y[12:])
        assert model.n_neighbors_ == 50


def test_the_fitted_scale_follows_the_units():
    X, y = shuffled(load_iris)
    settings = {"n_neighbors": 16, "embedder": "identity", "metric": "l2", "random_state": 0}
    once = AttnKNNClassifier(**settings).fit(X, y)
    for factor in (2.0**-20, 2.0**-4, 2.0**8):
        scaled = AttnKNNClassifier(**settings).fit(factor * X, y)
        assert scaled.voter_.weighting.scale * factor == pytest.approx(once.voter_.weighting.scale, rel=1e-6)
        np.testing.assert_allclose(scaled.predict_proba(factor * X), once.predict_proba(X), atol=1e-6)


def test_the_fitted_scale_is_sharp_for_fine_structure_and_blunt_for_noise():
    draw = np.random.default_rng(0)
    X = draw.uniform(size=(600, 2))
    fine = ((X * 4).astype(int).sum(axis=1) % 2).astype(int)
    coarse = ((X[:, 0] > 0.5) ^ (draw.random(600) < 0.3)).astype(int)
    sharp, blunt = (
        AttnKNNClassifier(64, embedder="identity", random_state=0).fit(X, y).voter_.weighting.scale
        for y in (fine, coarse)
    )
    assert sharp > 3 * blunt
    assert sharp > np.sqrt(600)  # at one spacing more than the nearest, a neighbor counts 1 / e at most


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("name", ["iris", "wine", "digits", "random labels"])
def test_softmax_is_never_worse_than_uniform_at_the_same_k(name, k):
    if name == "random labels":
        draw = np.random.default_rng(0)
        X, y = draw.normal(size=(200, 3)), draw.integers(0, 3, 200)
    else:
        X, y = shuffled({"iris": load_iris, "wine": load_wine, "digits": load_digits}[name], 200)
        X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    model = AttnKNNClassifier(k, embedder="identity", metric="l2", random_state=0).fit(X, y)
    scale = model.voter_.weighting.scale
    ours = loo_nll(loo_shares(X, y, k, lambda gaps: np.exp(-scale * (gaps - gaps[0]))), y).mean()
    assert ours <= loo_nll(loo_shares(X, y, k, np.ones_like), y).mean() + 1e-3


def reliability_gains(share):
    """Accuracy gained over softmax on clean rows, ``share`` of the training labels flipped to the next digit."""
    gains = []
    for seed in range(3):
        X, y = shuffled(load_digits, 1797, seed)
        given = np.where(np.random.default_rng(seed).random(1200) < share, (y[:1200] + 1) % 10, y[:1200])
        plain, trusting = (
            AttnKNNClassifier(weights=weights, embedder="identity", random_state=seed).fit(X[:1200], given)
            for weights in ("softmax", "reliability")
        )
        gains.append(trusting.score(X[1200:], y[1200:]) - plain.score(X[1200:], y[1200:]))
    return gains


def test_reliability_costs_nothing_where_labels_are_clean():
    gains = reliability_gains(0.0)
    assert np.mean(gains) > -0.01, gains


def test_reliability_withstands_flipped_labels():
    gains = reliability_gains(0.3)
    assert np.mean(gains) > 0.02, gains


def random_labels(rows=150, classes=3):
    draw = np.random.default_rng(1)
    return draw.normal(size=(rows, 4)), np.resize(np.arange(classes), rows)


@pytest.mark.parametrize("calibration", CALIBRATIONS[:-1])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_probabilities_are_honest_where_there_is_nothing_to_learn(weights, calibration):
    X, y = random_labels(600)
    model = AttnKNNClassifier(weights=weights, calibration=calibration, random_state=0).fit(X, y)
    fresh = np.random.default_rng(2)
    chances = model.predict_proba(fresh.normal(size=(600, 4)))
    truth = fresh.integers(0, 3, 600)
    nll = -np.log(chances[np.arange(600), truth]).mean()
    assert nll < np.log(3) + 0.03


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_probabilities_are_finite_sum_to_one_and_are_never_zero_once_calibrated(weights, calibration):
    X, y = shuffled(load_wine)
    model = AttnKNNClassifier(weights=weights, calibration=calibration, random_state=0).fit(X[:120], y[:120])
    chances = model.predict_proba(np.vstack([X[120:], 1e6 * X[120:]]))
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-12)
    assert (chances >= 0).all()
    assert (chances <= 1).all()
    assert calibration is None or (chances > 0).all()
    np.testing.assert_array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(axis=1)])


@pytest.fixture(scope="module", params=[{}, {"n_neighbors": 5, "weights": "uniform", "calibration": None}])
def cancer(request):
    """The default, and a model whose confidences tie: 3, 4 or 5 of 5."""
    X, y = shuffled(load_breast_cancer)
    model = AttnKNNClassifier(random_state=0, **request.param).fit(X[:200], y[:200])
    return model, X[200:], y[200:]


@pytest.mark.parametrize("max_error", [0.0, 0.005, 0.01, 0.02, 0.5, 1.0])
def test_the_abstention_threshold_is_the_lowest_that_keeps_the_promise(cancer, max_error):
    model, X, y = cancer
    threshold = model.abstention_threshold(X, y, max_error=max_error)
    confidence = model.predict_proba(X).max(axis=1)
    wrong = model.predict(X) != y
    answered = confidence >= threshold
    assert np.array_equal(answered, [label is not None for label in model.predict(X, abstain_below=threshold)])
    if answered.any():
        assert wrong[answered].mean() <= max_error
    for lower in np.unique(confidence[~answered]):
        assert wrong[confidence >= lower].mean() > max_error


def test_the_abstention_threshold_is_infinite_when_even_the_surest_are_wrong(cancer):
    model, X, _y = cancer
    threshold = model.abstention_threshold(X, 1 - model.predict(X), max_error=0.1)
    assert threshold == float("inf")
    assert set(model.predict(X, abstain_below=threshold).tolist()) == {None}


def test_labels_that_the_model_does_not_know_count_as_wrong(cancer):
    model, X, _ = cancer
    assert model.abstention_threshold(X, np.full(len(X), 9), max_error=0.5) == float("inf")
    assert model.abstention_threshold(X, np.full(len(X), "other"), max_error=0.5) == float("inf")
    assert model.score(X, np.full(len(X), 9)) == 0.0


def test_an_abstention_threshold_that_cannot_be_asked_for_is_refused(cancer):
    model, X, y = cancer
    for max_error in (-0.1, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="max_error"):
            model.abstention_threshold(X, y, max_error=max_error)
    for labels in (y[:1], y[:-1]):
        with pytest.raises(InvalidInput, match="labels"):
            model.abstention_threshold(X, labels, max_error=0.1)
    with pytest.raises(InvalidInput, match="abstain_below"):
        model.predict(X, abstain_below=float("nan"))


@pytest.mark.parametrize(
    ("labels", "quiet"),
    [
        ([0, 1], None),
        ([0, 1], -1),
        ([0, 1], "unsure"),
        (np.array([0, 1], np.int8), 1000),
        (np.array([0, 1], np.uint8), -1),
        ([False, True], None),
        ([False, True], "unsure"),
        (["a", "b"], "a much longer answer"),
        (["a", "b"], ""),
        (["a", "b"], None),
        (["a", "b"], -1),
        (np.array(["a", "b"], object), "unsure"),
        ([0.0, 1.0], np.nan),
    ],
)
def test_abstaining_answers_what_was_asked_for_and_leaves_the_rest(labels, quiet):
    X = np.array([[0.0], [1.0], [10.0], [11.0]])
    y = np.repeat(np.asarray(labels), 2)
    model = AttnKNNClassifier(4, weights="distance", calibration=None, embedder="identity").fit(X, y)
    queries = np.array([[0.0], [5.5], [11.0]])
    said = model.predict(queries, abstain_below=0.9, abstain_label=quiet)
    assert said[[0, 2]].tolist() == y[[0, 3]].tolist()
    assert said[1] is quiet or said[1] == quiet or (said[1] != said[1] and quiet != quiet)
    assert (
        model.predict(queries, abstain_below=0.0, abstain_label=quiet).tolist() == model.predict(queries).tolist()
    )


@pytest.mark.parametrize("calibration", ["auto", "density", "temperature", "prior", None])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_an_explanation_adds_up_to_the_probabilities(weights, calibration):
    X, y = shuffled(load_wine)
    names = np.array(["one", "two", "three"])[y]
    model = AttnKNNClassifier(
        8, weights=weights, calibration=calibration, class_weight="balanced", random_state=0
    ).fit(X[:150], names[:150])
    chances = model.predict_proba(X[150:])
    for said, expected in zip(model.explain(X[150:]), chances, strict=True):
        assert sum(reason.weight for reason in said.neighbors) == pytest.approx(1, abs=1e-12)
        assert said.neighbors == tuple(sorted(said.neighbors, key=lambda reason: -reason.weight))
        assert sum(said.prior.values()) == pytest.approx(1)
        power = []
        for label, chance in zip(model.classes_, expected, strict=True):
            got = sum(reason.weight for reason in said.neighbors if reason.label == label)
            assert said.evidence[label] == pytest.approx(got, abs=1e-12)
            vote = (got + said.prior_mass * said.prior[label]) / (1 + said.prior_mass)
            assert said.contributions[label] <= vote + 1e-12
            power.append(vote ** (1 / said.temperature))
            assert said.probabilities[label] == chance
        np.testing.assert_allclose(np.array(power) / sum(power), expected, rtol=0, atol=1e-9)
        assert said.prediction == model.classes_[expected.argmax()]
        assert (said.prior_mass == 0) == (calibration is None)


def test_an_explanation_under_isotonic_calibration_claims_no_temperature():
    X, y = shuffled(load_iris)
    said = AttnKNNClassifier(5, calibration="isotonic").fit(X, y).explain(X[:1])[0]
    assert said.temperature is None


def test_neighbors_are_shown_as_the_rows_they_were():
    frame = pd.DataFrame(
        {
            "age": [31, 45, 62, 28],
            "pay": [1.5, 2.25, None, 9.0],
            "job": ["x", None, "y", "x"],
            "ok": [True, False] * 2,
        }
    )
    ids = ["ann", "bob", "cy", 7]
    model = AttnKNNClassifier(4).fit(frame, [0, 1, 0, 1], ids=ids)
    shown = {reason.id: reason.row for reason in model.explain(frame[:1])[0].neighbors}
    assert shown == {
        "ann": {"age": 31, "pay": 1.5, "job": "x", "ok": True},
        "bob": {"age": 45, "pay": 2.25, "job": None, "ok": False},
        "cy": {"age": 62, "pay": None, "job": "y", "ok": True},
        7: {"age": 28, "pay": 9.0, "job": "x", "ok": False},
    }
    nearest = model.explain(frame[:1])[0].neighbors[0]
    assert (nearest.id, nearest.label, nearest.distance) == ("ann", 0, 0.0)


def test_distances_and_ids_of_an_explanation_are_those_of_kneighbors():
    X, y = shuffled(load_iris)
    model = AttnKNNClassifier(6, weights="distance").fit(X, y)
    distances, rows = model.kneighbors(X[:10] + 0.01)
    for at, said in enumerate(model.explain(X[:10] + 0.01)):
        assert {reason.id: reason.distance for reason in said.neighbors} == dict(
            zip(rows[at].tolist(), distances[at].tolist(), strict=True)
        )
        assert all(reason.label == y[reason.id] for reason in said.neighbors)


def test_html_escapes_whatever_the_data_hold_and_json_holds_it_all():
    evil = "<script>alert('x')</script>"
    frame = pd.DataFrame({evil: [evil, "b", "c"], "n": [1.0, 2.0, 3.0]})
    model = AttnKNNClassifier(3).fit(frame, [evil, "b", evil], ids=[evil, "&", '"'])
    said = model.explain(frame)
    assert isinstance(said, Explanations)
    for html in (said._repr_html_(), said[0]._repr_html_()):
        assert "<script" not in html
        assert "&lt;script&gt;" in html
    again = json.loads(json.dumps(said[0].to_dict(), allow_nan=False))
    assert again["prediction"] == evil
    assert again["probabilities"] == dict(said[0].probabilities)
    assert {reason["id"] for reason in again["neighbors"]} == {evil, "&", '"'}
    assert [len(part) for part in (said, said[:2], list(said))] == [3, 2, 3]


@pytest.mark.parametrize("labels", [[0, 1], [True, False], ["a", "b"], [1.0, 2.0]])
def test_explanations_of_every_kind_of_label_are_json_and_text(labels):
    said = AttnKNNClassifier(2, random_state=0).fit([[0.0], [1.0]], labels).explain([[0.2]])[0]
    shown = json.loads(json.dumps(said.to_dict(), allow_nan=False))
    assert set(shown["probabilities"]) == {str(label) for label in labels}
    text = said.text(most=1)
    assert str(said.prediction) in text
    assert "and 1 more" in text
    assert str(said) == said.text()

"""A trained classifier keeps every promise of an untrained one: edits, explanations, saving, equality."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError

from attnknn import (
    AttentionOptions,
    AttnKNNClassifier,
    CorruptModel,
    InvalidInput,
    TrainingOptions,
    UnknownId,
)
from attnknn.attend import LearnedWeighting
from attnknn.bank.folder import read_folder, write_folder
from attnknn.embed import embed
from attnknn.estimator.options import chosen_embedders
from attnknn.predict.plain import answer
from attnknn.train import loop

SHORT = TrainingOptions(epochs=3, lr=1e-2, embed_dim=8)
NO_PARTS = AttentionOptions(projections=False, distance_bias=False, label_bias=False)


@pytest.fixture(autouse=True, scope="module")
def quick():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnknn.train.attention.EPOCHS", 2)
        yield
    torch.set_num_threads(before)


def table(count, seed=0):
    """Numbers, categories, booleans, some of them missing, and labels that depend on most of them."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": draw.normal(size=count).round(3),
            "age": draw.integers(0, 50, count),
            "kind": draw.choice(["x", "y", "z"], count),
            "flag": draw.random(count) < 0.4,
        }
    )
    score = frame["size"] + 1.5 * (frame["kind"] == "x") - (frame["age"] > 25) + draw.normal(scale=0.3, size=count)
    frame.loc[draw.random(count) < 0.05, "size"] = np.nan
    frame.loc[draw.random(count) < 0.05, "kind"] = None
    return frame, np.array(["low", "mid", "top"])[np.digitize(score, [-0.5, 0.7])]


def points(count, seed=0, width=6):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(count, width))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


# name -> (constructor arguments, where the rows come from)
MODELS = {
    "periodic": ({}, table),
    "two members": ({"n_estimators": 2}, table),
    "tabular": ({"embedder": "tabular"}, table),
    "linear": ({"embedder": "linear", "training": TrainingOptions(epochs=3, lr=1e-2)}, points),
    "softmax": ({"embedder": "periodic", "weights": "softmax", "n_estimators": 2}, table),
}


def unfitted(name, **changes):
    settings = {"n_neighbors": 8, "training": SHORT, "random_state": 0, **MODELS[name][0], **changes}
    return AttnKNNClassifier(**settings)


@cache
def fitted(name):
    """Never edited: take a copy to edit."""
    X, y = MODELS[name][1](360)
    return unfitted(name).fit(X, y)


@cache
def attentive():
    """A model with two members that both weigh by attention, whatever the judges say of so short a training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnknn.estimator.fitting.helps", lambda gains, importance: True)
        return unfitted("two members").fit(*table(360))


def rows_of(name, count=12, seed=9):
    return MODELS[name][1](count, seed)


def fresh(model):
    return pickle.loads(pickle.dumps(model))


def weights_of(model):
    """All that was learned, as one list of tensors."""
    learned = []
    for member in model.voter_.members:
        modules = [member.network] if member.network is not None else []
        modules += [member.weigher.attention] if isinstance(member.weigher, LearnedWeighting) else []
        learned += [each.clone() for module in modules for each in module.state_dict().values()]
    return learned


def same(first, second):
    return len(first) == len(second) and all(one.equal(two) for one, two in zip(first, second, strict=True))


every_model = pytest.mark.parametrize("name", MODELS)


@every_model
def test_it_was_really_trained(name):
    model = fitted(name)
    settings, rows = MODELS[name]
    members = model.voter_.members
    assert len(members) == settings.get("n_estimators", 1)
    for member in members:
        assert member.network.kind == settings.get("embedder", "periodic")
        assert not member.network.training
        assert len(member.bank) == 360
    assert (model.predict(rows(300, 5)[0]) == rows(300, 5)[1]).mean() > 0.5
    chances = model.predict_proba(rows(40, 6)[0])
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert np.isfinite(chances).all()
    if len(members) > 1:
        first, second = (member.bank.vectors(member.bank.live) for member in members)
        assert np.abs(first - second).max() > 0.1  # members of their own
        assert not same(*([*member.network.state_dict().values()] for member in members))


@pytest.mark.parametrize("twins", [False, True])
def test_random_labels_are_answered_with_the_odds_of_chance(twins):
    """Whoever saw its own label while it learned, or that of its twin, would be sure of itself, and wrong."""
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(180 if twins else 360, 4)), draw.integers(0, 3, 180 if twins else 360)
    if twins:
        X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    model = unfitted("periodic").fit(X, y)
    asked, truth = draw.normal(size=(1000, 4)), draw.integers(0, 3, 1000)
    nll = -np.log(model.predict_proba(asked)[np.arange(1000), truth])
    assert np.log(3) - 0.03 < nll.mean() < np.log(3) + 0.06


@every_model
@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_model_that_comes_back_answers_to_the_last_bit(name, way, tmp_path):
    model, (X, y) = fitted(name), rows_of(name, 30)
    if way == "save":
        model.save(tmp_path / "model")
        back = AttnKNNClassifier.load(tmp_path / "model")
    else:
        back = fresh(model)
    np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    assert [each.to_dict() for each in back.explain(X[:3])] == [each.to_dict() for each in model.explain(X[:3])]
    assert same(weights_of(back), weights_of(model))
    assert back.get_params() == model.get_params()
    twins = fresh(model), back
    for twin in twins:
        twin.remove([3, 80])
        twin.relabel([5], y[:1])
        twin.add(X[:10], y[:10], ids=[f"new {at}" for at in range(10)])
    np.testing.assert_allclose(twins[0].predict_proba(X), twins[1].predict_proba(X), rtol=0, atol=1e-12)


def test_an_attention_of_two_members_comes_back_too(tmp_path):
    model, (X, _) = attentive(), table(30, 9)
    assert {member.weigher.kind for member in model.voter_.members} == {"attention"}
    model.save(tmp_path / "model")
    for back in (AttnKNNClassifier.load(tmp_path / "model"), fresh(model)):
        np.testing.assert_array_equal(back.predict_proba(X), model.predict_proba(X))
        assert same(weights_of(back), weights_of(model))


def models_and_attentive():
    return [*MODELS, "attentive"]


def called(name):
    return (attentive(), table(8, 9)[0]) if name == "attentive" else (fitted(name), rows_of(name, 8)[0])


@pytest.mark.parametrize("name", models_and_attentive())
def test_probabilities_follow_from_the_explanation(name):
    model, X = called(name)
    chances = model.predict_proba(X)
    for said, row in zip(model.explain(X), chances, strict=True):
        weight = dict.fromkeys(model.classes_.tolist(), 0.0)
        for reason in said.neighbors:
            weight[reason.label] += reason.weight
        assert sum(weight.values()) == pytest.approx(1, abs=1e-9)
        vote = {c: (weight[c] + said.prior_mass * said.prior[c]) / (1 + said.prior_mass) for c in weight}
        heated = {c: vote[c] ** (1 / said.temperature) for c in weight}
        expected = [heated[c] / sum(heated.values()) for c in model.classes_.tolist()]
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(row, list(said.probabilities.values()), rtol=0, atol=1e-12)
        assert said.prediction == model.classes_[row.argmax()]
        assert [reason.weight for reason in said.neighbors] == sorted(
            (reason.weight for reason in said.neighbors), reverse=True
        )


@pytest.mark.parametrize("name", ["two members", "softmax", "attentive"])
def test_the_weights_of_an_ensemble_are_averaged_by_id(name):
    model, X = called(name)
    features = model.embedder_.transform(_as_rows(model, X))
    expected = [{} for _ in range(len(X))]
    for member in model.voter_.members:
        vectors = embed(member.network, features)
        near = member.bank.search(vectors, member.k)
        weights = member.weigher(near, member.bank, vectors).numpy()
        for at, shares in enumerate(expected):
            for name_, weight in zip(near.ids[at], weights[at], strict=True):
                shares[name_] = shares.get(name_, 0.0) + weight / len(model.voter_.members)
    for said, shares in zip(model.explain(X), expected, strict=True):
        found = {reason.id: reason.weight for reason in said.neighbors}
        assert found.keys() == shares.keys()
        for key in found:
            assert found[key] == pytest.approx(shares[key], abs=1e-9)


def _as_rows(model, X):
    from attnknn.estimator.inputs import checked_rows

    return checked_rows(model, X, reset=False)


@every_model
def test_explanations_show_the_original_rows(name):
    model = fitted(name)
    X, y = MODELS[name][1](360)
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X, columns=[f"x{at}" for at in range(X.shape[1])])
    for said in model.explain(rows_of(name, 3)[0]):
        for reason in said.neighbors:
            assert reason.label == y[reason.id]
            original = frame.iloc[reason.id]
            assert list(reason.row) == list(frame.columns)
            for column, value in reason.row.items():
                given = original[column]
                if given is None or given != given:
                    assert value is None, column
                elif isinstance(given, str | bool | np.bool_):
                    assert value == given
                else:
                    assert value == pytest.approx(given, rel=1e-5, abs=1e-4)


def assert_members_agree(model):
    first, *others = (member.bank for member in model.voter_.members)
    for bank in others:
        assert bank.ids == first.ids
        np.testing.assert_array_equal(bank.labels(bank.live), first.labels(first.live))
        np.testing.assert_array_equal(bank.weights(bank.live), first.weights(first.live))


@pytest.mark.parametrize("name", models_and_attentive())
def test_edits_embed_and_store_without_retraining(name):
    source = "two members" if name == "attentive" else name
    model, (X, y) = fresh(called(name)[0]), rows_of(source, 20)
    before, learned = model.predict_proba(X), weights_of(model)
    added = model.add(X, y)
    for member in model.voter_.members:
        rows = member.bank.rows(added)
        expected = embed(member.network, model.embedder_.transform(_as_rows(model, X)))
        np.testing.assert_allclose(member.bank.vectors(rows), expected, rtol=0, atol=1e-6)
    assert_members_agree(model)
    assert np.abs(model.predict_proba(X) - before).max() > 0.01
    assert all(min(reason.distance for reason in said.neighbors) < 1e-3 for said in model.explain(X))
    model.remove(added)
    assert_members_agree(model)
    np.testing.assert_allclose(model.predict_proba(X), before, rtol=0, atol=1e-12)
    old = model.classes_[model.bank_.labels(model.bank_.rows([0, 1, 2]))]
    other = model.classes_[-1]
    model.relabel([0, 1, 2], [other] * 3)
    assert_members_agree(model)
    model.relabel([0, 1, 2], old)
    np.testing.assert_allclose(model.predict_proba(X), before, rtol=0, atol=1e-12)
    model.partial_fit(X, y, sample_weight=np.full(20, 2.0))
    assert_members_agree(model)
    assert len(model.bank_) == 380
    assert same(weights_of(model), learned)


@pytest.mark.parametrize("name", ["two members", "linear"])
def test_a_refused_edit_changes_no_member(name):
    model, (X, y) = fresh(fitted(name)), rows_of(name, 4)
    before = model.predict_proba(X)
    refused = [
        (InvalidInput, lambda: model.add(X, y, ids=["a", "b", "c", 3])),
        (InvalidInput, lambda: model.add(X, y, ids=["a", "b", "c", "a"])),
        (InvalidInput, lambda: model.add(X, y[:3])),
        (ValueError, lambda: model.add(X, y, sample_weight=[1, 1, 1, -1])),
        (UnknownId, lambda: model.remove([0, "nobody"])),
        (UnknownId, lambda: model.relabel([0, "nobody"], y[:2])),
        (InvalidInput, lambda: model.relabel([0, 0], y[:2])),
    ]
    for error, call in refused:
        with pytest.raises(error):
            call()
        assert_members_agree(model)
        assert model.bank_.ids == list(range(360))
        np.testing.assert_array_equal(model.predict_proba(X), before)


def test_the_id_of_a_removed_row_is_not_given_to_another():
    model, (X, y) = fresh(fitted("two members")), table(3, 9)
    model.remove([5, 359])
    assert model.add(X, y) == [360, 361, 362]


@pytest.mark.parametrize("new", ["a first", "mean", "z last"])
def test_a_new_class_takes_its_place_in_every_member(new):
    model, X = fresh(fitted("two members")), table(20, 9)[0]
    before = pd.DataFrame(model.predict_proba(X), columns=model.classes_)
    with pytest.raises(InvalidInput, match=r"classes="):
        model.add(X[:2], [new] * 2)
    far = table(5, 11)[0].assign(size=1e4, age=1e4)
    model.add(far, [new] * 5, classes=[new])
    assert model.classes_.tolist() == sorted(["low", "mid", "top", new])
    assert_members_agree(model)
    labels = model.classes_[model.bank_.labels(model.bank_.rows(range(360)))]
    np.testing.assert_array_equal(labels, table(360)[1])
    after = pd.DataFrame(model.predict_proba(X), columns=model.classes_)
    np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-9)
    near = {reason.label for said in model.explain(X) for reason in said.neighbors}
    if new not in near:
        old = after[["low", "mid", "top"]].to_numpy()
        np.testing.assert_allclose(old / old.sum(axis=1, keepdims=True), before, atol=0.05)
    assert model.explain(far)[0].neighbors[0].label == new


def test_an_emptied_model_says_so_and_comes_back_to_life(tmp_path):
    model, (X, y) = fresh(fitted("two members")), table(360)
    asked = table(20, 9)[0]
    expected = model.predict_proba(asked)
    model.remove(model.bank_.ids)
    with pytest.raises(InvalidInput, match="empty"):
        model.predict(asked)
    model.save(tmp_path)
    back = AttnKNNClassifier.load(tmp_path)
    for each in (model, back):
        each.add(X, y)
        np.testing.assert_allclose(each.predict_proba(asked), expected, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def large():
    """Enough rows that a part of them is held out: with it in the bank, and without."""
    X, y = points(2100, width=2)
    models = {}
    for joined in (True, False):
        training = TrainingOptions(epochs=2, embed_dim=4, join_validation=joined)
        models[joined] = AttnKNNClassifier(8, training=training, random_state=0).fit(X, y)
    return X, y, models


def test_validation_rows_join_the_bank_unless_told_not_to(large):
    X, y, models = large
    assert models[True].bank_.ids == list(range(2100))
    (hearing,) = models[False]._benches[0].hearings
    kept = models[False].bank_.ids
    assert kept == hearing.bank.ids
    held = sorted(set(range(2100)) - set(kept))
    assert len(held) == len(hearing.judges) == 420
    vectors = embed(models[False].voter_.members[0].network, models[False].embedder_.transform(X[held]))
    order, other = (np.lexsort(each.T) for each in (vectors, hearing.judges.vectors))
    np.testing.assert_allclose(vectors[order], hearing.judges.vectors[other], atol=1e-6)
    np.testing.assert_array_equal(y[held][order], hearing.judges.labels[other])


def test_joining_changes_no_training_and_calibration_is_of_the_bank_that_serves(large):
    _, _, models = large
    joined, apart = models[True], models[False]
    one, two = (model.voter_.members[0].network.state_dict() for model in (joined, apart))
    assert same([*one.values()], [*two.values()])
    (hearing,) = joined._benches[0].hearings
    bank, judges = hearing.bank, hearing.judges
    assert bank.ids == joined.bank_.ids
    assert bank is not joined.bank_  # edits do not reach those who judged
    assert sorted([*hearing.taught, *judges.rows]) == bank.ids
    np.testing.assert_array_equal(bank.labels(judges.rows), judges.labels)
    alone = joined.voter_.members[0]
    near = judges.neighbors(bank, 8)
    assert not (near.rows == judges.rows[:, None]).any()
    said = answer(near, bank, judges.vectors, alone.weigher, 2, None, judges.rows)
    votes = said.evidence.numpy() + joined.voter_.mass * judges.prior(bank, np.ones(2))
    votes /= votes.sum(axis=1, keepdims=True)
    told = joined.voter_.calibrator.transform(votes, said.density)
    before = apart.voter_.calibrator.transform(votes, said.density)
    own = np.arange(len(judges)), judges.labels
    assert -np.log(told[own]).mean() < -np.log(before[own]).mean()


def test_a_held_out_row_may_come_back_by_hand(large):
    X, y, models = large
    model = fresh(models[False])
    held = sorted(set(range(2100)) - set(model.bank_.ids))
    model.add(X[held], y[held], ids=held)
    asked = points(50, 3, width=2)[0]
    model.voter_ = replace(
        model.voter_,
        members=tuple(
            replace(one, weigher=two.weigher)
            for one, two in zip(model.voter_.members, models[True].voter_.members, strict=True)
        ),
        mass=models[True].voter_.mass,
        calibrator=models[True].voter_.calibrator,
    )  # all but these is the same now
    np.testing.assert_allclose(model.predict_proba(asked), models[True].predict_proba(asked), rtol=0, atol=1e-6)


@pytest.mark.parametrize("weights", ["softmax", "uniform", "distance", "reliability"])
def test_other_weights_share_the_vectors_and_leave_the_first_model_alone(weights):
    model, X = fitted("two members"), table(20, 9)[0]
    before = model.predict_proba(X)
    other = model.with_weights(weights)
    assert (other.weights, model.weights) == (weights, "attention")
    assert {member.weigher.kind for member in other.voter_.members} == {weights}
    np.testing.assert_array_equal(model.predict_proba(X), before)
    for one, two in zip(model.voter_.members, other.voter_.members, strict=True):
        np.testing.assert_array_equal(one.bank.vectors(one.bank.live), two.bank.vectors(two.bank.live))
        assert same([*one.network.state_dict().values()], [*two.network.state_dict().values()])
        assert one.bank is not two.bank
    added = other.add(X, table(20, 9)[1])
    other.relabel([0], ["top"])
    other.remove([1])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert 1 in model.bank_
    assert not any(name in model.bank_ for name in added)
    twice = fresh(other)  # a model like any other
    np.testing.assert_array_equal(twice.predict_proba(X), other.predict_proba(X))


def test_edits_of_the_first_model_do_not_reach_the_other():
    model = unfitted("periodic").fit(*table(320))
    other, (X, y) = model.with_weights("softmax"), table(20, 9)
    before = other.predict_proba(X)
    model.add(X, y)
    model.remove([0, 1])
    np.testing.assert_array_equal(other.predict_proba(X), before)
    later = model.with_weights("softmax")  # of the examples as they are now
    assert later.bank_.ids == model.bank_.ids


@pytest.mark.parametrize("new", ["half", "z last"])
def test_other_weights_after_a_new_class_know_every_class_by_its_name(new):
    """What judged the fit was numbered before the class came."""
    model = unfitted("periodic", calibration="isotonic").fit(*table(320))
    model.add(table(6, 12)[0], [new] * 6, classes=[new])
    other = model.with_weights("softmax")
    plain = unfitted("periodic", weights="softmax", embedder="periodic", calibration="isotonic").fit(*table(320))
    curves = dict(zip(other.classes_, other.voter_.calibrator.curves, strict=True))
    expected = dict(zip(plain.classes_, plain.voter_.calibrator.curves, strict=True))
    assert curves[new] == ((0.0, 1.0), (0.0, 1.0))
    for label in plain.classes_:
        np.testing.assert_allclose(np.ravel(curves[label]), np.ravel(expected[label]), atol=0.05)


def test_a_loaded_model_says_that_it_cannot_be_weighed_anew():
    with pytest.raises(InvalidInput, match="fit it anew"):
        fresh(fitted("periodic")).with_weights("softmax")
    with pytest.raises(NotFittedError):
        AttnKNNClassifier().with_weights("softmax")
    with pytest.raises(InvalidInput, match="no such weights"):
        fitted("periodic").with_weights("no such weights")


def test_without_learned_parts_it_is_softmax_weighting_exactly():
    X, asked = table(360), table(40, 9)[0]
    off = unfitted("periodic", attention=NO_PARTS).fit(*X)
    expected = off.predict_proba(asked)
    np.testing.assert_array_equal(off.with_weights("softmax").predict_proba(asked), expected)
    np.testing.assert_array_equal(fitted("periodic").with_weights("softmax").predict_proba(asked), expected)
    plain = unfitted("periodic", weights="softmax", embedder="periodic").fit(*X)
    np.testing.assert_array_equal(plain.predict_proba(asked), expected)


REFUSED = [
    ({"n_estimators": 0}, "n_estimators.*0"),
    ({"n_estimators": 1.5}, "n_estimators.*1.5"),
    ({"n_estimators": True}, "n_estimators.*True"),
    ({"n_estimators": 2, "weights": "softmax"}, "n_estimators=2.*nothing to average"),
    ({"n_estimators": 2, "embedder": "identity"}, "n_estimators=2.*identity"),
    ({"n_estimators": 2, "embedder": "standardize"}, "n_estimators=2.*standardize"),
    ({"weights": "learned"}, "weights.*learned"),
    ({"embedder": "resnet"}, "embedder.*resnet"),
    ({"attention": {"heads": 2}}, "attention.*AttentionOptions.*heads"),
    ({"training": {"epochs": 2}}, "training.*TrainingOptions.*epochs"),
    ({"attention": AttentionOptions(), "weights": "softmax"}, "attention.*softmax"),
    ({"attention": AttentionOptions(), "weights": "reliability"}, "attention.*reliability"),
    ({"training": TrainingOptions(), "weights": "uniform"}, "training.*uniform"),
    ({"training": TrainingOptions(epochs=2), "weights": "softmax"}, "training.*softmax"),
    ({"training": TrainingOptions(epochs=2), "embedder": "identity"}, "epochs.*identity"),
    ({"training": TrainingOptions(epochs=2), "embedder": "standardize"}, "epochs.*standardize"),
    ({"training": TrainingOptions(embed_dim=8), "embedder": "linear"}, "embed_dim.*linear"),
    ({"training": TrainingOptions(blocks=1), "embedder": "linear"}, "blocks.*linear"),
    ({"training": TrainingOptions(blocks=1), "embedder": "tabular"}, "blocks.*tabular"),
    ({"training": TrainingOptions(entropy=0.1), "weights": "softmax", "embedder": "periodic"}, "entropy.*softmax"),
    ({"training": TrainingOptions(entropy=0.1), "attention": NO_PARTS}, "entropy"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(sorted(given)) for given, _ in REFUSED])
def test_arguments_that_nothing_would_read_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        AttnKNNClassifier(**given).fit(*table(40))


@pytest.mark.parametrize(
    "given",
    [
        {"embedder": "identity", "training": TrainingOptions(entropy=0.1)},
        {"embedder": "standardize", "training": TrainingOptions()},
        {"embedder": "identity", "attention": AttentionOptions(heads=2)},
    ],
    ids=str,
)
def test_what_the_attention_reads_is_taken_without_an_embedder_to_train(given):
    X, y = points(60)
    assert AttnKNNClassifier(3, random_state=0, **given).fit(X, y).predict_proba(X).shape == (60, 2)


DEPENDS = {
    "blocks above 256 columns": ({"training": TrainingOptions(epochs=1, blocks=1)}, "wide", "blocks"),
    "embed_dim above 256 columns": ({"training": TrainingOptions(epochs=1, embed_dim=8)}, "wide", "embed_dim"),
    "members of given vectors": ({"n_estimators": 2}, "unit", "n_estimators"),
    "training of given vectors": ({"training": TrainingOptions(epochs=1)}, "unit", "epochs"),
}


@pytest.mark.parametrize("case", DEPENDS)
def test_what_nothing_reads_once_the_rows_are_known_is_refused_too(case):
    given, rows, message = DEPENDS[case]
    X, y = points(60, width=260 if rows == "wide" else 6)
    if rows == "unit":
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
    with pytest.raises(InvalidInput, match=message):
        AttnKNNClassifier(3, random_state=0, **given).fit(X, y)


def test_a_fit_that_was_killed_twice_goes_on_to_the_same_model(monkeypatch, tmp_path):
    """Once while the embedders of the second member are trained, once while an attention is."""
    asked = table(30, 9)[0]
    training = TrainingOptions(**{**SHORT.state(), "checkpoint": tmp_path / "fit"})
    write, targets = loop.write_checkpoint, ["periodic-1", "attention"]

    def killed(path, identity, state):
        write(path, identity, state)
        if targets and path.name.startswith(targets[0]) and state["next"] == 2:
            raise KeyboardInterrupt(targets.pop(0))

    model = unfitted("two members", training=training)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", killed)
        for name in tuple(targets):
            with pytest.raises(KeyboardInterrupt, match=name):
                model.fit(*table(360))
    model.fit(*table(360))
    np.testing.assert_array_equal(model.predict_proba(asked), fitted("two members").predict_proba(asked))


def test_a_checkpoint_of_other_rows_is_refused(tmp_path):
    """Also where only the attention is trained: its own checkpoint must know what it is of."""
    training = TrainingOptions(checkpoint=tmp_path)
    X, y = points(60)
    AttnKNNClassifier(5, embedder="identity", training=training, random_state=0).fit(X, y)
    with pytest.raises(InvalidInput, match="another training"):
        AttnKNNClassifier(5, embedder="identity", training=training, random_state=0).fit(X + 1.0, 1 - y)


def test_two_fits_with_one_random_state_are_equal_and_others_are_not():
    (X, y), asked = table(360), table(30, 9)[0]
    expected = fitted("periodic")
    again = clone(expected).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(asked), expected.predict_proba(asked))
    assert same(weights_of(again), weights_of(expected))
    torch.manual_seed(123)
    np.random.seed(123)  # noqa: NPY002
    other = unfitted("periodic", random_state=1).fit(X, y)
    assert not np.array_equal(other.predict_proba(asked), expected.predict_proba(asked))


def network_of(model):
    network = model.voter_.members[0].network
    return None if network is None else network.kind


def test_auto_takes_rows_of_length_1_as_they_are():
    X, y = points(320)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    model = AttnKNNClassifier(5, random_state=0).fit(X, y)
    assert (network_of(model), model.bank_.metric) == (None, "cosine")
    np.testing.assert_allclose(model.bank_.vectors(model.bank_.live), X, atol=1e-6)


def test_auto_projects_more_than_256_numeric_columns():
    X, y = points(100, width=257)
    model = AttnKNNClassifier(5, training=TrainingOptions(epochs=1), random_state=0).fit(X, y)
    assert (network_of(model), model.bank_.metric) == ("linear", "cosine")
    assert chosen_embedders(AttnKNNClassifier(), X[:, :256]) == ("periodic", "linear")
    assert chosen_embedders(AttnKNNClassifier(weights="softmax"), X) == ("standardize",)


@pytest.mark.parametrize("common", [True, False], ids=["one unit", "many units"])
def test_the_validation_rows_choose_between_a_table_and_a_projection(common):
    """Directions decide the class: seen at once where columns share a unit, hidden where each has its own."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 400)
    X = np.eye(3)[y] @ draw.normal(size=(3, 6)) * draw.lognormal(sigma=1.5, size=(400, 1))
    X = X + 0.2 * draw.normal(size=X.shape)
    if not common:
        X = X * np.logspace(-4, 4, 6) + 1e5 * np.logspace(-4, 4, 6)
    model = AttnKNNClassifier(training=TrainingOptions(epochs=4), random_state=0).fit(X, y)
    assert network_of(model) == ("linear" if common else "periodic")
    assert model.score(X, y) > 0.8
    told = model.explain(X[:1])[0].neighbors[0].row
    assert list(told) == [f"x{at}" for at in range(6)]


def test_auto_takes_a_table_for_a_table():
    assert (network_of(fitted("periodic")), fitted("periodic").bank_.metric) == ("periodic", "l2")
    X, y = table(299)
    small = AttnKNNClassifier(random_state=0).fit(X, y)
    assert network_of(small) is None
    assert small.voter_.weighting.kind == "softmax"
    assert network_of(AttnKNNClassifier(5, weights="softmax").fit(*table(320))) is None


def test_fewer_than_500_rows_are_trained_on_when_asked_and_too_few_with_a_warning():
    X, y = table(100)
    assert network_of(unfitted("periodic").fit(X, y)) == "periodic"
    with pytest.warns(UserWarning, match="nothing is trained"):
        few = unfitted("periodic").fit(X[:12], y[:12])
    assert network_of(few) is None
    assert few.predict_proba(X).shape == (100, len(few.classes_))


@pytest.mark.parametrize("name", ["periodic", "two members", "tabular"])
def test_missing_values_and_unseen_categories_get_an_answer(name):
    model = fitted(name)
    strange = table(6, 9)[0].astype({"flag": object, "age": object})
    strange.loc[0, "size"] = np.nan
    strange.loc[1, "kind"] = "never seen"
    strange.loc[2, "kind"] = None
    strange.loc[3, "flag"] = None
    strange.loc[4] = [None, None, None, None]
    chances = model.predict_proba(strange.astype({"age": "Int64", "flag": "boolean"}))
    assert np.isfinite(chances).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-9)
    assert np.ptp(chances, axis=0).max() > 0  # they are not all one


def test_categories_alone_and_numbers_alone_can_be_trained_on():
    X, y = table(120)
    for columns in (["kind", "flag"], ["age"]):
        model = unfitted("periodic").fit(X[columns], y)
        assert network_of(model) == "periodic"
        assert np.isfinite(model.predict_proba(X[columns])).all()


def test_neighbors_of_a_trained_model_are_those_of_its_vectors():
    model, X = fitted("periodic"), table(9, 9)[0]
    distances, rows = model.kneighbors(X, 5)
    vectors = embed(model.voter_.members[0].network, model.embedder_.transform(_as_rows(model, X)))
    held = model.bank_.vectors(model.bank_.live).astype(np.float64)
    gaps = np.linalg.norm(held[None] - vectors[:, None], axis=2)
    np.testing.assert_allclose(distances, np.sort(gaps, axis=1)[:, :5], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(gaps, rows, axis=1), distances, rtol=1e-4, atol=1e-5)


@pytest.fixture
def folder(tmp_path):
    attentive().save(tmp_path / "model")
    return tmp_path / "model"


def test_a_damaged_network_or_attention_is_refused_by_name(folder):
    learned = [path for path in folder.iterdir() if "network" in path.name or "attention" in path.name]
    assert len(learned) == 4  # of two members
    for path in learned:
        whole = path.read_bytes()
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        for damaged in (whole[:-1], b"", flipped, pickle.dumps({"a": 1})):
            path.write_bytes(damaged)
            with pytest.raises(CorruptModel, match=path.name):
                AttnKNNClassifier.load(folder)
        path.unlink()
        with pytest.raises(CorruptModel, match=path.name):
            AttnKNNClassifier.load(folder)
        path.write_bytes(whole)
    AttnKNNClassifier.load(folder)


def test_whole_files_that_do_not_belong_together_are_refused(folder, tmp_path):
    files = read_folder(folder, "classifier")
    about = json.loads(files["model.json"])

    def changed(*path, value):
        copy = json.loads(files["model.json"])
        at = copy
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return {**files, "model.json": json.dumps(copy).encode()}

    member = about["members"][0]
    broken = {
        "wider network": changed("members", 0, "network", "shape", "embed_dim", value=9),
        "unknown network": changed("members", 0, "network", "kind", value="resnet"),
        "unknown shape": changed("members", 1, "network", "shape", value={"surprise": 1}),
        "network gone": changed("members", 0, "network", value=None),
        "other attention": changed("members", 0, "weigher", "embed_dim", value=9),
        "other options": changed("members", 0, "weigher", "options", value={"heads": 2}),
        "no k": changed("members", 0, "k", value=0),
        "no members": changed("members", value=7),
        "one member too many": changed("members", value=[*about["members"], member]),
        "bad training": changed("parameters", "training", value={"epochs": -1}),
        "swapped networks": {**files, "network.safetensors": files["attention.safetensors"]},
        "not tensors": {**files, "network.safetensors": b"hello"},
        "no network": {name: each for name, each in files.items() if name != "network.safetensors"},
        "no second bank": {name: each for name, each in files.items() if not name.startswith("member1_rows")},
    }
    for at, (name, content) in enumerate(broken.items()):
        write_folder(tmp_path / str(at), "classifier", content)
        try:
            AttnKNNClassifier.load(tmp_path / str(at))
        except CorruptModel:
            continue
        pytest.fail(f"loaded with {name}")


GOLDEN = Path(__file__).parents[1] / "golden" / "format-2"


def test_files_of_format_2_still_load_and_answer_as_they_did_when_written():
    recorded = json.loads((GOLDEN / "expected.json").read_text())
    assert json.loads((GOLDEN / "model" / "manifest.json").read_text())["format"] == 2
    model = AttnKNNClassifier.load(GOLDEN / "model", device="cpu")
    assert [member.weigher.kind for member in model.voter_.members] == ["attention"] * 2
    np.testing.assert_array_equal(model.classes_, recorded["classes"])
    asked = pd.DataFrame(recorded["rows"])
    # Products of matrices may round otherwise on another machine.
    np.testing.assert_allclose(model.predict_proba(asked), recorded["probabilities"], rtol=0, atol=1e-5)
    for said, weights in zip(model.explain(asked), recorded["weights"], strict=True):
        assert {reason.id: reason.weight for reason in said.neighbors} == pytest.approx(weights, abs=1e-5)


def test_the_first_judges_are_a_fair_sample_of_a_table_in_order():
    X, y = make_classification(2400, 6, n_informative=4, random_state=0)
    order = np.argsort(y, kind="stable")
    model = AttnKNNClassifier(5, training=TrainingOptions(epochs=1), random_state=0).fit(X[order], y[order])
    (hearing,) = model._benches[0].hearings
    first = hearing.judges.labels[: len(hearing.judges) // 4]
    assert abs(first.mean() - 0.5) < 0.15

"""The attention starts as softmax weighting, learns from the served vote, and never sees its own answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from attnknn import AttentionOptions, AttnKNNClassifier, InvalidInput, MemoryBank
from attnknn.attend import LearnedWeighting, Weighting
from attnknn.data.noise import flip_labels
from attnknn.estimator import fitting
from attnknn.estimator.fitting import helps
from attnknn.train import Hearing, Judges, LoopOptions, loop, train_attention
from attnknn.train.attention import Lesson, Seen, VoteTask, part_sizes, start_attention
from attnknn.train.loop import run

ALL_PARTS = AttentionOptions(distance_bias=True, prototypes=True, self_attention=True)
ONLY_LABELS = AttentionOptions(projections=False, distance_bias=False)
SOFTMAX = Weighting("softmax", 1.0)


pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(count, seed, classes=4, width=3, spread=0.6):
    draw = np.random.default_rng(seed)
    centers = 2.0 * np.random.default_rng(99).normal(size=(classes, width))
    labels = np.arange(count) % classes
    return centers[labels] + draw.normal(scale=spread, size=(count, width)), labels


def noise(count, seed, classes=3, width=3):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, width)), draw.integers(0, classes, count)


def filled(vectors, labels, **options):
    bank = MemoryBank(vectors.shape[1], **options)
    bank.add(vectors, labels)
    return bank


def outside(vectors, labels):
    return Judges(vectors, labels, np.ones(len(labels)))


def inside(bank):
    return Judges.of(bank, bank.live)


def trained(bank, learn, held, options=ALL_PARTS, *, k=10, weighting=SOFTMAX, seed=0, classes=3, **more):
    settings = {"k": k, "mass": 0.1, "class_weight": np.ones(classes)} | more
    (weigher,), history = train_attention([Lesson(bank, learn, held)], weighting, options, seed=seed, **settings)
    return weigher, history


def nll(bank, judges, weigher, k=10, classes=3):
    seen = Seen.by(Hearing(bank, judges), k, np.ones(classes), 10**6)
    return seen.nll(weigher, 0.1, np.ones(classes))


def same(first, second):
    first, second = first.attention.state_dict(), second.attention.state_dict()
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_before_training_it_is_softmax_weighting(metric, scale):
    scale = 8 * scale if metric == "cosine" else scale
    bank = filled(*noise(80, 0), metric=metric)
    judges = inside(bank)
    seen = Seen.by(Hearing(bank, judges), 12, np.ones(3), 10**6)
    learned = LearnedWeighting(start_attention(Weighting("softmax", scale), ALL_PARTS, seen, seed=0))
    given = seen.near, bank, judges.vectors
    expected = Weighting("softmax", scale)(*given, leaving_out=judges.rows)
    torch.testing.assert_close(learned(*given, leaving_out=judges.rows), expected, rtol=1e-4, atol=1e-6)
    assert learned.scale == pytest.approx(scale, rel=1e-5)


def test_epoch_0_has_the_nll_of_softmax_weighting_and_is_a_candidate():
    bank, held = filled(*blobs(120, 0)), outside(*blobs(60, 1))
    weigher, history = trained(bank, inside(bank), held, classes=4)
    first = history.epochs[0]
    assert first["epoch"] == 0
    assert "loss_vote" not in first
    assert first["validation_nll"] == pytest.approx(nll(bank, held, SOFTMAX, classes=4).mean(), rel=1e-5)
    assert history.best_nll <= first["validation_nll"]
    assert nll(bank, held, weigher, classes=4).mean() == pytest.approx(history.best_nll, rel=1e-6)


def test_the_nll_of_judges_is_that_of_the_vote_written_out():
    (vectors, labels), (asked, own) = noise(40, 0), noise(9, 1)
    bank, held = filled(vectors, labels), outside(asked, own)
    expected = []
    for query, label in zip(asked, own, strict=True):
        gaps = np.linalg.norm(vectors - query, axis=1)
        nearest = np.argsort(gaps)[:7]
        weights = np.exp(-2.0 * gaps[nearest])
        share = weights[labels[nearest] == label].sum() / weights.sum()
        expected.append(-math.log((share + 0.1 * (labels == label).mean()) / 1.1))
    np.testing.assert_allclose(nll(bank, held, Weighting("softmax", 2.0), k=7), expected, rtol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_on_pure_noise_nothing_is_gained(seed):
    bank, held = filled(*noise(300, seed)), outside(*noise(300, seed + 50))
    flat, settings = Weighting("softmax", 0.05), {"k": 30, "mass": 2.0, "class_weight": np.ones(3)}
    weigher, history = trained(bank, inside(bank), held, AttentionOptions(), weighting=flat, seed=seed, **settings)
    seen = Seen.by(Hearing(bank, held), 30, np.ones(3), 10**6)
    before, after = (seen.nll(each, 2.0, np.ones(3)) for each in (flat, weigher))
    assert abs(before.mean() - after.mean()) < 4e-3
    assert history.best_nll > math.log(3) - 0.03


def test_where_every_epoch_is_worse_the_start_comes_back():
    """Rows to learn from that call every wrong label of the bank right: each step harms an honest judge."""
    vectors, labels = blobs(600, 0)
    flipped = flip_labels(labels, 0.3, kind="asymmetric", classes=4, random=np.random.default_rng(0))
    bank, held = filled(vectors, flipped), outside(*blobs(200, 1))
    asked, right = blobs(1000, 2)
    liars = outside(asked, (right + 1) % 4)
    weigher, history = trained(bank, liars, held, ONLY_LABELS, classes=4)
    assert history.best_epoch == 0
    start = start_attention(SOFTMAX, ONLY_LABELS, Seen.by(Hearing(bank, liars), 10, np.ones(4), 10**6), seed=0)
    assert same(weigher, LearnedWeighting(start))
    before, after = nll(bank, held, SOFTMAX, classes=4), nll(bank, held, weigher, classes=4)
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_parts_that_are_always_kept_are_never_those_of_the_start():
    bank, held = filled(*blobs(120, 0)), outside(*blobs(60, 1))
    weigher, history = trained(bank, inside(bank), held, replace(ALL_PARTS, always=True), classes=4)
    assert history.best_epoch > 0
    seen = Seen.by(Hearing(bank, inside(bank)), 10, np.ones(4), 10**6)
    assert all(size["size"] > 0 for size in part_sizes(weigher, seen, 0.1, np.ones(4)).values())


def test_where_vectors_lie_and_how_far_apart_they_are_does_not_drown_the_parts():
    """Neighbors 400 times closer than the table is wide, the table far from 0: as an embedder may leave them."""
    vectors, labels = blobs(300, 0)
    wide = np.hstack([vectors, 400 * np.random.default_rng(0).normal(size=(300, 1)) + 3000])
    bank = filled(wide, labels)
    seen = Seen.by(Hearing(bank, inside(bank)), 10, np.ones(4), 10**6)
    attention = start_attention(SOFTMAX, ALL_PARTS, seen, seed=0)
    slopes = part_sizes(LearnedWeighting(attention), seen, 0.1, np.ones(4))
    assert slopes["projections"]["gradient"] < 10 * slopes["label_bias"]["gradient"]


@pytest.fixture(scope="module")
def distrusting():
    """A bank with 30 % of its labels flipped to the next class, an attention trained on clean rows beside it."""
    vectors, labels = blobs(600, 0)
    noisy = flip_labels(labels, 0.3, kind="asymmetric", classes=4, random=np.random.default_rng(0))
    bank = filled(vectors, noisy)
    learn, held = outside(*blobs(4000, 1)), outside(*blobs(400, 2))
    weigher, history = trained(bank, learn, held, ONLY_LABELS, k=8, classes=4)
    return bank, noisy != labels, held, weigher, history


def test_under_label_noise_validation_nll_improves_by_more_than_its_error(distrusting):
    bank, _, held, weigher, history = distrusting
    before, after = nll(bank, held, SOFTMAX, k=8, classes=4), nll(bank, held, weigher, k=8, classes=4)
    assert helps(before - after, np.ones(len(held)))
    assert after.mean() < 0.8 * before.mean()
    assert history.best_epoch > 0


def test_under_label_noise_wrongly_labelled_neighbors_lose_weight(distrusting):
    bank, wrong, held, weigher, _ = distrusting
    near = held.neighbors(bank, 8)
    given = near, bank, held.vectors
    plain, learned = SOFTMAX(*given).numpy(), weigher(*given).numpy()
    np.testing.assert_allclose(learned.sum(axis=1), 1, atol=1e-6)
    assert (learned * wrong[near.rows]).sum() < 0.6 * (plain * wrong[near.rows]).sum()


def test_a_robust_loss_learns_from_wrong_labels_whom_not_to_trust():
    """Queries are as often wrong as the bank: NLL learns to predict the wrong labels too."""
    vectors, labels = blobs(2000, 0)
    noisy = flip_labels(labels, 0.3, kind="asymmetric", classes=4, random=np.random.default_rng(0))
    bank, (asked, truth) = filled(vectors, noisy), blobs(600, 1)
    held = outside(asked, flip_labels(truth, 0.3, kind="asymmetric", classes=4, random=np.random.default_rng(1)))
    found = {}
    for robust in (0.0, 0.7):
        options = replace(ONLY_LABELS, robust=robust)
        weigher, history = trained(bank, inside(bank), held, options, k=8, classes=4)
        judged = Seen.by(Hearing(bank, held), 8, np.ones(4), 10**6)
        votes = judged.votes(weigher, 0.1, np.ones(4))
        assert history.best_nll == pytest.approx(judged.losses(votes, robust).mean(), rel=1e-6)
        found[robust] = votes
    found["plain"] = judged.votes(SOFTMAX, 0.1, np.ones(4))
    right = {name: (votes.argmax(axis=1) == truth).mean() for name, votes in found.items()}
    sure = {name: votes[np.arange(600), truth].mean() for name, votes in found.items()}
    assert right[0.7] > right["plain"] + 0.02
    assert sure[0.7] > max(sure["plain"], sure[0.0]) + 0.05


@pytest.mark.parametrize(("right", "ships"), [([1.0, 0, 0, 0], True), ([0.0] * 4, True), ([0.0, -1, 0, 0], False)])
def test_what_predicts_better_but_is_less_often_right_does_not_ship(right, ships):
    gains = np.array([0.5, 0.4, 0.5, 0.6])
    assert fitting.ships(gains, np.array(right), np.ones(4)) is ships
    assert not fitting.ships(-gains, np.array(right), np.ones(4))


@pytest.mark.parametrize("always", [False, True])
def test_what_does_not_ship_is_served_only_where_it_is_always_wanted(monkeypatch, always):
    """Judges of pure noise, and a rule that never says yes."""
    monkeypatch.setattr(fitting, "ships", lambda *told: False)
    vectors, labels = noise(600, 0)
    options = AttentionOptions(always=always)
    model = AttnKNNClassifier(10, embedder="identity", attention=options, random_state=0).fit(vectors, labels)
    assert (model.voter_.weighting.kind == "attention") is always


def guess_of(bank):
    return Seen.by(Hearing(bank, inside(bank)), 10, np.ones(3), 10**6)


def leaky(seen):
    """The same rows with the same neighbors, as if the bank did not hold them: own votes stay in."""
    return replace(seen, judges=replace(seen.judges, rows=None))


@pytest.fixture(scope="module")
def guess():
    bank = filled(*noise(600, 3))
    return bank, Seen.by(Hearing(bank, inside(bank)), 10, np.ones(3), 10**6)


@pytest.mark.parametrize("fact", ["reliability", "alignment"])
def test_on_random_labels_neighbors_of_the_own_label_look_like_all_others(guess, fact):
    """What the bank stores of a neighbor says whether it shares the query's label, unless the own vote goes."""
    bank, seen = guess
    weigher = LearnedWeighting(start_attention(SOFTMAX, ALL_PARTS, seen, seed=0))
    shared = (seen.near.labels == seen.judges.labels[:, None]).ravel()
    found = {}
    for name, each in (("honest", seen), ("leaky", leaky(seen))):
        facts = weigher.facts(each.near, bank, each.judges.vectors, leaving_out=each.judges.rows)
        found[name] = roc_auc_score(shared, facts[fact].numpy().ravel())
    assert abs(found["honest"] - 0.5) < 0.03
    assert found["leaky"] > found["honest"] + 0.01


def test_random_labels_train_to_chance_unless_the_own_vote_stays_in(guess):
    bank, seen = guess
    options = LoopOptions(epochs=12, lr=1e-2)
    held = Seen.by(Hearing(bank, outside(*noise(600, 4))), 10, np.ones(3), 10**6)
    ends, start = {}, None
    for name, learn in (("honest", seen), ("leaky", leaky(seen))):
        attention = start_attention(SOFTMAX, ONLY_LABELS, seen, seed=0)
        task = VoteTask(attention, learn, held, mass=0.5, class_weight=np.ones(3))
        start = task.learn.nll(LearnedWeighting(attention), 0.5, np.ones(3)).mean()
        history = run(task, options, seed=0)
        ends[name] = history.epochs[-1]["loss_vote"]
        assert history.best_nll > math.log(3) - 0.03
    assert ends["honest"] > start - 0.03
    assert ends["leaky"] < ends["honest"] - 0.02


def test_two_heads_differ_after_a_hundred_steps():
    bank = filled(*blobs(300, 0, spread=1.5))
    seen = Seen.by(Hearing(bank, inside(bank)), 10, np.ones(4), 10**6)
    attention = start_attention(SOFTMAX, AttentionOptions(heads=2), seen, seed=0)

    def heads():
        weigher = LearnedWeighting(attention)
        facts = weigher.facts(seen.near, bank, seen.judges.vectors, leaving_out=seen.judges.rows)
        with torch.no_grad():
            parts = attention.logit_parts(**{name: facts[name] for name in facts})
        return torch.stack(list(parts.values())).sum(dim=0).softmax(dim=-1).unbind(dim=1)

    assert torch.equal(*heads())
    task = VoteTask(attention, seen, None, mass=0.1, class_weight=np.ones(4))
    run(task, LoopOptions(epochs=50, lr=3e-3), seed=0)
    assert task.steps == 2
    first, second = heads()
    assert (first - second).abs().max() > 0.01
    assert not torch.equal(*attention.log_scale.detach())


@pytest.mark.parametrize("part", ["projections", "distance_bias", "label_bias", "prototypes", "self_attention"])
def test_every_part_gets_a_gradient_from_the_served_vote(part):
    bank = filled(*blobs(200, 0, spread=1.5))
    weigher, _ = trained(bank, inside(bank), None, classes=4, epochs=3)
    seen = Seen.by(Hearing(bank, inside(bank)), 10, np.ones(4), 10**6)
    start = start_attention(SOFTMAX, ALL_PARTS, seen, seed=0)
    before, after = start.parts()[part], weigher.attention.parts()[part]
    assert any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_one_seed_one_attention_to_the_bit():
    bank, held = filled(*blobs(150, 0)), outside(*blobs(60, 1))
    first, second, other = (trained(bank, inside(bank), held, classes=4, seed=seed)[0] for seed in (3, 3, 4))
    assert same(first, second)
    assert not same(first, other)


def test_epochs_stops_on_the_schedule_of_the_whole():
    bank = filled(*blobs(150, 0))
    short, history = trained(bank, inside(bank), None, classes=4, epochs=2)
    _, whole = trained(bank, inside(bank), None, classes=4)
    assert [each["loss_vote"] for each in history.epochs] == [each["loss_vote"] for each in whole.epochs[:2]]
    assert [each["lr"] for each in history.epochs] == [each["lr"] for each in whole.epochs[:2]]
    assert same(short, trained(bank, inside(bank), None, classes=4, epochs=2)[0])


def test_a_training_that_was_killed_goes_on_to_the_same_end(monkeypatch, tmp_path):
    bank, held = filled(*blobs(150, 0)), outside(*blobs(60, 1))
    whole, _ = trained(bank, inside(bank), held, classes=4)
    write = loop.write_checkpoint

    def killed(path, identity, state):
        write(path, identity, state)
        if state["next"] == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(bank, inside(bank), held, classes=4, checkpoint=tmp_path / "a.pt")
    assert same(trained(bank, inside(bank), held, classes=4, checkpoint=tmp_path / "a.pt")[0], whole)


CHANGES = {
    "labels of the bank": {"bank": filled(*blobs(150, 5))},
    "k": {"k": 11},
    "weighting": {"weighting": Weighting("softmax", 2.0)},
    "entropy": {"entropy": 0.5},
}


@pytest.mark.parametrize("differs", CHANGES)
def test_the_checkpoint_of_another_training_is_refused(differs, tmp_path):
    given = {"bank": filled(*blobs(150, 0)), "options": ALL_PARTS, "classes": 4, "epochs": 1}
    for changes, refused in (({}, False), (CHANGES[differs], True)):
        settings = {**given, **changes, "checkpoint": tmp_path / "a.pt"}
        settings |= {"learn": inside(settings["bank"]), "held": None}
        if not refused:
            trained(**settings)
            continue
        with pytest.raises(InvalidInput, match="another training"):
            trained(**settings)


def test_entropy_spreads_the_weights():
    bank = filled(*blobs(300, 0))
    judges = inside(bank)
    near = judges.neighbors(bank, 10)
    spread = []
    for entropy in (0.0, 2.0):
        weigher, history = trained(bank, judges, None, classes=4, entropy=entropy)
        weights = weigher(near, bank, judges.vectors, leaving_out=judges.rows).numpy()
        spread.append(-(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1).mean())
        assert ("loss_entropy" in history.epochs[-1]) == (entropy > 0)
    assert spread[1] > spread[0] + 0.02


def test_rows_of_weight_0_teach_nothing():
    vectors, labels = blobs(200, 0)
    bank = filled(vectors, labels)
    judges = inside(bank)
    silent = replace(judges, weights=np.r_[np.ones(150), np.zeros(50)])
    wrong = replace(silent, labels=np.r_[labels[:150], (labels[150:] + 1) % 4])
    # The labels of queries reach the loss alone: what the bank holds of the silent rows stays as it is.
    first, second = (trained(bank, replace(each, rows=None), None, classes=4)[0] for each in (silent, wrong))
    assert same(first, second)


@pytest.mark.parametrize("weights", [np.ones(6), np.array([1.0, 2.0, 0.0, 1.0, 3.0, 1.0])])
def test_helps_compares_the_mean_with_its_standard_error(weights):
    gains = np.array([0.5, -0.1, 9.0, 0.2, 0.3, -0.4])
    share = weights / weights.sum()
    mean = sum(s * g for s, g in zip(share, gains, strict=True))
    error = math.sqrt(sum(s**2 * (g - mean) ** 2 for s, g in zip(share, gains, strict=True)))
    for shift in (error - mean + 1e-6, error - mean - 1e-6):
        assert helps(gains + shift, weights) == (mean + shift > error)


def test_helps_wants_a_gain_even_where_nothing_varies():
    assert not helps(np.zeros(5), np.ones(5))
    assert not helps(np.full(5, -0.1), np.ones(5))
    assert helps(np.full(5, 0.1), np.ones(5))


def test_helps_is_not_taken_in_by_rounding():
    """The start, computed in two precisions, gains 1e-11 for every judge: that is no improvement."""
    gains = 5e-12 + 1e-13 * np.random.default_rng(0).normal(size=300)
    assert not helps(gains, np.ones(300))

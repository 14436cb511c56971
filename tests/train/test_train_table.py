"""Embedders learn what is there, and only that: leave-one-out leaves out, noise stays noise, seeds decide."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from attnknn import TrainingOptions
from attnknn.embed import NETWORKS, embed
from attnknn.errors import InvalidInput
from attnknn.train import Layout, Rows, loop, train_networks
from attnknn.train.loop import run
from attnknn.train.seeds import random_kept, seed_torch
from attnknn.train.table import NcaTask

QUICK = TrainingOptions(epochs=4, lr=3e-3, embed_dim=8, batch_size=32)


pytestmark = pytest.mark.usefixtures("one_thread")


def rows_of(features, labels, weights=None, groups=None):
    count = len(labels)
    return Rows(
        np.asarray(features, np.float32),
        np.asarray(labels, np.int64),
        np.ones(count) if weights is None else np.asarray(weights, np.float64),
        np.full(count, -1) if groups is None else np.asarray(groups, np.int64),
    )


def layout(width):
    return Layout(tuple(range(width)), tuple(range(width)))


def trained(rows, held=None, *, kind="periodic", options=QUICK, seed=0, classes=3, **more):
    width = rows.features.shape[1]
    (network,), history = train_networks(
        kind, [(rows, held)], classes=classes, layout=layout(width), options=options, seed=seed, **more
    )
    return network, history


def tangled(count, seed=0, noise=4):
    """Two numbers whose sum, modulo 3, is the class: neither says anything alone; the other columns are noise."""
    draw = np.random.default_rng(seed)
    parts = draw.integers(0, 3, size=(count, 2))
    clean = parts + draw.normal(scale=0.05, size=parts.shape)
    return rows_of(np.column_stack([clean, draw.normal(size=(count, noise))]), parts.sum(axis=1) % 3)


def noise(count, seed=0, classes=3, width=3):
    draw = np.random.default_rng(seed)
    return rows_of(draw.normal(size=(count, width)), draw.integers(0, classes, count))


def alone(vectors, labels):
    """Accuracy of scikit-learn's nearest neighbor when each row leaves itself out."""
    return cross_val_score(KNeighborsClassifier(1), vectors, labels, cv=LeaveOneOut()).mean()


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def without_time(history):
    return [{name: value for name, value in each.items() if name != "seconds"} for each in history.epochs]


@pytest.mark.parametrize("kind", ["periodic", "tabular"])
def test_a_tiny_tangled_set_is_learned_by_heart(kind):
    rows = tangled(60)
    options = TrainingOptions(epochs=120, lr=1e-2, candidates=1.0, ema=0.9)
    torch.manual_seed(0)
    untrained = NETWORKS[kind].start(rows.features, range(rows.features.shape[1]))
    assert alone(embed(untrained, rows.features), rows.labels) < 0.6
    network, history = trained(rows, kind=kind, options=options)
    assert alone(embed(network, rows.features), rows.labels) > 0.95
    assert history.epochs[-1]["loss_nca"] < 0.1 < history.epochs[0]["loss_nca"]
    assert (history.best_epoch, history.best_nll) == (120, None)


def test_folds_are_trained_side_by_side_to_one_best_epoch():
    """A fold that would stop at once and one that would go on: both end at the epoch best for both."""
    learns, fails = (tangled(300), tangled(200, seed=1)), (noise(90, width=6), noise(90, seed=1, width=6))
    options = TrainingOptions(epochs=12, lr=1e-2, embed_dim=16)
    given = {"classes": 3, "layout": layout(6), "options": options, "seed": 0}
    curves = {}
    for name, part in (("learns", learns), ("fails", fails)):
        curves[name] = [each["validation_nll"] for each in trained(*part, options=options)[1].epochs]
    assert np.argmin(curves["fails"]) < np.argmin(curves["learns"])
    networks, history = train_networks("periodic", [learns, fails], **given)
    assert len(networks) == 2
    together = [each["validation_nll"] for each in history.epochs]
    assert history.best_epoch == 1 + int(np.argmin(together))
    alone_best = np.mean([min(curves["learns"]), min(curves["fails"])])
    assert history.best_nll > alone_best  # each alone would have promised more


@pytest.mark.parametrize(
    ("rows", "mixed", "given", "expected"),
    [(800, True, None, 0.4), (800, False, None, 0.0), (10_000, True, None, 0.0), (800, False, 0.1, 0.1)],
)
def test_columns_are_hidden_where_few_rows_have_categories(rows, mixed, given, expected):
    assert TrainingOptions(dropout=given).hidden(rows, mixed=mixed) == expected


def test_a_table_with_categories_is_trained_with_dropout_and_one_of_numbers_without():
    rows = tangled(200)
    for numbers, expected in ((tuple(range(6)), 0.0), ((0, 1), 0.4)):
        (network,), _ = train_networks(
            *("periodic", [(rows, None)]),
            classes=3,
            layout=Layout(numbers, tuple(range(6))),
            options=TrainingOptions(epochs=1),
            seed=0,
        )
        assert network.dropout == expected


def test_what_is_learned_holds_for_other_rows():
    network, history = trained(
        tangled(300), tangled(200, seed=1), options=TrainingOptions(epochs=30, lr=1e-2, embed_dim=16)
    )
    model = KNeighborsClassifier(5).fit(embed(network, tangled(300).features), tangled(300).labels)
    fresh = tangled(200, seed=2)
    assert model.score(embed(network, fresh.features), fresh.labels) > 0.9
    assert history.best_nll < 0.4


def by_hand(task, queries):
    """NCA of some rows among all that are not in their group, one row at a time in float64."""
    vectors = embed(task.model.network, task.features.numpy()).astype(np.float64)
    labels, groups = task.rows.labels.numpy(), task.rows.groups.numpy()
    each = []
    for at in queries:
        others = np.flatnonzero(groups != groups[at])
        if task.model.network.metric == "cosine":
            logits = 10 * vectors[others] @ vectors[at]
        else:
            logits = -np.linalg.norm(vectors[others] - vectors[at], axis=1)
        shares = np.exp(logits - logits.max())
        each.append(-math.log(shares[labels[others] == labels[at]].sum() / shares.sum()))
    return float(np.mean(each))


@pytest.mark.parametrize("kind", ["periodic", "tabular", "linear"])
def test_a_query_looks_at_all_rows_outside_its_group_and_at_no_other(kind):
    rows = replace(noise(40, width=5), groups=np.r_[np.full(20, -1), np.repeat(np.arange(5), 4)])
    torch.manual_seed(0)
    network = NETWORKS[kind].start(rows.features, range(5)).eval()
    options = TrainingOptions(candidates=1.0)
    task = NcaTask(network, rows, None, classes=3, layout=layout(5), options=options)
    for queries in (np.arange(40), np.array([3, 25, 26, 39])):
        with torch.no_grad():
            found = task.losses(torch.from_numpy(queries), torch.Generator().manual_seed(0))["nca"]
        assert float(found) == pytest.approx(by_hand(task, queries), abs=1e-4)


def test_a_planted_duplicate_of_the_same_group_changes_nothing_whatever_its_label():
    rows = noise(30)
    features = np.vstack([rows.features, rows.features[:1]])
    groups = np.r_[0, np.full(29, -1), 0]
    torch.manual_seed(0)
    network = NETWORKS["periodic"].start(rows.features, range(3)).eval()
    losses = []
    for label in range(3):
        planted = rows_of(features, np.r_[rows.labels, label], groups=groups)
        task = NcaTask(
            network, planted, None, classes=3, layout=layout(3), options=TrainingOptions(candidates=1.0)
        )
        with torch.no_grad():
            losses.append(float(task.losses(torch.tensor([0]), torch.Generator())["nca"]))
    assert losses[0] == losses[1] == losses[2]
    assert losses[0] == pytest.approx(by_hand(task, [0]), abs=1e-5)


def test_twins_teach_each_other_only_where_no_group_keeps_them_apart():
    """Random labels, each shared by two equal rows: whoever sees its twin knows its label, nobody else can."""
    draw = np.random.default_rng(0)
    features, labels = np.repeat(draw.normal(size=(300, 6)), 2, axis=0), np.repeat(draw.integers(0, 3, 300), 2)
    options = TrainingOptions(epochs=12, lr=3e-2, candidates=1.0, batch_size=150)
    ends = {}
    for name, groups in (("apart", np.repeat(np.arange(300), 2)), ("together", None)):
        _, history = trained(rows_of(features, labels, groups=groups), kind="linear", options=options)
        ends[name] = history.epochs[-1]["loss_nca"]
    assert ends["apart"] > 0.9 * math.log(3)
    assert ends["together"] < 0.4 * math.log(3)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["periodic", "linear"])
def test_random_labels_train_to_chance_on_held_out_rows(kind, seed):
    _, history = trained(
        noise(400, seed), noise(400, seed + 100), kind=kind, seed=seed,
        options=TrainingOptions(epochs=8, lr=3e-3, **({"embed_dim": 16} if kind == "periodic" else {})),
    )  # fmt: skip
    # The standard error of an NLL near log 3 over 400 rows is about .02 for answers as vague as these.
    assert history.best_nll == pytest.approx(math.log(3), abs=0.06)
    assert min(each["validation_nll"] for each in history.epochs) == history.best_nll


@pytest.mark.parametrize("losses", [{}, {"auxiliary": 0.5}, {"contrastive": 0.5}], ids=str)
def test_one_seed_one_network_to_the_bit(losses):
    rows, held = tangled(120), tangled(60, seed=1)
    options = replace(QUICK, **losses)
    results = [trained(rows, held, seed=seed, options=options) for seed in (7, 7, 8)]
    (first, one), (second, two), (other, _) = results
    assert same(first, second)
    assert without_time(one) == without_time(two)
    assert not same(first, other)


def test_the_network_is_the_one_of_the_best_epoch():
    rows, held = tangled(120), tangled(60, seed=1)
    options = replace(QUICK, epochs=12, lr=0.3)
    network = NETWORKS["periodic"].start(rows.features, range(6), embed_dim=8)
    task = NcaTask(network, rows, held, classes=3, layout=layout(6), options=options)
    history = run(task, options.loop(len(rows)), seed=0)
    assert not network.training
    assert history.best_nll == min(each["validation_nll"] for each in history.epochs)
    assert history.best_epoch < 12  # a rate as high as this gets worse before the end
    with torch.no_grad():
        assert task.validate()["nll"] == history.best_nll


def test_validation_is_the_soft_vote_of_all_training_rows():
    rows, held = noise(50), noise(20, seed=1)
    torch.manual_seed(0)
    network = NETWORKS["periodic"].start(rows.features, range(3), embed_dim=4).eval()
    task = NcaTask(network, rows, held, classes=3, layout=layout(3), options=QUICK)
    gaps = np.linalg.norm(
        embed(network, held.features)[:, None].astype(float) - embed(network, rows.features)[None], axis=2
    )
    shares = np.exp(-gaps) / np.exp(-gaps).sum(axis=1, keepdims=True)
    votes = shares @ np.eye(3)[rows.labels]
    own = votes[np.arange(20), held.labels]
    with torch.no_grad():
        found = task.validate()
    assert found["accuracy"] == pytest.approx((votes.argmax(axis=1) == held.labels).mean())
    assert found["nll"] == pytest.approx(-np.log(own).mean(), abs=5e-3)  # but for a thousandth of prior
    assert found["entropy"] == pytest.approx(-(shares * np.log(shares)).sum(axis=1).mean() / np.log(50), abs=1e-4)
    assert found["scale"] == 1


def killed_after(monkeypatch, epochs):
    """Let so many checkpoints be written, then raise as a killed process would stop."""
    write, left = loop.write_checkpoint, [epochs]

    def counted(*given):
        write(*given)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "write_checkpoint", counted)


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize("kind", ["periodic", "tabular"])
def test_a_training_that_was_killed_goes_on_to_the_same_end(kind, validated, tmp_path):
    rows, held = tangled(120), tangled(60, seed=1) if validated else None
    options = replace(QUICK, auxiliary=0.5, contrastive=0.5)
    whole, history = trained(rows, held, kind=kind, options=options)
    file = tmp_path / "checkpoint.pt"
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            trained(rows, held, kind=kind, options=options, checkpoint=file)
    network, resumed = trained(rows, held, kind=kind, options=options, checkpoint=file)
    assert same(network, whole)
    assert without_time(resumed) == without_time(history)
    again, _ = trained(rows, held, kind=kind, options=options, checkpoint=file)  # nothing is left to do
    assert same(again, whole)


OTHER_TRAININGS = {
    "rows": lambda rows, options: (replace(rows, labels=rows.labels[::-1].copy()), options),
    "groups": lambda rows, options: (replace(rows, groups=np.arange(len(rows)) // 2), options),
    "lr": lambda rows, options: (rows, replace(options, lr=0.01)),
    "embed_dim": lambda rows, options: (rows, replace(options, embed_dim=9)),
    "candidates": lambda rows, options: (rows, replace(options, candidates=0.9)),
    "label_smoothing": lambda rows, options: (rows, replace(options, label_smoothing=0.3)),
    "batch_size": lambda rows, options: (rows, replace(options, batch_size=31)),
    "contrastive": lambda rows, options: (rows, replace(options, contrastive=1.0)),
}


@pytest.mark.parametrize("differs", OTHER_TRAININGS)
def test_the_checkpoint_of_another_training_is_refused(differs, tmp_path):
    rows, file = tangled(100), tmp_path / "checkpoint.pt"
    options = replace(QUICK, epochs=1)
    trained(rows, options=options, checkpoint=file)
    other_rows, other_options = OTHER_TRAININGS[differs](rows, options)
    with pytest.raises(InvalidInput, match="another training"):
        trained(other_rows, options=other_options, checkpoint=file)


def test_epochs_stops_on_the_schedule_of_the_whole():
    rows = tangled(120)
    options = replace(QUICK, epochs=6, ema=None, patience=None)
    with random_kept(torch.device("cpu")):
        seed_torch(0, torch.device("cpu"))
        start = NETWORKS["periodic"].start(rows.features, range(6), embed_dim=8)
    task = NcaTask(start, rows, None, classes=3, layout=layout(6), options=options)
    seen = []

    def keep(_):
        seen.append(copy.deepcopy(task.model.network))

    run(task, options.loop(len(rows)), seed=0, on_epoch=keep)
    short, history = trained(rows, options=options, epochs=2)
    assert same(short, seen[1])
    assert len(history.epochs) == 2
    assert not same(short, trained(rows, options=replace(options, epochs=2))[0])  # whose rate falls sooner


def test_only_ratios_of_sample_weights_count():
    rows, held = tangled(120), tangled(60, seed=1)
    plain, _ = trained(rows, held)
    doubled, _ = trained(replace(rows, weights=np.full(120, 2.0)), replace(held, weights=np.full(60, 2.0)))
    assert same(plain, doubled)
    mixed = np.random.default_rng(0).uniform(0.5, 2, 120)
    (first, one), (second, two) = (trained(replace(rows, weights=mixed * by), held) for by in (1.0, 4.0))
    assert same(first, second)
    assert without_time(one) == without_time(two)
    assert not same(first, plain)


def test_rows_of_weight_0_say_nothing_as_keys_and_as_queries():
    """With them among the rows, the losses of the others are as without them."""
    rows, rest = noise(30), noise(10, seed=1)
    features, labels = np.vstack([rows.features, rest.features]), np.r_[rows.labels, rest.labels]
    joined = rows_of(features, labels, np.r_[np.ones(30), np.zeros(10)])
    torch.manual_seed(0)
    network = NETWORKS["periodic"].start(rows.features, range(3), embed_dim=8)
    found = []
    for each, batch in ((rows, 30), (joined, 30), (joined, 40)):
        task = NcaTask(network, each, rest, classes=3, layout=layout(3), options=TrainingOptions(candidates=1.0))
        loss = task.losses(torch.arange(batch), torch.Generator())["nca"]
        network.zero_grad()
        loss.backward()
        slopes = torch.cat([one.grad.ravel() for one in network.parameters()])
        with torch.no_grad():
            found.append((loss.detach(), slopes, task.validate()["nll"]))
    for loss, slopes, nll in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(slopes, found[0][1], rtol=1e-4, atol=1e-6)
        assert nll == pytest.approx(found[0][2], rel=1e-5)


def test_a_training_with_rows_of_weight_0_stays_finite():
    rows = replace(tangled(120), weights=np.random.default_rng(0).integers(0, 3, 120).astype(float))
    network, history = trained(rows, tangled(60, seed=1))
    assert np.isfinite(embed(network, rows.features)).all()
    assert all(math.isfinite(value) for each in history.epochs for value in each.values())


def test_the_auxiliary_loss_weighs_its_queries_by_their_sample_weight():
    """Rows of weight 0 must not pull at the network through the head either."""
    rows = noise(30)
    weighted = replace(rows, weights=np.r_[np.ones(20), np.zeros(10)])
    other = replace(weighted, labels=np.r_[rows.labels[:20], (rows.labels[20:] + 1) % 3])
    found = []
    for each in (weighted, other):
        torch.manual_seed(0)
        network = NETWORKS["periodic"].start(rows.features, range(3), embed_dim=8)
        task = NcaTask(network, each, None, classes=3, layout=layout(3), options=TrainingOptions(auxiliary=1.0))
        part = task.losses(torch.arange(30), torch.Generator().manual_seed(0))["auxiliary"]
        found.append(float(part.detach()))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"label_smoothing": 0.2},
        {"auxiliary": 1.0},
        {"contrastive": 1.0},
        {"contrastive": 1.0, "temperature": 0.5, "margin": 0.2, "corruption": 0.5},
        {"candidates": 0.9},
        {"optimizer": "sgd"},
        {"weight_decay": 0.5},
        {"clip": 1e-3},
        {"ema": None},
        {"blocks": 1},
    ],
    ids=str,
)
def test_every_option_changes_the_result_and_keeps_it_finite(change):
    rows, held = tangled(100), tangled(50, seed=1)
    plain, _ = trained(rows, held)
    network, history = trained(rows, held, options=replace(QUICK, **change))
    assert not same(plain, network)
    assert all(math.isfinite(value) for each in history.epochs for value in each.values())
    named = {name for name in ("auxiliary", "contrastive") if name in change}
    assert named <= {name.removeprefix("loss_") for name in history.epochs[0]}


def test_contrastive_views_swap_whole_columns_of_the_table():
    """A category's places move together: a view never has a row that is in two categories, or in none."""
    draw = np.random.default_rng(0)
    features = np.column_stack([draw.normal(size=50), np.eye(3)[draw.integers(0, 3, 50)]])
    rows = rows_of(features, draw.integers(0, 2, 50))
    options = TrainingOptions(contrastive=1.0, corruption=0.5)
    network = NETWORKS["periodic"].start(rows.features, [0])
    task = NcaTask(network, rows, None, classes=2, layout=Layout((0,), (0, 1, 1, 1)), options=options)
    view = task._corrupted(torch.arange(50), torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_array_equal(view[:, 1:].sum(axis=1), 1)
    assert 0.2 < (view[:, 0] != rows.features[:, 0]).mean() < 0.8
    assert set(view[:, 0]) <= set(rows.features[:, 0])


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    trained(tangled(60), options=replace(QUICK, auxiliary=1.0))
    assert torch.get_rng_state().equal(before)

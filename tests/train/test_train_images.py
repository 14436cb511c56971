"""Training on images: what a query may see, what is remembered, how it ends and goes on."""

import json
import math
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from attnknn.embed import ImageEmbedder, embed
from attnknn.errors import InvalidInput
from attnknn.train import ImageOptions, Rows, TrainingOptions, loop, train_images, training_from_state
from attnknn.train.image_task import ImageTask
from attnknn.train.images import _tell_left_out
from attnknn.train.losses import hard_negatives
from attnknn.train.policies import Augmentation, policy
from attnknn.train.relabel import Beliefs, beliefs_of

NONE = Augmentation()


pytestmark = pytest.mark.usefixtures("one_thread")


def stripes(count, seed=0, side=8, classes=2):
    """Images of stripes: down, across, or on the diagonal, under noise."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    at = np.arange(side)
    across, down = np.meshgrid(at, at)
    waves = np.stack([across, down, across + down])[labels]
    phase = draw.integers(0, 4, size=(count, 1, 1))
    bright = 90 + 80 * ((waves + phase) // 2 % 2) + draw.normal(0, 20, (count, side, side))
    return np.clip(bright, 0, 255).astype(np.uint8)[..., None], labels.astype(np.int64)


def rows_of(images, labels, groups=None, weights=None):
    count = len(labels)
    return Rows(
        images,
        labels,
        np.ones(count) if weights is None else np.asarray(weights, float),
        np.full(count, -1) if groups is None else np.asarray(groups, np.int64),
    )


def network_for(rows, classes=2, seed=0, embed_dim=8):
    torch.manual_seed(seed)
    return ImageEmbedder.start(rows.features, classes=classes, embed_dim=embed_dim)


def task_of(rows, held=None, *, classes=2, augmentation=NONE, network=None, **options):
    given = ImageOptions(**{"candidates": 1.0, "batch_size": 8, **options})
    network = network_for(rows, classes) if network is None else network
    return ImageTask(network, rows, held, options=given, augmentation=augmentation)


def parts_of(task, batch, seed=0):
    task.model.eval()  # no batch statistics: every image is embedded as if it were alone
    with torch.no_grad():
        return {
            name: loss.item() for name, loss in task.losses(batch, torch.Generator().manual_seed(seed)).items()
        }


def expected_nca(task, batch, labels, groups):
    """By hand: each query among the present keys, without those of its group."""
    vectors = embed(task.model.network, task.rows.images.permute(0, 2, 3, 1).numpy()).astype(np.float64)
    keys = task.model.keys.numpy().astype(np.float64)
    each = []
    for row in batch:
        logits = task.model.scale.item() * keys @ vectors[row]
        seen = groups != groups[row]
        mass = np.exp(logits - logits.max()) * seen
        each.append(-math.log(mass[labels == labels[row]].sum() / mass.sum()))
    return np.mean(each)


def test_a_query_looks_at_the_last_views_of_all_images_outside_its_group():
    images, labels = stripes(20)
    groups = np.arange(20)
    groups[[3, 7, 11]] = 3
    task = task_of(rows_of(images, labels, groups), auxiliary=0.0)
    task.model.keys.copy_(functional.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(1))))
    batch = torch.tensor([3, 4, 5, 7])
    found = parts_of(task, batch)
    assert set(found) == {"nca"}
    assert found["nca"] == pytest.approx(expected_nca(task, batch.tolist(), labels, groups), rel=1e-4)


def test_a_batch_is_remembered_before_it_asks_and_nothing_else_is():
    images, labels = stripes(16)
    task = task_of(rows_of(images, labels))
    before = functional.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(1)))
    task.model.keys.copy_(before)
    batch = torch.tensor([2, 9])
    parts_of(task, batch)
    vectors = torch.from_numpy(embed(task.model.network, images[batch.numpy()]))
    torch.testing.assert_close(task.model.keys[batch], vectors, rtol=1e-4, atol=1e-5)
    rest = torch.ones(16, dtype=torch.bool)
    rest[batch] = False
    assert task.model.keys[rest].equal(before[rest])


def test_a_planted_view_of_the_same_group_changes_nothing_whatever_its_label():
    images, labels = stripes(12)
    groups = np.arange(12)
    alone = task_of(rows_of(images, labels, groups), auxiliary=0.0)
    twin = rows_of(np.concatenate([images, images[:1]]), np.append(labels, 1 - labels[0]), np.append(groups, 0))
    planted = task_of(twin, auxiliary=0.0, network=alone.model.network)
    for task in (alone, planted):
        task._refresh()
    batch = torch.tensor([0])
    assert parts_of(planted, batch)["nca"] == pytest.approx(parts_of(alone, batch)["nca"], rel=1e-5)
    free = task_of(rows_of(twin.features, twin.labels), auxiliary=0.0, network=alone.model.network)
    free._refresh()
    assert parts_of(free, batch)["nca"] > parts_of(alone, batch)["nca"] + 0.05  # it would have been misled


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
def test_a_mixed_image_is_never_a_key_and_sees_neither_of_its_two(mix):
    images, labels = stripes(2)
    task = task_of(rows_of(images, labels), mix=mix, mix_alpha=20.0, auxiliary=0.0)
    before = task.model.keys.clone()
    found = parts_of(task, torch.tensor([0, 1]))
    assert task.model.keys.equal(before)
    assert found["nca"] == 0.0  # of two images both are hidden from their mixture: nothing is left to see


def test_mixed_labels_share_the_cross_entropy():
    images, labels = stripes(10)
    task = task_of(rows_of(images, labels), mix="mixup", nca=0.0)
    random = torch.Generator().manual_seed(5)
    task.model.eval()
    mixed = task._mixed(task.rows.pixels(torch.arange(10)), random)
    logits = task.model.network.head_logits(task.model.network.trunk_features(mixed.images)).detach().numpy()
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    share, partner = mixed.share.numpy(), mixed.partner.numpy()
    at = np.arange(10)
    expected = -(share * logs[at, labels] + (1 - share) * logs[at, labels[partner]]).mean()
    assert parts_of(task, torch.arange(10), seed=5)["auxiliary"] == pytest.approx(expected, rel=1e-4)


def test_of_a_batch_that_is_mixed_in_part_the_rest_is_remembered():
    images, labels = stripes(40)
    task = task_of(rows_of(images, labels), mix="mixup", mix_alpha=20.0, mix_share=0.5, batch_size=40)
    assert not task.model.keys.any()
    parts_of(task, torch.arange(40), seed=1)
    known = task.model.keys.any(dim=1)
    assert 10 < int(known.sum()) < 30
    vectors = torch.from_numpy(embed(task.model.network, images))
    torch.testing.assert_close(task.model.keys[known], vectors[known], rtol=1e-4, atol=1e-5)


def test_a_label_that_looks_impossible_costs_little_where_training_is_robust():
    images, labels = stripes(30)
    network = network_for(rows_of(images, labels))
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.tensor([0.0, 20.0]))
    found = {
        q: parts_of(
            task_of(rows_of(images, np.zeros(30, np.int64)), nca=0.0, robust=q, network=network), torch.arange(8)
        )
        for q in (0.0, 0.5)
    }
    assert found[0.0]["auxiliary"] == pytest.approx(20, rel=1e-4)
    assert found[0.5]["auxiliary"] == pytest.approx((1 - math.exp(-10)) / 0.5, rel=1e-4)


def test_soft_targets_are_what_is_learned():
    images, labels = stripes(12)
    half = torch.full((12, 2), 0.5)
    rows = rows_of(images, labels)
    options = ImageOptions(candidates=1.0, batch_size=8)
    task = ImageTask(network_for(rows), rows, None, options=options, augmentation=NONE, targets=half)
    found = parts_of(task, torch.arange(8))
    assert found["nca"] == pytest.approx(math.log(2), rel=1e-5)  # every key is half of either class


def test_hard_negatives_are_the_nearest_of_other_classes():
    draw = np.random.default_rng(0)
    queries, keys = draw.normal(size=(5, 4)), draw.normal(size=(30, 4))
    asked, held = draw.integers(0, 3, 5), draw.integers(0, 3, 30)
    hidden = torch.zeros(5, 30, dtype=torch.bool)
    hidden[[0, 1, 4], [3, 4, 29]] = True
    expected = []
    for row in range(5):
        gone = set(hidden[row].nonzero()[:, 0].tolist())
        cosine = keys @ queries[row] / np.linalg.norm(keys, axis=1) / np.linalg.norm(queries[row])
        right = [np.exp(4 * cosine[at]) for at in range(30) if held[at] == asked[row] and at not in gone]
        wrong = sorted(np.exp(4 * cosine[at]) for at in range(30) if held[at] != asked[row] and at not in gone)
        expected.append(-math.log(sum(right) / (sum(right) + sum(wrong[-3:]))))
    tensors = [torch.from_numpy(each) for each in (queries, keys, asked, held)]
    found = hard_negatives(*tensors, 4.0, hardest=3, leave_out=hidden)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-6)


def test_a_query_without_a_key_of_its_class_does_not_count_against_hard_negatives():
    keys, labels = torch.eye(3), torch.tensor([0, 1, 1])
    two = hard_negatives(torch.eye(3)[:2], keys, torch.tensor([0, 7]), labels, 2.0, hardest=2)
    one = hard_negatives(torch.eye(3)[:1], keys, torch.tensor([0]), labels, 2.0, hardest=2)
    assert two.item() == pytest.approx(one.item())
    none = hard_negatives(torch.eye(3)[:1], keys[:1], torch.tensor([0]), labels[:1], 2.0, hardest=2)
    assert none.item() == pytest.approx(0.0, abs=1e-6)


def test_one_batch_is_learned_by_heart():
    images, labels = stripes(16)
    task = task_of(rows_of(images, labels), batch_size=16)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05, momentum=0.9)
    random, batch = torch.Generator().manual_seed(0), torch.arange(16)
    task._refresh()
    task.model.train()
    totals = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = sum(task.losses(batch, random).values())
        loss.backward()
        optimizer.step()
        totals.append(loss.item())
    assert totals[-1] < 0.2 * totals[0]


LESSON = {"batch_size": 10, "epochs": 6, "lr": 1.0, "embed_dim": 8, "validate_every": 3, "ema": 0.3}


def trained(options, tmp_path=None, **more):
    rows, held = rows_of(*stripes(40)), rows_of(*stripes(30, seed=1))
    checkpoint = None if tmp_path is None else tmp_path / "image.pt"
    done = train_images(rows, held, classes=2, options=options, seed=3, checkpoint=checkpoint, **more)
    return done.network, done.history


@pytest.fixture(scope="module")
def whole():
    return trained(ImageOptions(**LESSON, augmentation="photos"))


def test_what_is_learned_holds_for_other_images_and_is_measured(whole):
    network, history = whole
    validated = [each["epoch"] for each in history.epochs if "validation_nll" in each]
    assert validated == [3, 6]
    last = history.epochs[-1]
    assert last["validation_accuracy"] > 0.9
    assert last["validation_head_accuracy"] > 0.9
    assert 0 < last["validation_entropy"] < 1
    assert 0 <= last["validation_ece"] < 0.5
    assert last["validation_scale"] == pytest.approx(10, rel=0.5)
    assert last["validation_scale"] != 10
    assert last["lr"] == pytest.approx(0, abs=1e-9)
    assert {"loss_auxiliary", "loss_nca", "loss_total"} <= set(last)
    near, labels = stripes(40)
    asked, wanted = stripes(30, seed=2)
    found = labels[(embed(network, asked) @ embed(network, near).T).argmax(axis=1)]
    assert (found == wanted).mean() > 0.9


def kill_after_two_epochs(options, tmp_path, monkeypatch, **more):
    write = loop.write_checkpoint

    def killed(path, identity, state):
        write(path, identity, state)
        if state["next"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(options, tmp_path, **more)


def test_two_trainings_with_one_seed_are_equal_and_a_killed_one_goes_on(whole, tmp_path, monkeypatch):
    options = ImageOptions(**LESSON, augmentation="photos")
    kill_after_two_epochs(options, tmp_path, monkeypatch)
    network, history = trained(options, tmp_path)
    expected = whole[0].state_dict()
    assert all(each.equal(expected[name]) for name, each in network.state_dict().items())
    assert history.best_epoch == whole[1].best_epoch
    lines = [json.loads(line) for line in (tmp_path / "image.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 3, 4, 5, 6]  # the second was killed before it could be written


def test_wrong_labels_are_seen_through_by_neighbors_and_head(whole):
    images, labels = stripes(60)
    wrong = np.arange(60) % 7 == 0
    rows, held = rows_of(images, np.where(wrong, 1 - labels, labels)), rows_of(*stripes(30, seed=1))
    task = ImageTask(whole[0], rows, held, options=ImageOptions(), augmentation=NONE)
    found, mended = beliefs_of(task, rows, held).labels()
    assert (found == labels).mean() > 0.9 > (rows.labels == labels).mean()
    assert (found == labels)[wrong].mean() > 0.8
    assert (mended == held.labels).mean() > 0.9


@pytest.fixture
def short_rounds(monkeypatch):
    """Labels are revised however short the trainings are."""
    monkeypatch.setattr("attnknn.train.image_settings.LEAST_ROUND", 1)


def test_rounds_that_are_too_short_to_believe_anything_are_left_out_and_told():
    rounds = {epochs: ImageOptions(relabel=3, epochs=epochs).rounds() for epochs in (120, None, 30, 8)}
    assert rounds[120] == ([15, 30, 60, 120], [])
    assert rounds[None] == ([12, 25, 50, 100], [])
    assert rounds[30] == ([15, 30], [3, 7])
    assert rounds[8] == ([], [1, 2, 4, 8])
    assert ImageOptions(epochs=8).rounds() == ([], [])
    options = ImageOptions(relabel=3, epochs=30, mix="mixup")
    assert [(stage.epochs, stage.mix) for stage in options.stages()] == [(15, None), (30, "mixup")]
    (alone,) = replace(options, epochs=8).stages()
    assert (alone.epochs, alone.mix, alone.relabel) == (8, "mixup", 0)
    with pytest.warns(UserWarning, match="rounds of 3 and 7 epochs are left out"):
        _tell_left_out(options)
    rows, lesson = rows_of(*stripes(24)), {**LESSON, "batch_size": 12, "epochs": 2, "validate_every": 1}
    with pytest.warns(
        UserWarning, match="relabel=1: nothing is revised, for what a training of 2 epochs believes"
    ):
        done = train_images(rows, None, classes=2, options=ImageOptions(**lesson, relabel=1), seed=0)
    assert done.beliefs is None


@pytest.mark.usefixtures("short_rounds")
def test_labels_are_revised_between_trainings_that_grow_longer(tmp_path):
    rows, held = rows_of(*stripes(24)), rows_of(*stripes(12, seed=1))
    options = ImageOptions(
        **{**LESSON, "batch_size": 12, "epochs": 2, "validate_every": 1}, relabel=1, mix="mixup"
    )
    assert [stage.epochs for stage in options.stages()] == [1, 2]
    assert [stage.mix for stage in options.stages()] == [None, "mixup"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may have learned too little
        done = train_images(rows, held, classes=2, options=options, seed=0, checkpoint=tmp_path / "image.pt")
    if done.beliefs is not None:
        assert done.beliefs.rows.shape == (24, 2)
        assert done.beliefs.held.shape == (12, 2)
        torch.testing.assert_close(done.beliefs.rows.sum(dim=1), torch.ones(24))
    lines = (tmp_path / "image.round-0.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert (tmp_path / "image.pt").exists()


@pytest.mark.usefixtures("short_rounds")
def test_only_images_whose_label_is_confirmed_are_learned_from(monkeypatch):
    given = np.array([0, 0, 1, 1, 0])
    beliefs = Beliefs(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.7, 0.3], [0.6, 0.4]]), None)
    assert beliefs.confirmed(given).tolist() == [0, 2, 4]
    rows, learned = rows_of(*stripes(24)), []
    believed = Beliefs(functional.one_hot(torch.from_numpy(rows.labels)).float(), None)
    believed.rows[:4] = believed.rows[:4].flip(1)
    monkeypatch.setattr("attnknn.train.images.beliefs_of", lambda *_: believed)
    kept = ImageTask.__init__

    def noted(task, network, rows, *others, **options):
        learned.append(len(rows))
        kept(task, network, rows, *others, **options)

    monkeypatch.setattr(ImageTask, "__init__", noted)
    options = ImageOptions(**{**LESSON, "batch_size": 12, "epochs": 2, "validate_every": 1}, relabel=1)
    train_images(rows, None, classes=2, options=options, seed=0)
    assert learned == [24, 20]


def test_images_that_were_not_learned_from_are_believed_of_too_and_never_by_their_own_label(whole):
    rows = rows_of(*stripes(40))
    task = ImageTask(whole[0], rows, None, options=ImageOptions(), augmentation=NONE)
    half = ImageTask(whole[0], rows.take(np.arange(20)), None, options=ImageOptions(), augmentation=NONE)
    assert beliefs_of(half, rows, None).rows.shape == (40, 2)
    # Others see the 20 all the same, whether they ask as held-out images or as images left out of the training.
    outside = rows.take(np.arange(20, 40))
    others = beliefs_of(half, rows, outside)
    torch.testing.assert_close(others.rows[20:], others.held)
    flipped = replace(rows, labels=np.where(np.arange(40) == 3, 1 - rows.labels, rows.labels))
    asked = ImageTask(whole[0], flipped, None, options=ImageOptions(), augmentation=NONE)
    before, after = (beliefs_of(each, rows, None).rows[3] for each in (task, asked))
    torch.testing.assert_close(before, after)


@pytest.mark.usefixtures("short_rounds")
def test_labels_stay_as_given_where_a_class_would_vanish(monkeypatch):
    one_class = Beliefs(torch.tensor([[0.9, 0.1]] * 24), None)
    assert not one_class.keeps_classes(np.arange(24) % 2)
    assert Beliefs(torch.eye(2)[torch.arange(24) % 2], None).keeps_classes(np.arange(24) % 2)
    exchanged = Beliefs(torch.eye(2)[(torch.arange(24) + 1) % 2], None)
    assert not exchanged.keeps_classes(np.arange(24) % 2)  # nothing would be left to learn from
    monkeypatch.setattr("attnknn.train.images.beliefs_of", lambda *_: one_class)
    options = ImageOptions(**{**LESSON, "batch_size": 12, "epochs": 2, "validate_every": 1}, relabel=1)
    with pytest.warns(UserWarning, match="labels stay as they are"):
        done = train_images(rows_of(*stripes(24)), None, classes=2, options=options, seed=0)
    assert done.beliefs is None


def test_a_plain_cnn_is_judged_by_its_head():
    network, history = trained(ImageOptions(**{**LESSON, "epochs": 2, "nca": 0.0}))
    last = history.epochs[-1]
    assert "loss_nca" not in last
    assert "validation_scale" not in last
    assert last["validation_nll"] > 0
    assert network.head is not None


def test_everything_can_be_on_at_once():
    options = ImageOptions(
        **{**LESSON, "epochs": 1, "validate_every": 1},
        mix="cutmix",
        mix_alpha=1.0,
        contrastive=0.5,
        hard=0.5,
        label_smoothing=0.1,
        candidates=0.5,
        augmentation=Augmentation(pad=1, flip=True, cutout=2),
    )
    last = trained(options)[1].epochs[-1]
    for name in ("auxiliary", "nca", "hard", "contrastive"):
        assert last[f"loss_{name}"] > 0


WRONG = {
    "blocks": {"blocks": 1},
    "patience": {"patience": 3},
    "dropout": {"dropout": 0.1},
    "nothing to learn": {"nca": 0.0, "auxiliary": 0.0},
    "hard": {"nca": 0.0, "hard": 1.0},
    "mix must": {"mix": "blend"},
    "mix_alpha": {"mix_alpha": 0.3},
    "trunk_lr": {"frozen": True, "trunk_lr": 0.1},
    "validate_every": {"validate_every": 0},
    "nca": {"nca": -1.0},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_option_that_makes_no_sense_or_that_nothing_reads_is_refused(name):
    message = "nothing to learn" if name == "nothing to learn" else name
    with pytest.raises(InvalidInput, match=message):
        ImageOptions(**WRONG[name])


@pytest.mark.parametrize("augmentation", ["digits", policy("photos", 32)])
def test_options_survive_json(augmentation):
    options = ImageOptions(epochs=3, augmentation=augmentation, mix="mixup", ema=None)
    assert training_from_state(json.loads(json.dumps(options.state()))) == options
    plain = TrainingOptions(epochs=2)
    assert training_from_state(json.loads(json.dumps(plain.state()))) == plain


def test_the_learning_rate_shrinks_with_the_batch():
    options = ImageOptions()
    assert [options.batch(rows) for rows in (50_000, 800, 40, 20)] == [512, 100, 32, 20]
    assert options.loop(50_000).lr == pytest.approx(0.4)
    assert options.loop(800).lr == pytest.approx(0.4 * 100 / 512)


def test_layers_next_to_the_input_learn_slower():
    trunk = network_for(rows_of(*stripes(4))).trunk
    assert ImageOptions().lr_scales(trunk) == {}
    assert ImageOptions(trunk_lr=0.1).lr_scales(trunk) == {"network.trunk": 0.1}
    scales = ImageOptions(trunk_lr=0.1, layer_decay=0.5).lr_scales(trunk)
    assert list(scales)[:3] == ["network.trunk.conv1", "network.trunk.bn1", "network.trunk.layer1.0"]
    assert list(scales.values()) == pytest.approx([0.1 * 0.5**at for at in reversed(range(len(scales)))])
    done = train_images(
        *(rows_of(*stripes(24)), None),
        classes=2,
        options=ImageOptions(**{**LESSON, "epochs": 1, "validate_every": 1}, layer_decay=0.5),
        seed=0,
    )
    assert len(done.history.epochs) == 1  # every layer that was named is in the model, or the loop would refuse


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # a compiler looks, and hides that it warns
@pytest.mark.parametrize("options", [{}, {"mix": "cutmix", "mix_share": 0.5}, {"leave_one_out": False}])
def test_compiled_or_not_neighbors_teach_the_same_under_autocast(options, monkeypatch):
    """A compiler that began within autocast would round the gradient of the similarities to 16 bits."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    rows, batch, taught = rows_of(*stripes(24)), torch.arange(24), []
    network = network_for(rows)
    for compiled in (False, True):
        task = task_of(rows, network=network, batch_size=24, auxiliary=0.0, compile=compiled, **options)
        task._trunk = network.trunk_features  # that one alone would take a minute
        with torch.autocast("cpu", torch.bfloat16):
            (loss,) = task.losses(batch, torch.Generator().manual_seed(0)).values()
        last = network.projection[-1].weight
        taught.append((loss.detach(), *torch.autograd.grad(loss, (last, task.model.log_scale))))
    for one, other in zip(*taught, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-7)


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mix": "cutmix", "mix_share": 0.5},
        {"robust": 0.7, "hard": 0.5, "contrastive": 0.5},
        {"optimizer": "adamw", "lr": 0.003, "clip": 1.0, "ema": None, "layer_decay": 0.8},
        {"compile": True, "precision": "float32"},
    ],
)
def test_recorded_steps_do_what_steps_do(options, monkeypatch):
    """A step that could not be recorded would warn, which is an error here."""
    given = ImageOptions(**{**LESSON, "epochs": 6, "validate_every": 6, "augmentation": "photos", **options})
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    _, recorded = trained(given, device="cuda")
    count = len(replays)
    monkeypatch.setattr(ImageTask, "recordable", False)
    _, plain = trained(given, device="cuda")
    assert count > 10
    for one, two in zip(recorded.epochs, plain.epochs, strict=True):
        assert set(one) == set(two)
        for name in one:
            if name.startswith(("loss", "lr")):
                assert one[name] == pytest.approx(two[name], rel=0.1, abs=0.02), name


@pytest.mark.gpu
@on_a_gpu
def test_a_recorded_training_goes_on_where_it_ended(tmp_path, monkeypatch):
    given = ImageOptions(**{**LESSON, "lr": 0.4, "epochs": 6, "validate_every": 1})
    _, whole = trained(given, device="cuda")
    kill_after_two_epochs(given, tmp_path, monkeypatch, device="cuda")
    _, again = trained(given, tmp_path, device="cuda")
    assert [each["lr"] for each in again.epochs] == pytest.approx([each["lr"] for each in whole.epochs])
    assert [each["loss_total"] for each in again.epochs] == pytest.approx(
        [each["loss_total"] for each in whole.epochs], rel=0.1, abs=0.02
    )


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("mix", [None, "cutmix"])
def test_a_gpu_learns_whether_the_images_fit_on_it_or_travel(resident, mix, monkeypatch):
    if not resident:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 1))
    share = {} if mix is None else {"mix_share": 0.5}
    options = ImageOptions(**{**LESSON, "epochs": 20, "validate_every": 20}, mix=mix, **share)
    network, history = trained(options, device="cuda")
    assert history.epochs[-1]["validation_accuracy"] > 0.9
    assert next(network.parameters()).is_cuda
    assert embed(network, stripes(5)[0]).shape == (5, 8)


@pytest.mark.gpu
@on_a_gpu
def test_a_gpu_revises_labels():
    rows, held = rows_of(*stripes(60)), rows_of(*stripes(30, seed=1))
    wrong = np.arange(60) % 7 == 0
    flipped = replace(rows, labels=np.where(wrong, 1 - rows.labels, rows.labels))
    options = ImageOptions(**{**LESSON, "epochs": 40, "validate_every": 10}, relabel=1)
    done = train_images(flipped, held, classes=2, options=options, seed=0, device="cuda")
    found, mended = done.beliefs.labels()
    assert (found == rows.labels)[wrong].mean() > 0.7
    assert (mended == held.labels).mean() > 0.9


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("options", [{}, {"mix": "cutmix", "mix_share": 0.5}, {"robust": 0.7, "hard": 0.5}])
def test_a_step_never_makes_a_gpu_wait(options):
    rows = rows_of(*stripes(24))
    given = ImageOptions(candidates=0.5, batch_size=24, **options)
    task = ImageTask(network_for(rows), rows, None, options=given, augmentation=policy("photos", 8), device="cuda")
    task.model.train()
    batch, random = torch.arange(24, device="cuda"), torch.Generator("cuda").manual_seed(0)
    sum(task.losses(batch, random).values()).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sum(task.losses(batch, random).values()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

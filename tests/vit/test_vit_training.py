"""Training of a ViT: it learns, resumes to the bit, counts every image once; every option changes something."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from attnknn.errors import CorruptModel, InvalidInput
from attnknn.train import loop
from attnknn.vit import ViT, training
from attnknn.vit.frames import Frames, channel_stats, resized
from attnknn.vit.grid import Draws, RandomSampler
from attnknn.vit.saved import TrainedViT
from attnknn.vit.settings import ViTOptions
from attnknn.vit.training import Scores, ViTTask, evaluate, right, train_vit

CONFIG = {
    "layer": "ConvNNAttention",
    "img_size": 8,
    "patch_size": 4,
    "num_classes": 3,
    "in_channels": 1,
    "num_layers": 2,
    "d_hidden": 12,
    "num_heads": 2,
    "d_mlp": 24,
    "K": 3,
}
CPU = torch.device("cpu")


def pictures(count, seed=0, side=8):
    """Three classes that differ in which corner is bright."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    images = random.integers(0, 120, (count, side, side, 1))
    half = side // 2
    for at, label in enumerate(labels):
        row, column = divmod(int(label), 2)
        images[at, row * half : (row + 1) * half, column * half : (column + 1) * half] += 100
    return images.astype(np.uint8), labels.astype(np.int64)


def frames(count=90, seed=0, size=(8, 8)):
    images, labels = pictures(count, seed)
    return Frames(images, labels, size=size, stats=channel_stats(images), device=CPU)


def model(seed=0, **change):
    torch.manual_seed(seed)
    return ViT(**{**CONFIG, **change})


def weights(net):
    return torch.cat([each.detach().flatten() for each in net.parameters()])


def test_it_learns_what_can_be_seen():
    net, options = model(), ViTOptions(num_epochs=25, batch_size=30, lr=3e-3)
    before = evaluate(net, frames(60, seed=1), options)
    history = train_vit(net, frames(), frames(30, seed=2), options, seed=0)
    after = evaluate(net, frames(60, seed=1), options)
    assert after.top1 > 0.95 > before.top1
    assert after.loss < before.loss
    first, last = history.epochs[0], history.epochs[-1]
    assert first["train_top1"] < last["train_top1"]
    assert last["train_seconds"] > 0
    assert after.top5 == 1.0  # three classes are among the first five


@pytest.mark.parametrize("sampling", ["all", "random"])
def test_a_run_that_is_stopped_ends_as_if_it_had_not_been(tmp_path, sampling):
    change = {"sampling_type": sampling, "num_samples": 3 if sampling == "random" else -1}
    options = ViTOptions(num_epochs=4, batch_size=16, augment=True, noise=0.1, scheduler="cosine")
    rows, held = frames(), frames(30, seed=2)
    whole = model(**change)
    train_vit(whole, rows, held, options, seed=3)
    train_vit(model(**change), rows, held, options, seed=3, checkpoint=tmp_path / "a.pt", last=4)
    again = model(1, **change)
    train_vit(again, rows, held, options, seed=3, checkpoint=tmp_path / "a.pt", last=4)
    assert weights(again).equal(weights(whole))
    part = model(**change)
    kill = _Killed(2)
    with pytest.raises(KeyboardInterrupt):
        train_vit(part, rows, held, options, seed=3, checkpoint=tmp_path / "b.pt", on_epoch=kill)
    resumed = model(2, **change)
    train_vit(resumed, rows, held, options, seed=3, checkpoint=tmp_path / "b.pt")
    assert weights(resumed).equal(weights(whole))


RANDOM = {"sampling_type": "random", "num_samples": 2}
SAMPLING = ["ConvNNAttention", "Attention", "BranchConv", "BranchAttention"]


def samplers(net):
    return [each for each in net.modules() if isinstance(each, RandomSampler)]


def states(net):
    return torch.stack([each.get_extra_state() for each in samplers(net)])


def draws_anew(net):
    return [not each.train()(5, CPU).equal(each(5, CPU)) for each in samplers(net) for _ in range(20)]


@pytest.mark.parametrize(
    "change",
    [
        {"layer": SAMPLING, "num_layers": 4},
        {"layer": SAMPLING, "num_layers": 4, "pool": "mean", "eval_sampling": "resample"},
        {"generator": 5},  # one for all samplers
    ],
    ids=["own", "resample", "shared"],
)
def test_draws_before_a_step_train_as_draws_within_it(tmp_path, monkeypatch, change):
    found, saved = [], []
    monkeypatch.setattr(loop, "write_checkpoint", lambda path, identity, state: saved.append(state["model"]))
    for name in ("before", "within"):
        if name == "within":
            monkeypatch.setattr(Draws, "hold", lambda draws: None)
        given = {**RANDOM, **change}
        if "generator" in change:
            given["generator"] = torch.Generator().manual_seed(change["generator"])
        net, options = model(**given), ViTOptions(num_epochs=3, batch_size=16, augment=True)
        history = train_vit(net, frames(), frames(30, seed=2), options, checkpoint=tmp_path / name)
        losses = [[each["loss_train"], each["validation_nll"]] for each in history.epochs]
        found.append((losses, weights(net), states(net)))
    assert found[0][0] == found[1][0]
    assert all(one.equal(two) for one, two in zip(found[0][1:], found[1][1:], strict=True))
    assert len(saved) == 6
    for one, two in zip(saved[:3], saved[3:], strict=True):
        drawn = [name for name in one if name.endswith("_extra_state")]
        assert len(drawn) == len(samplers(net)) > 0
        assert all(one[name].equal(two[name]) for name in drawn)


@pytest.mark.parametrize("layer", SAMPLING)
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_step_draws_nothing_by_itself(layer, pool):
    net = model(layer=layer, pool=pool, **RANDOM)
    task = ViTTask(net, frames(), frames(30, seed=2), ViTOptions(batch_size=30))
    random, before = torch.Generator().manual_seed(0), states(net)
    for batch in task.batches(random):
        drawn = states(net)
        assert (drawn != before).any(dim=1).all()
        task.losses(batch, random)
        assert states(net).equal(drawn)
        before = drawn
    assert states(net).equal(before)
    assert task.recordable


def test_samplers_draw_by_themselves_between_epochs_and_afterwards():
    net, between = model(**RANDOM), []
    options = ViTOptions(num_epochs=2, batch_size=30)
    train_vit(
        net,
        *(frames(), frames(30, seed=2), options),
        on_epoch=lambda numbers: between.append(any(draws_anew(net))),
    )
    assert between == [True, True]
    assert any(draws_anew(net))


def test_samplers_draw_by_themselves_after_a_step_that_failed(monkeypatch):
    def failing(task, batch, random):
        assert not any(draws_anew(task.model))
        raise KeyboardInterrupt

    net = model(**RANDOM)
    monkeypatch.setattr(ViTTask, "losses", failing)
    with pytest.raises(KeyboardInterrupt) as caught:
        train_vit(net, frames(), frames(30, seed=2), ViTOptions(num_epochs=1, batch_size=30))
    assert any(draws_anew(net))
    assert caught.tb is not None  # not only once the traceback is forgotten


def test_batches_that_are_given_up_leave_samplers_to_themselves():
    net = model(**RANDOM)
    task = ViTTask(net, frames(), frames(30, seed=2), ViTOptions(batch_size=30))
    batches = task.batches(torch.Generator().manual_seed(0))
    next(batches)
    assert not any(draws_anew(net))
    batches.close()
    assert any(draws_anew(net))


class _Killed:
    def __init__(self, after):
        self.after = after

    def __call__(self, numbers):
        if numbers["epoch"] == self.after:
            raise KeyboardInterrupt


CHANGED = [
    {"batch_size": 15},
    {"criterion": "MSE"},
    {"optimizer": "adam"},
    {"optimizer": "sgd"},
    {"lr": 1e-2},
    {"weight_decay": 0.5},
    {"scheduler": "cosine"},
    {"scheduler": "step", "lr_step": 1},
    {"clip_grad_norm": 0.01},
    {"augment": True},
    {"noise": 0.5},
    {"use_amp": True},
]


@pytest.mark.parametrize("change", CHANGED, ids=lambda change: "-".join(map(str, change.values())))
def test_every_option_changes_what_is_learned(change):
    usual = {"num_epochs": 2, "batch_size": 30, "select": "loss"}  # which has fallen by the last epoch
    found = []
    for options in (ViTOptions(**usual), ViTOptions(**{**usual, **change})):
        net = model()
        train_vit(net, frames(), frames(30, seed=2), options, seed=0)
        found.append(weights(net))
    assert not found[0].equal(found[1])


def test_momentum_step_and_gamma_count_where_they_are_read():
    def trained(**change):
        net, options = model(), ViTOptions(num_epochs=3, batch_size=45, select="loss", **change)
        train_vit(net, frames(), frames(30, seed=2), options, seed=0)
        return weights(net)

    assert not trained(optimizer="sgd", momentum=0.0).equal(trained(optimizer="sgd"))
    step = {"scheduler": "step"}
    assert not trained(**step, lr_step=1).equal(trained(**step, lr_step=2))
    assert not trained(**step, lr_step=1, lr_gamma=0.5).equal(trained(**step, lr_step=1))
    assert trained(lr_gamma=0.5).equal(trained())  # nothing reads it: the rate is constant


def test_the_best_epoch_has_the_most_accuracy_or_the_least_loss(monkeypatch):
    scores = [Scores(3.0, 0.5, 1.0), Scores(2.0, 0.8, 1.0), Scores(1.0, 0.8, 1.0), Scores(1.5, 0.7, 1.0)]
    for select, best in (("accuracy", 2), ("loss", 3)):
        seen, left = [], iter(scores)

        def scripted(net, *given, left=left, seen=seen, **more):
            seen.append(weights(net))
            return next(left)

        monkeypatch.setattr(training, "evaluate", scripted)
        net, options = model(), ViTOptions(num_epochs=4, batch_size=45, select=select)
        history = train_vit(net, frames(), frames(30, seed=2), options, seed=0)
        assert history.best_epoch == best
        assert weights(net).equal(seen[best - 1])
        assert not any(one.equal(two) for one, two in pairwise(seen))


def test_plateau_lowers_the_rate_when_validation_stalls():
    options = ViTOptions(num_epochs=14, batch_size=45, lr=1e-9, scheduler="plateau", lr_gamma=0.5)
    history = train_vit(model(), frames(), frames(30, seed=2), options, seed=0)
    assert history.epochs[10]["lr"] == 1e-9
    assert history.epochs[13]["lr"] == pytest.approx(5e-10)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
@pytest.mark.parametrize("sampling", [{}, {**RANDOM, "eval_sampling": "all"}], ids=["all", "random"])
def test_a_compiled_model_learns_the_same(monkeypatch, sampling):
    # The whole model goes through the compiler's front; its back end would take a minute to build C++.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    found = []
    for compiled in (False, True):
        net = model(dropout=0.0, attention_dropout=0.0, **sampling)
        options = ViTOptions(num_epochs=1, batch_size=30, use_compiled=compiled)
        train_vit(net, frames(), frames(30, seed=2), options, seed=0)
        found.append(weights(net))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it traces
def test_a_block_is_compiled_once_for_all_that_are_alike(monkeypatch):
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted, fullgraph=True))
    monkeypatch.setattr(training, "EVALUATED", 20)
    net = model(num_layers=4)
    options = ViTOptions(num_epochs=2, batch_size=30, use_compiled=True)
    train_vit(net, frames(), frames(50, seed=2), options, seed=0)
    assert len(graphs) == 2  # one to train with and one to validate with, its last part of 10 images included


@pytest.mark.parametrize("filled", [False, True])
def test_every_image_counts_once_in_an_evaluation(monkeypatch, filled):
    net, asked = model().eval(), frames(50)
    at_once = evaluate(net, asked, ViTOptions())
    monkeypatch.setattr(training, "EVALUATED", 7)
    in_parts = evaluate(net, asked, ViTOptions(), forward=net if filled else None)
    assert in_parts.top1 == at_once.top1
    assert in_parts.loss == pytest.approx(at_once.loss)


def test_top_five_of_ten():
    logits = torch.arange(10.0).repeat(3, 1)
    assert right(logits, torch.tensor([9, 5, 4])).tolist() == [1, 2]


def test_images_are_resized_once_and_normalized():
    images, labels = pictures(20, side=16)
    stats = channel_stats(images)
    own = Frames(images, labels, size=(8, 8), stats=stats, device=CPU)
    everything = torch.arange(20)
    assert own.pixels(everything).shape == (20, 1, 8, 8)
    whole = Frames(images, labels, size=(16, 16), stats=stats, device=CPU)
    seen = whole.normalized(whole.pixels(everything))
    assert abs(float(seen.mean())) < 1e-5
    assert float(seen.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_batches_are_resized_alike_where_not_all_fit(monkeypatch):
    from attnknn.vit import frames as module

    images, labels = pictures(20, side=16)
    given = {"size": (8, 8), "stats": channel_stats(images), "device": CPU}
    fits = Frames(images, labels, **given)
    monkeypatch.setattr(module, "has_room", lambda size, device: False)
    streamed = Frames(images, labels, **given)
    at = torch.tensor([3, 0, 7])
    assert streamed.pixels(at).equal(fits.pixels(at))


def test_a_size_that_is_there_already_is_left_alone():
    images = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    assert resized(images, (5, 5)) is images
    assert resized(images, (10, 10)).dtype == torch.uint8


def test_a_saved_model_answers_as_before(tmp_path):
    net = model(layer=["ConvNNAttention", "Attention"], sampling_type="random", num_samples=3).eval()
    config = {**CONFIG, "layer": ["ConvNNAttention", "Attention"], "sampling_type": "random", "num_samples": 3}
    images, labels = pictures(9)
    trained = TrainedViT(net, config, ("a", "b", "c"), channel_stats(images), ViTOptions(criterion="MSE"))
    trained.save(tmp_path / "vit")
    again = TrainedViT.load(tmp_path / "vit")
    asked = again.frames(images, labels)
    assert evaluate(again.model, asked, again.options) == evaluate(net, asked, trained.options)
    assert again.classes == ("a", "b", "c")
    assert again.options == trained.options
    with pytest.raises(InvalidInput, match="reads images of 1 channels, got 3"):
        again.frames(np.repeat(images, 3, axis=3), labels)


def test_a_model_saved_before_there_was_a_choice_was_chosen_by_the_loss(tmp_path, monkeypatch):
    images, _ = pictures(9)
    trained = TrainedViT(model(), CONFIG, ("a", "b", "c"), channel_stats(images), ViTOptions())
    then = {name: value for name, value in trained.options.state().items() if name != "select"}
    monkeypatch.setattr(ViTOptions, "state", lambda _: then)
    trained.save(tmp_path / "vit")
    assert TrainedViT.load(tmp_path / "vit").options.select == "loss"


def test_a_damaged_folder_is_refused(tmp_path):
    images, _ = pictures(9)
    TrainedViT(model(), CONFIG, ("a", "b", "c"), channel_stats(images), ViTOptions()).save(tmp_path)
    weights_file = next(tmp_path.glob("weights-*"))
    weights_file.write_bytes(weights_file.read_bytes()[:-1])
    with pytest.raises(CorruptModel):
        TrainedViT.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"criterion": "Hinge"}, "criterion must be one of CrossEntropy, MSE, got 'Hinge'"),
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"scheduler": "linear"}, "scheduler must be one of step, cosine, plateau, none, got 'linear'"),
        ({"select": "top5"}, "select must be one of accuracy, loss, got 'top5'"),
        ({"batch_size": 0}, "batch_size .* got 0"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"num_epochs": 0}, "epochs .* got 0"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"compile_mode": "reduce-memory"}, "compile_mode must be one of"),
    ],
)
def test_options_say_what_is_wrong_with_them(change, message):
    with pytest.raises(InvalidInput, match=message):
        ViTOptions(**change)


def test_the_task_counts_what_it_has_seen():
    task = ViTTask(model(), frames(10), frames(6, seed=1), ViTOptions(batch_size=4))
    assert task.steps == 2
    random = torch.Generator().manual_seed(0)
    for batch in task.batches(random):
        task.losses(batch, random)
    seen = task.measured()
    assert seen["train_top1"] * 8 == pytest.approx(round(seen["train_top1"] * 8))
    assert 0 <= seen["train_top1"] <= seen["train_top5"] == 1


def test_statistics_do_not_depend_on_how_many_images_are_counted_at_once(monkeypatch):
    from attnknn.vit import frames as module

    images = np.random.default_rng(0).integers(0, 256, (50, 6, 7, 3)).astype(np.uint8)
    at_once = channel_stats(images)
    monkeypatch.setattr(module, "_AT_ONCE", 500)
    assert channel_stats(images) == at_once
    np.testing.assert_allclose(at_once[0], (images / 255).mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(at_once[1], (images / 255).std(axis=(0, 1, 2)))

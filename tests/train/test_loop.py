"""The loop trains as a loop written by hand does, keeps the best, and refuses what it cannot use."""

from __future__ import annotations

import copy
import io
import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from attnknn.errors import InvalidInput, MissingDevice, TrainingDiverged
from attnknn.train.loop import LoopOptions, run

QUICK = LoopOptions(epochs=4, lr=0.05)


pytestmark = pytest.mark.usefixtures("one_thread")


class Fit:
    """A small network with dropout and batch statistics, fitted to noise; ``scripted`` gives the NLLs."""

    steps = 3

    def __init__(self, *, dropout=0.3, scripted=None, norm=nn.BatchNorm1d):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, 8), norm(8), nn.Dropout(dropout), nn.Linear(8, 3))
            self.x, self.y = torch.randn(36, 4), torch.randint(3, (36,))
        self.scripted = scripted
        self.seen = []

    def batches(self, random):
        return torch.randperm(30, generator=random).chunk(self.steps)

    def losses(self, batch, random):
        noisy = self.x[batch] + 0.1 * torch.randn(len(batch), 4, generator=random)
        scores = self.model(noisy)
        return {"ce": functional.cross_entropy(scores, self.y[batch]), "size": 0.01 * scores.square().mean()}

    def validate(self):
        assert not self.model.training
        assert not torch.is_grad_enabled()
        self.seen.append(state_of(self.model))
        if self.scripted is not None:
            return self.scripted_scores(len(self.seen) - 1)
        return {"nll": functional.cross_entropy(self.model(self.x[30:]), self.y[30:]).item(), "other": 7.0}

    def scripted_scores(self, at):
        return {"nll": self.scripted[at]}


class Unjudged(Fit):
    def validate(self):
        return {}


class Graded(Fit):
    """``scripted`` gives the shares that are right; the NLL only grows."""

    def scripted_scores(self, at):
        return {"nll": float(at), "right": self.scripted[at]}


def state_of(model):
    return copy.deepcopy(dict(model.state_dict()))


def same(first, second):
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


def without(numbers, left_out):
    return {name: value for name, value in numbers.items() if name != left_out}


def without_time(history):
    return [without(each, "seconds") for each in history.epochs]


@pytest.mark.parametrize("options", [QUICK, replace(QUICK, optimizer="sgd", ema=0.9, clip=0.1, warmup=0.3)])
def test_one_seed_one_result_to_the_bit(options):
    tasks = [Fit(), Fit(), Fit()]
    histories = [run(task, options, seed=seed) for task, seed in zip(tasks, (5, 5, 6), strict=True)]
    first, second, other = (state_of(task.model) for task in tasks)
    assert same(first, second)
    assert without_time(histories[0]) == without_time(histories[1])
    assert not same(first, other)


def test_the_seed_rules_dropout_as_well():
    """Without it two runs would differ: they start from different global states, and draw the same batches."""
    results = []
    for start in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(start)
            task = Fit(dropout=0.5)
            run(task, QUICK, seed=0)
            results.append(state_of(task.model))
    assert same(*results)


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    run(Fit(), QUICK, seed=0)
    assert torch.get_rng_state().equal(before)
    with pytest.raises(TrainingDiverged):
        run(Fit(scripted=[math.nan]), QUICK, seed=0)
    assert torch.get_rng_state().equal(before)


def test_a_callback_may_draw_without_changing_the_training():
    quiet, noisy = Fit(), Fit()
    run(quiet, QUICK, seed=0)
    run(noisy, QUICK, seed=0, on_epoch=lambda _: torch.rand(3))
    assert same(state_of(quiet.model), state_of(noisy.model))


class Bare(Unjudged):
    """No dropout and no draws, so that a loop written by hand sees the same batches."""

    def batches(self, random):
        return torch.arange(30).chunk(self.steps)

    def losses(self, batch, random):
        return {"ce": functional.cross_entropy(self.model(self.x[batch]), self.y[batch])}


def test_steps_are_those_of_a_loop_written_by_hand():
    task = Bare(dropout=0.0, norm=nn.LayerNorm)
    model = copy.deepcopy(task.model)
    history = run(task, replace(QUICK, weight_decay=0.1, clip=0.4, warmup=0.25), seed=0)

    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}]
    )
    norms, losses = [], []
    for step in range(12):
        at = step + 0.5
        rate = 0.05 * (at / 3 if at < 3 else (1 + math.cos(math.pi * (at - 3) / 9)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = torch.arange(30).chunk(3)[step % 3]
        loss = functional.cross_entropy(model(task.x[batch]), task.y[batch])
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.4).item())
        optimizer.step()
    for ours, theirs in zip(task.model.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    for epoch, numbers in enumerate(history.epochs):
        mine = slice(3 * epoch, 3 * epoch + 3)
        assert numbers["loss_total"] == pytest.approx(sum(losses[mine]) / 3, rel=1e-5)
        assert numbers["gradient_norm"] == pytest.approx(sum(norms[mine]) / 3, rel=1e-4)
    assert max(norms) > 0.4  # or clipping would not have been tried
    assert history.epochs[-1]["lr"] == 0


def test_history_tells_of_every_epoch():
    told = []
    history = run(Fit(), QUICK, seed=0, on_epoch=told.append)
    assert list(history.epochs) == [without(each, "best_epoch") for each in told]
    assert [each["epoch"] for each in told] == [1, 2, 3, 4]
    for each in told:
        assert each["loss_total"] == pytest.approx(each["loss_ce"] + each["loss_size"])
        assert each["validation_other"] == 7
        assert each["seconds"] >= 0
    nlls = [each["validation_nll"] for each in told]
    so_far = [nlls[: at + 1] for at in range(4)]
    assert [each["best_epoch"] for each in told] == [1 + part.index(min(part)) for part in so_far]
    assert history.best_nll == min(nlls)
    assert history.best_epoch == 1 + nlls.index(min(nlls))
    assert not history.stopped_early


@pytest.mark.parametrize("ema", [None, 0.8])
def test_the_model_ends_with_the_weights_of_the_best_epoch(ema):
    task = Fit(scripted=[3.0, 1.0, 1.0, 2.0])
    history = run(task, replace(QUICK, ema=ema), seed=0)
    assert (history.best_epoch, history.best_nll) == (2, 1.0)  # of equals the first
    assert same(state_of(task.model), task.seen[1])
    assert not same(task.seen[1], task.seen[2])
    assert not task.model.training


@pytest.mark.parametrize("ema", [None, 0.8])
def test_the_best_epoch_may_be_the_one_with_the_most_of_another_score(ema):
    task, told = Graded(scripted=[0.2, 0.6, 0.6, 0.1]), []
    history = run(task, replace(QUICK, ema=ema, best="right"), seed=0, on_epoch=told.append)
    assert (history.best_epoch, history.best_nll) == (2, 1.0)  # of equals the first
    assert [each["best_epoch"] for each in told] == [1, 2, 2, 2]
    assert same(state_of(task.model), task.seen[1])
    assert not same(task.seen[1], task.seen[2])


def test_patience_waits_for_the_score_that_chooses():
    rights, options = [0.2, 0.5, 0.4, 0.4, 0.9], LoopOptions(epochs=5, lr=0.01, patience=2, best="right")
    history = run(Graded(scripted=rights), options, seed=0)
    assert (history.best_epoch, len(history.epochs), history.stopped_early) == (2, 4, True)


@pytest.mark.parametrize("name", ["top1", "", "NLL"])
def test_a_score_that_validation_does_not_give_cannot_choose(name):
    with pytest.raises(InvalidInput, match=f"validation at epoch 1 must give '{name}', got nll, other$"):
        run(Fit(), replace(QUICK, best=name), seed=0)


def test_a_score_that_is_not_a_number_has_diverged():
    with pytest.raises(TrainingDiverged, match="validation gives right nan at epoch 2: a lower lr"):
        run(Graded(scripted=[0.5, math.nan, 0.5, 0.5]), replace(QUICK, best="right"), seed=0)


def test_a_loss_with_a_name_of_its_own_is_told_by_it_and_chooses_as_before():
    class Squared(Fit):
        loss_name = "mse"

    losses, told = [3.0, 1.0, 2.0, 2.0], []
    history = run(Squared(scripted=losses), QUICK, seed=0, on_epoch=told.append)
    assert [each["validation_mse"] for each in history.epochs] == losses
    assert [each["validation_mse"] for each in told] == losses
    assert not any("validation_nll" in each for each in (*told, *history.epochs))
    assert (history.best_epoch, history.best_nll) == (2, None)
    with pytest.raises(TrainingDiverged, match="validation gives mse nan at epoch 1"):
        run(Squared(scripted=[math.nan] * 4), QUICK, seed=0)


def test_a_training_that_only_does_harm_returns_the_start():
    task = Fit(scripted=[1.0, 2.0, 3.0, 4.0, 5.0])
    start = state_of(task.model)
    history = run(task, replace(QUICK, validate_first=True), seed=0)
    assert same(state_of(task.model), start)
    assert history.best_epoch == 0
    assert [each["epoch"] for each in history.epochs] == [0, 1, 2, 3, 4]
    assert history.epochs[0].keys() == {"epoch", "validation_nll", "seconds"}


@pytest.mark.parametrize(
    ("nlls", "patience", "epochs_run", "early"),
    [
        ([1, 2, 2, 2], 1, 2, True),
        ([1, 2, 0.5, 2], 2, 4, False),
        ([2, 1, 3, 3], 2, 4, False),  # would stop, but the end has come anyway
        ([2, 1, 3, 3, 3], 2, 4, True),
        ([math.inf] * 4, 2, 3, True),
    ],
)
def test_training_stops_after_so_many_epochs_without_a_better_one(nlls, patience, epochs_run, early):
    history = run(Fit(scripted=nlls), LoopOptions(epochs=len(nlls), lr=0.01, patience=patience), seed=0)
    assert len(history.epochs) == epochs_run
    assert history.stopped_early is early


def test_without_validation_all_epochs_run_and_the_last_weights_stay():
    judged, unjudged = Fit(scripted=[4.0, 3.0, 2.0, 1.0]), Unjudged()
    run(judged, QUICK, seed=0)
    history = run(unjudged, QUICK, seed=0)
    assert same(state_of(judged.model), state_of(unjudged.model))
    assert (history.best_epoch, history.best_nll, len(history.epochs)) == (4, None, 4)


class Watched(Bare):
    """Notes the weights before each step, which are those after the step before."""

    def losses(self, batch, random):
        self.seen.append(state_of(self.model))
        return super().losses(batch, random)


def test_the_average_is_the_textbook_recursion_and_leaves_the_training_alone():
    plain, averaged = Watched(), Watched()
    run(plain, QUICK, seed=0)
    run(averaged, replace(QUICK, ema=0.6), seed=0)
    for before, after in zip(plain.seen, averaged.seen, strict=True):
        assert same(before, after)
    held = plain.seen[0]
    # Batch statistics are updated within a step, so that the weights after it are what counts.
    trail = [*plain.seen[1:], state_of(plain.model)]
    for t, now in enumerate(trail):
        decay = min(0.6, (1 + t) / (10 + t))
        for name, value in now.items():
            held[name] = decay * held[name] + (1 - decay) * value if value.is_floating_point() else value
    for name, value in averaged.model.state_dict().items():
        torch.testing.assert_close(value, held[name])


def test_clipping_bounds_every_step():
    task = Watched()
    run(task, LoopOptions(epochs=3, lr=1.0, optimizer="sgd", momentum=0.0, clip=1e-3), seed=0)
    names = [name for name, _ in task.model.named_parameters()]
    for before, after in zip(task.seen, task.seen[1:], strict=False):
        moved = torch.cat([(after[name] - before[name]).flatten() for name in names]).norm()
        assert 0 < moved <= 1.01e-3


def test_bfloat16_is_for_the_losses_and_the_weights_stay_float32():
    kinds = []

    class Spy(Fit):
        def losses(self, batch, random):
            kinds.append(self.model(self.x[batch]).dtype)
            return super().losses(batch, random)

    task = Spy()
    history = run(task, replace(QUICK, precision="bfloat16"), seed=0)
    assert set(kinds) == {torch.bfloat16}
    assert all(each.dtype == torch.float32 for each in task.model.parameters())
    assert history.epochs[-1]["loss_total"] > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_named_and_does_not_spoil_the_weights(bad):
    class Diverging(Fit):
        calls = 0

        def losses(self, batch, random):
            self.calls += 1
            parts = super().losses(batch, random)
            return parts | {"size": parts["size"] * (bad if self.calls == 5 else 1)}

    task = Diverging()
    with pytest.raises(TrainingDiverged, match=f"'size' is {bad} at epoch 2, step 2"):
        run(task, QUICK, seed=0)
    assert all(each.isfinite().all() for each in task.model.parameters())


def test_a_gradient_that_is_not_finite_is_named():
    class Root(Fit):
        def losses(self, batch, random):
            return {"root": (self.model(self.x[batch]) * 0).square().sum().sqrt()}  # 0, but steep

    with pytest.raises(TrainingDiverged, match="norm of the gradient is nan at epoch 1, step 1"):
        run(Root(), QUICK, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs .* got 0"),
        ({"epochs": 2.5}, "epochs .* got 2.5"),
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": math.nan}, "lr must be above 0, got nan"),
        ({"optimizer": "lion"}, "adamw, sgd, adam, got 'lion'"),
        ({"schedule": "cosine"}, "one-cycle, constant, step, plateau, got 'cosine'"),
        ({"schedule": "step", "warmup": 0.1}, "warmup must be left out: schedule='step' .* got 0.1"),
        ({"lr_step": 3}, "lr_step must be left out: schedule='one-cycle' .* got 3"),
        ({"schedule": "step", "lr_step": 0.5}, "lr_step must be a whole number of epochs, got 0.5"),
        ({"schedule": "plateau", "lr_gamma": 2.0}, "lr_gamma .* at most 1, got 2.0"),
        ({"weight_decay": -1.0}, "weight_decay .* got -1.0"),
        ({"momentum": 0.9}, "momentum .* adamw, which does not read it, got 0.9"),
        ({"optimizer": "sgd", "momentum": 1.0}, r"momentum .*\[0, 1\), got 1.0"),
        ({"warmup": 1.0}, "warmup .* got 1.0"),
        ({"clip": 0.0}, "clip .* got 0.0"),
        ({"ema": 1.0}, "ema .* got 1.0"),
        ({"patience": 0}, "patience .* got 0"),
        ({"precision": "float16"}, "float32, bfloat16, got 'float16'"),
        ({"lr_scales": {"head": -2.0}}, r"lr_scales\['head'\] .* got -2.0"),
    ],
)
def test_options_say_what_is_wrong_with_them(change, message):
    with pytest.raises(InvalidInput, match=message):
        LoopOptions(**({"epochs": 2, "lr": 0.1} | change))


@pytest.mark.parametrize("change", [{"patience": 2}, {"validate_first": True}, {"best": "right"}])
def test_an_option_that_needs_validation_is_refused_where_there_is_none(change):
    with pytest.raises(InvalidInput, match=next(iter(change))):
        run(Unjudged(), replace(QUICK, **change), seed=0)


def test_a_validation_that_is_not_a_number_has_diverged():
    with pytest.raises(TrainingDiverged, match="nan at epoch 1: a lower lr"):
        run(Fit(scripted=[math.nan]), QUICK, seed=0)


@pytest.mark.parametrize(
    ("steps", "message"), [(2, "more than the 2"), (4, "promises 4 .* gives 3"), (0, "steps=0")]
)
def test_the_number_of_batches_must_be_the_one_promised(steps, message):
    task = Fit()
    task.batches = lambda random: torch.arange(30).chunk(3)
    task.steps = steps
    with pytest.raises(InvalidInput, match=message):
        run(task, QUICK, seed=0)


def test_layers_can_have_rates_of_their_own():
    task = Bare(dropout=0.0)
    start = state_of(task.model)
    run(task, LoopOptions(epochs=1, lr=0.1, optimizer="sgd", lr_scales={"0": 1e-30}), seed=0)
    moved = {name: not each.equal(start[name]) for name, each in task.model.named_parameters()}
    assert not moved["0.weight"]
    assert moved["3.weight"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(MissingDevice, match="'cuda'"):
        run(Fit(), QUICK, seed=0, device="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_task_trains_on_a_gpu():
    class There(Fit):
        def batches(self, random):
            return torch.randperm(30, generator=random, device=random.device).chunk(3)

        def losses(self, batch, random):
            return {"ce": functional.cross_entropy(self.model(self.x[batch]), self.y[batch])}

    results = []
    for _ in range(2):
        task = There()
        task.x, task.y = task.x.cuda(), task.y.cuda()
        before = torch.cuda.get_rng_state()
        run(task, replace(QUICK, ema=0.9, precision="bfloat16"), seed=0, device="cuda")
        assert torch.cuda.get_rng_state().equal(before)
        results.append(state_of(task.model))
    for first, second in zip(results[0].values(), results[1].values(), strict=True):
        torch.testing.assert_close(first, second)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "title", "shown"),
    [(Terminal, "fitting [b]", True), (Terminal, None, False), (io.StringIO, "fitting [b]", False)],
)
def test_progress_is_shown_on_a_terminal_and_only_if_asked_for(stream, title, shown, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", stream())
    run(Fit(scripted=[0.25] * 4), QUICK, seed=0, progress=title)
    text = sys.stderr.getvalue()
    if shown:
        assert "fitting [b]" in text
        assert "epoch 4/4" in text
        assert "nll 0.2500" in text
    else:
        assert text == ""

"""Every option of training is read by something, or refused."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from attnknn import InvalidInput, TrainingOptions
from attnknn.train.settings import SMALL

UNREAD = [
    ({"momentum": 0.8}, "momentum.*adamw.*0.8"),
    ({"momentum": 0.8, "optimizer": "adamw"}, "momentum.*adamw.*0.8"),
    ({"temperature": 0.2}, "temperature=0.2.*contrastive=0"),
    ({"margin": 0.1}, "margin=0.1.*contrastive=0"),
    ({"margin": 0.0}, "margin=0.0.*contrastive=0"),
    ({"corruption": 0.3}, "corruption=0.3.*contrastive=0"),
]


@pytest.mark.parametrize(("given", "message"), UNREAD)
def test_an_option_that_nothing_would_read_is_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        TrainingOptions(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"momentum": 0.8, "optimizer": "sgd"},
        {"temperature": 0.2, "contrastive": 1.0},
        {"margin": 0.1, "contrastive": 1.0},
        {"corruption": 0.3, "contrastive": 0.5},
    ],
)
def test_it_is_taken_once_something_reads_it(given):
    assert {name: getattr(TrainingOptions(**given), name) for name in given} == given


NAN, INF = math.nan, math.inf
BAD = {
    "epochs": [0, -1, 2.5, True, "3"],
    "lr": [0.0, -1e-3, NAN, INF],
    "batch_size": [0, -1, 1.5, True, "all"],
    "candidates": [0.0, -0.1, 1.1, NAN, True, "half"],
    "optimizer": ["lion", "", None],
    "weight_decay": [-1e-4, NAN, INF],
    "warmup": [-0.1, 1.0, NAN],
    "clip": [0.0, -1.0, INF],
    "ema": [0.0, 1.0, -0.5],
    "patience": [0, -1, 1.5, True],
    "label_smoothing": [-0.1, 1.0, NAN, True],
    "auxiliary": [-1.0, NAN, INF, True, "on"],
    "contrastive": [-1.0, NAN, INF, True],
    "entropy": [-0.1, NAN, INF, True],
    "embed_dim": [0, -3, 2.0, True],
    "blocks": [-1, 0.5, False],
    "join_validation": [1, 0, None, "no"],
    "precision": ["float16", "half", 16],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_quoted_with_its_name(name, value):
    with pytest.raises(InvalidInput) as refused:
        TrainingOptions(**{name: value})
    assert name in str(refused.value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.0), ("margin", -0.1), ("corruption", 1.0)])
def test_bad_values_of_the_contrastive_loss_are_quoted_too(name, value):
    with pytest.raises(InvalidInput, match=f"{name}.*{value}"):
        TrainingOptions(contrastive=1.0, **{name: value})


def test_an_unknown_option_is_no_option():
    with pytest.raises(TypeError, match="learning_rate"):
        TrainingOptions(learning_rate=0.1)


def test_options_are_values_that_cannot_change():
    options = TrainingOptions(epochs=3)
    with pytest.raises(FrozenInstanceError):
        options.epochs = 4
    assert options == TrainingOptions(epochs=3)
    assert options != TrainingOptions()


@pytest.mark.parametrize(
    "options",
    [
        TrainingOptions(),
        TrainingOptions(epochs=3, lr=0.01, optimizer="sgd", momentum=0.5, ema=None, clip=1.0, patience=2),
        TrainingOptions(contrastive=0.5, temperature=0.3, margin=0.1, corruption=0.4, label_smoothing=0.1),
        TrainingOptions(checkpoint="some/folder", join_validation=False, precision="bfloat16", blocks=2),
    ],
)
def test_the_state_survives_json(options):
    assert TrainingOptions(**json.loads(json.dumps(options.state()))) == options


def test_a_path_is_kept_as_text():
    state = TrainingOptions(checkpoint=Path("a") / "b").state()
    assert Path(json.loads(json.dumps(state))["checkpoint"]) == Path("a") / "b"


@pytest.mark.parametrize(("rows", "epochs", "lr"), [(100, 60, 1e-3), (SMALL - 1, 60, 1e-3), (SMALL, 30, 3e-3)])
def test_what_is_usual_depends_on_the_number_of_rows(rows, epochs, lr):
    loop = TrainingOptions().loop(rows)
    assert (loop.epochs, loop.lr) == (epochs, lr)
    given = TrainingOptions(epochs=7, lr=0.5).loop(rows)
    assert (given.epochs, given.lr) == (7, 0.5)


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (40, 40), (100, 64), (800, 100), (8192, 1024), (10**6, 1024)])
def test_a_batch_is_an_eighth_of_the_rows_within_bounds(rows, batch):
    assert TrainingOptions().batch(rows) == batch
    assert TrainingOptions(batch_size=32).batch(rows) == min(32, rows)


def test_the_loop_gets_every_option_that_it_reads():
    given = {
        "epochs": 5, "lr": 0.2, "optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.1, "warmup": 0.3,
        "clip": 2.0, "ema": 0.5, "patience": 3, "precision": "bfloat16",
    }  # fmt: skip
    loop = TrainingOptions(**given).loop(1000)
    assert {name: getattr(loop, name) for name in given} == given

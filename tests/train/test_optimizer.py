"""Who is decayed, at what rate each steps, and a schedule that ends at 0."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import make_optimizer, parameter_groups, set_rate
from attnknn.train.schedule import one_cycle


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.layer10 = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(2, 2))  # of two dimensions, and yet a bias
        self.frozen = nn.Parameter(torch.zeros(5, 5), requires_grad=False)


def settings_by_name(model, *arguments):
    found = {}
    for group in parameter_groups(model, *arguments):
        for each in group["params"]:
            name = next(name for name, own in model.named_parameters() if own is each)
            assert name not in found
            found[name] = group["weight_decay"], group["lr_scale"]
    return found


def test_only_matrices_are_decayed_and_every_trained_parameter_is_in_one_group():
    settings = settings_by_name(Net(), 0.3)
    decayed = {name for name, (decay, _) in settings.items() if decay == 0.3}
    assert decayed == {"layer1.0.weight", "layer10.weight"}
    assert all(decay in (0, 0.3) and scale == 1 for decay, scale in settings.values())
    assert settings.keys() == {name for name, each in Net().named_parameters() if each.requires_grad}


def test_the_longest_name_sets_the_rate_and_layer1_is_not_layer10():
    settings = settings_by_name(Net(), 0.1, {"layer1": 0.5, "layer1.1": 0.25, "scale": 4.0})
    scales = {name: scale for name, (_, scale) in settings.items()}
    assert scales == {
        "layer1.0.weight": 0.5,
        "layer1.0.bias": 0.5,
        "layer1.1.weight": 0.25,
        "layer1.1.bias": 0.25,
        "layer10.weight": 1,
        "layer10.bias": 1,
        "scale": 4,
        "bias": 1,
    }


@pytest.mark.parametrize("name", ["layer", "frozen", "nothing"])
def test_a_rate_for_what_is_not_trained_is_refused(name):
    with pytest.raises(InvalidInput, match=f"'{name}'"):
        parameter_groups(Net(), 0.0, {"layer1": 0.5, name: 0.5})


def test_a_model_without_parameters_cannot_be_trained():
    with pytest.raises(InvalidInput, match="ReLU has no parameter"):
        parameter_groups(nn.ReLU(), 0.0)


def test_sgd_steps_as_nesterov_wrote_it():
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    groups = [{"params": [weight], "weight_decay": 0.1, "lr_scale": 0.5}]
    optimizer = make_optimizer("sgd", groups, lr=1.0, momentum=0.8)
    expected, speed = weight.detach().clone(), torch.zeros(1, 2, dtype=torch.float64)
    for step in range(4):
        set_rate(optimizer, 0.2)
        weight.grad = torch.tensor([[1.0, step]], dtype=torch.float64)
        slope = weight.grad + 0.1 * expected
        speed = 0.8 * speed + slope
        expected = expected - 0.5 * 0.2 * (slope + 0.8 * speed)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected)


def test_adamw_decays_apart_from_the_gradient():
    weight = nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    optimizer = make_optimizer("adamw", [{"params": [weight], "weight_decay": 0.1, "lr_scale": 1.0}], lr=0.01)
    weight.grad = torch.tensor([[123.0]], dtype=torch.float64)
    optimizer.step()
    # The first step of Adam is the sign of the gradient times the rate.
    assert weight.item() == pytest.approx(2 * (1 - 0.01 * 0.1) - 0.01, abs=1e-9)


@given(steps=st.integers(1, 500), warmup=st.floats(0, 0.99))
def test_the_rate_rises_to_the_top_and_falls_to_exactly_0(steps, warmup):
    points = [one_cycle(at, steps, warmup) for at in range(steps + 1)]
    rise = warmup * steps
    assert points[-1] == 0
    assert one_cycle(rise, steps, warmup) == 1
    for at, (before, after) in enumerate(pairwise(points)):
        assert 0 <= before <= 1
        if at + 1 <= rise:
            assert after > before
            assert before == pytest.approx(at / rise)
        elif at >= rise:
            assert after < before
    assert all(one_cycle(step + 0.5, steps, warmup) > 0 for step in range(steps))  # no step is lost
    middle = (rise + steps) / 2
    assert one_cycle(middle, steps, warmup) == pytest.approx(0.5)
    assert one_cycle((rise + middle) / 2, steps, warmup) == pytest.approx((1 + math.sqrt(0.5)) / 2)

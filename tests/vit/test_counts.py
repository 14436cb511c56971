"""Counts may come from NumPy: a grid of settings, the shape of an array or a file gives such integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.vit import LAYERS, create_layer, create_vit, from_reference

COUNTS = {"K": 3, "kernel_size": 3, "window_size": 4, "sparse_context_window": 2, "num_samples": 12, "dilation": 2}
COUNTS |= {"sample_padding": 0, "grid_size": 4, "dim_head": 4}


def alike(made, dim=12, heads=3, **options):
    torch.manual_seed(0)
    layer = made(dim, heads, **options).eval()
    with torch.no_grad():
        return layer, layer(torch.randn(2, 17, 12, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_counts_of_numpy_for_its_own(name, kind):
    def made(*given, **options):
        return create_layer(name, *given, branch_ratio=0.25, sampling_type="random", **options)

    plain, expected = alike(made, **COUNTS)
    layer, output = alike(made, kind(12), kind(3), **{each: kind(value) for each, value in COUNTS.items()})
    assert torch.equal(output, expected)
    assert str(layer) == str(plain)
    kept = [value for part in layer.modules() for value in vars(part).values()]
    assert not any(isinstance(value, np.generic) for value in kept)


def test_a_vit_takes_counts_of_numpy():
    sizes = {"img_size": 16, "patch_size": 4, "num_classes": 5, "in_channels": 1, "num_layers": 2, "num_heads": 2}
    sizes |= {"d_hidden": 12, "d_mlp": 24, "K": 4}
    made = create_vit("tiny", layer="KvtAttention", **{name: np.int64(value) for name, value in sizes.items()})
    assert made(torch.zeros(1, 1, 16, 16)).shape == (1, 5)
    assert str(made) == str(create_vit("tiny", layer="KvtAttention", **sizes))


def test_a_layer_of_the_reference_takes_counts_of_numpy():
    state = {f"W_{name}.weight": torch.eye(12) for name in "qkvo"} | {"conv.weight": torch.ones(12, 1, 3)}
    kwargs = {"d_hidden": np.int64(12), "num_heads": np.int32(1), "attention_dropout": 0.0, "K": np.int64(3)}
    assert from_reference("MultiHeadConvNNAttention", kwargs, state)(torch.zeros(1, 5, 12)).shape == (1, 5, 12)


@pytest.mark.parametrize("wrong", [True, np.True_, np.float64(2.5), np.int64(0), "3", None])
@pytest.mark.parametrize("name", ["dim", "num_heads", "K"])
def test_what_is_no_count_is_still_refused(name, wrong):
    with pytest.raises(InvalidInput, match=name):
        create_layer("ConvNNAttention", **{"dim": 12, "num_heads": 3, "K": 3, name: wrong})

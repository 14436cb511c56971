"""The token layers and the trainer on a GPU: the same answers as on the CPU, and a training that learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnknn.vit import LAYERS, ViT, ViTOptions, create_layer, train_vit
from attnknn.vit.frames import Frames, channel_stats
from attnknn.vit.grid import Draws
from attnknn.vit.training import ViTTask, evaluate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VARIANTS = [
    *({"layer": name} for name in LAYERS),
    *({"layer": "ConvNNAttention", "convolution_type": kind} for kind in ("standard", "depthwise-separable")),
    *({"layer": "ConvNNAttention", "magnitude_type": kind} for kind in ("cosine", "euclidean")),
    {"layer": "ConvNNAttention", "coordinate_encoding": True},
    {"layer": "ConvNNAttention", "softmax_topk_val": False},
    *({"layer": name, "sampling_type": "random", "num_samples": 16} for name in ("ConvNNAttention", "Attention")),
    *({"layer": name, "sampling_type": "spatial", "num_samples": 4} for name in ("ConvNNAttention", "Attention")),
]


def told(variant):
    return "-".join(map(str, variant.values()))


def built(variant, seed=0):
    torch.manual_seed(seed)
    options = {key: value for key, value in variant.items() if key != "layer"}
    K = 3 if variant["layer"] == "NeighborhoodAttention2D" else 9
    return create_layer(variant["layer"], dim=48, num_heads=3, K=K, grid_size=8, **options).eval()


def halves():
    """Images to train on and images to test on: the upper half tells the class."""
    labels = np.arange(600) % 2
    images = np.random.default_rng(0).integers(0, 120, (600, 16, 16, 3)).astype(np.uint8)
    images[labels == 1, :8] += 80
    given = {"size": (16, 16), "stats": channel_stats(images), "device": torch.device("cuda")}
    return tuple(Frames(images[at], labels[at], **given) for at in (slice(0, 500), slice(500, 600)))


@pytest.mark.parametrize("variant", VARIANTS, ids=told)
def test_a_layer_answers_and_learns_as_on_the_cpu(variant):
    here, there = built(variant), built(variant).cuda()
    x = torch.randn(2, 65, 48, generator=torch.Generator().manual_seed(1))
    one, two = x.clone().requires_grad_(), x.cuda().requires_grad_()
    expected, got = here(one), there(two)
    torch.testing.assert_close(got.cpu(), expected, atol=2e-4, rtol=1e-3)
    expected.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(two.grad.cpu(), one.grad, atol=2e-3, rtol=1e-2)
    for (name, own), other in zip(here.named_parameters(), there.parameters(), strict=True):
        if own.grad is not None:
            torch.testing.assert_close(other.grad.cpu(), own.grad, atol=2e-2, rtol=1e-2, msg=name)


@pytest.mark.parametrize("variant", VARIANTS, ids=told)
def test_a_layer_takes_half_precision(variant):
    layer = built(variant).cuda()
    x = torch.randn(2, 65, 48, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_ties_go_to_the_lower_token_on_a_gpu_too():
    layer = built({"layer": "ConvNNAttention"}).cuda()
    _, kept = layer(torch.ones(1, 65, 48, device="cuda"), return_indices=True)
    assert kept.cpu().equal(torch.arange(9).expand(1, 3, 65, 9))


@pytest.mark.parametrize("variant", VARIANTS, ids=told)
def test_recorded_steps_do_what_steps_do(variant, monkeypatch):
    """A step that could not be recorded would warn, which is an error here."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    found = []
    for recorded in (True, False):
        if not recorded:
            monkeypatch.setattr(ViTTask, "recordable", False)
        rows, held = halves()
        torch.manual_seed(0)
        given = {"K": 3 if variant["layer"] == "NeighborhoodAttention2D" else 5, **variant}
        model = ViT(
            given.pop("layer"),
            img_size=16,
            patch_size=2,
            num_classes=2,
            num_layers=2,
            d_hidden=48,
            d_mlp=96,
            **given,
        )
        options = ViTOptions(num_epochs=3, batch_size=100, augment=True, noise=0.1, clip_grad_norm=1.0)
        found.append(train_vit(model, rows, held, options, seed=0))
        if recorded:
            assert len(replays) == 11
    for one, two in zip(*(each.epochs for each in found), strict=True):
        for name in ("loss_train", "train_top1", "lr", "gradient_norm"):
            assert one[name] == pytest.approx(two[name], rel=0.05, abs=0.02), name


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo of some releases of torch looks for it
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layer", ["ConvNNAttention", "Attention"])
def test_recorded_steps_see_new_draws(layer, compiled, monkeypatch):
    """At a rate of next to nothing a loss tells only what was drawn; draws that stood still would change it."""
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    rows, held = halves()
    given = {"img_size": 16, "patch_size": 2, "num_classes": 2, "num_layers": 2, "d_hidden": 48, "d_mlp": 96}
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    options = ViTOptions(num_epochs=3, batch_size=100, optimizer="sgd", lr=1e-9, use_compiled=compiled)
    losses, states, hold = [], [], Draws.hold
    for manner in ("recorded", "stepwise", "standing still"):
        if manner == "stepwise":
            assert len(replays) == 11
            monkeypatch.setattr(ViTTask, "recordable", False)
        elif manner == "standing still":
            few = iter(range(4))
            monkeypatch.setattr(
                Draws, "hold", lambda draws, few=few: None if next(few, None) is None else hold(draws)
            )
        torch.manual_seed(0)
        model = ViT(layer, K=3, sampling_type="random", num_samples=5, **given, **still)
        history = train_vit(model, rows, held, options, seed=0)
        losses.append([each["loss_train"] for each in history.epochs])
        states.append(
            torch.stack([each.attention.sampler.get_extra_state() for each in model.transformer_encoder])
        )
    recorded, stepwise, standing = losses
    assert recorded == pytest.approx(stepwise, rel=2e-4)
    assert standing != pytest.approx(stepwise, rel=2e-3)
    assert states[0].equal(states[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo of some releases of torch looks for it
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sampling", ["all", "random"])
def test_a_training_learns(compiled, sampling):
    rows, held = halves()
    torch.manual_seed(0)
    model = ViT(
        *("ConvNNAttention",),
        img_size=16,
        patch_size=4,
        num_classes=2,
        num_layers=2,
        d_hidden=48,
        d_mlp=96,
        K=5,
        sampling_type=sampling,
        num_samples=8 if sampling == "random" else -1,
    )
    options = ViTOptions(num_epochs=8, batch_size=100, use_amp=True, use_compiled=compiled)
    train_vit(model, rows, held, options, seed=0)
    assert evaluate(model, held, options).top1 > 0.95


def test_what_is_quadratic_is_not_kept_for_backward():
    def peak(name):
        torch.manual_seed(0)
        layer = create_layer(name, dim=192, num_heads=3, K=9).cuda()
        x = torch.randn(1, 4096, 192, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer(x).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    scores = 3 * 4096 * 4096 * 4
    assert peak("ConvNNAttention") < 2.5 * scores

"""The Vision Transformer: its sizes, its options, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from attnknn import vit as room
from attnknn.errors import InvalidInput
from attnknn.vit import LAYERS, SIZES, MultiHeadAttention, MultiHeadConvNNAttention, ViT, create_vit
from attnknn.vit.model import PatchEmbedding, sinusoidal

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"img_size": 32, "patch_size": 8, "num_layers": 2, "d_hidden": 24, "num_heads": 3, "d_mlp": 48, "K": 4}


def small(layer="ConvNNAttention", **options):
    torch.manual_seed(0)
    return ViT(layer, **{**SMALL, **options}).eval()


def images(seed=0, height=32, width=32, channels=3, batch=2):
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))


def parameters(model):
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(
    ("layer", "options", "count"),
    [
        ("Attention", {}, 5_479_306),
        ("KvtAttention", {}, 5_479_306),
        ("ConvNNAttention", {"num_heads": 1}, 5_500_042),
        ("ConvNNAttention", {}, 5_486_218),
        ("LocalAttention", {"num_heads": 1, "dim_head": 64}, 4_299_658),
        ("BranchConv", {"num_heads": 1, "kernel_size": 9}, 5_827_210),
        ("BranchAttention", {"num_heads": 1}, 5_049_610),
        ("Attention", {"num_classes": 100}, 5_479_306 + 17_370),
    ],
)
def test_a_tiny_model_has_as_many_parameters_as_the_reference(layer, options, count):
    with torch.device("meta"):
        assert parameters(create_vit("tiny", layer=layer, **options)) == count


@pytest.mark.parametrize("layer", LAYERS)
def test_a_model_of_shapes_alone_runs(layer):
    with torch.device("meta"):
        model = create_vit("tiny", layer=layer, sampling_type="random", num_samples=32)
        assert model(torch.randn(2, 3, 224, 224)).shape == (2, 10)


@pytest.mark.parametrize(("size", "millions"), [("tiny", 5.5), ("small", 21.7), ("base", 86.4)])
def test_sizes_are_the_usual_ones(size, millions):
    with torch.device("meta"):
        model = create_vit(size, layer="Attention", num_classes=1000)
    assert (len(model.transformer_encoder), model.classifier.in_features) == SIZES[size][:2]
    assert parameters(model) / 1e6 == pytest.approx(millions, rel=0.05)


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_works_in_a_model_and_trains(layer, pool):
    model = small(layer, pool=pool, final_norm=True, positions="learned").train()
    logits = model(images())
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(each.grad.isfinite().all() for each in model.parameters())


def test_each_block_may_have_its_own_layer():
    model = small(["Attention", "ConvNNAttention"])
    kinds = [type(block.attention) for block in model.transformer_encoder]
    assert kinds == [MultiHeadAttention, MultiHeadConvNNAttention]
    kept = model.kept_tokens(images())
    assert kept[0] is None
    assert kept[1].shape == (2, 3, 17, 4)


def test_kept_tokens_are_those_of_the_forward_pass():
    model, seen = small("KvtAttention"), []
    for block in model.transformer_encoder:
        block.norm1.register_forward_hook(lambda part, given, out, block=block: seen.append((block, out)))
    kept = model.kept_tokens(images())
    for (block, tokens), indices in zip(seen, kept, strict=True):
        assert torch.equal(block.attention(tokens, return_indices=True)[1], indices)


@pytest.mark.parametrize(("height", "width", "patch"), [(32, 48, 8), (30, 33, 8), (28, 28, (7, 14)), (5, 5, 8)])
@pytest.mark.parametrize("layer", ["ConvNNAttention", "NeighborhoodAttention2D"])
def test_images_and_patches_of_any_size(layer, height, width, patch):
    model = small(layer, img_size=(height, width), patch_size=patch, K=2, coordinate_encoding=True)
    rows, columns = (
        math.ceil(side / each)
        for side, each in zip((height, width), model.patch_embedding.patch_size, strict=True)
    )
    assert model.grid_size == (rows, columns)
    assert model.features(images(height=height, width=width)).shape == (2, 1 + rows * columns, 24)


def test_an_image_is_continued_with_zeros_where_patches_do_not_divide_it():
    embedding, image = PatchEmbedding(24, (8, 8), 3), images(height=30, width=27)
    whole = torch.zeros(2, 3, 32, 32)
    whole[:, :, :30, :27] = image
    torch.testing.assert_close(embedding(image), embedding(whole))


def test_patches_are_tokens_row_by_row():
    model = small()
    image = images()
    changed = image.clone()
    changed[:, :, 8:16, 16:24] += 1.0
    gap = (model.patch_embedding(changed) - model.patch_embedding(image)).abs().sum(dim=(0, 2))
    assert gap.nonzero().flatten().tolist() == [1 * 4 + 2]


def test_mean_pooling_is_the_mean_of_patches_without_a_class_token():
    model = small(pool="mean")
    tokens = model.features(images())
    assert tokens.shape[1] == 16
    torch.testing.assert_close(model(images()), model.classifier(tokens.mean(dim=1)))


@pytest.mark.parametrize("dim", [2, 7, 24])
def test_positions_are_sines_and_cosines(dim):
    waves = sinusoidal(5, dim)
    for place in range(5):
        for channel in range(dim):
            angle = place / 10000 ** (2 * (channel // 2) / dim)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert waves[place, channel].item() == pytest.approx(expected, abs=1e-6)


def test_learned_positions_are_parameters_and_sines_are_not():
    names = [dict(small(positions=kind).named_parameters()) for kind in ("learned", "sinusoidal")]
    assert ["positional_encoding.pe" in each for each in names] == [True, False]
    assert all(
        "positional_encoding.pe" in small(positions=kind).state_dict() for kind in ("learned", "sinusoidal")
    )


def test_odd_widths_work():
    model = small(d_hidden=15, num_heads=5)
    assert model(images()).isfinite().all()


def test_a_model_in_bfloat16_and_under_autocast_gives_numbers():
    model = small("ConvNNAttention", sampling_type="random", num_samples=8)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.train()(images()).isfinite().all()
    assert model.bfloat16()(images().bfloat16()).dtype == torch.bfloat16


def test_a_seed_before_the_model_is_made_decides_everything():
    options = {"sampling_type": "random", "num_samples": 8}
    one, other = small(**options), small(**options)
    assert torch.equal(one(images()), other(images()))
    assert not torch.equal(one.train()(images()), one(images()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"K": 18}, "K=18 is more than the 17 tokens"),
        ({"K": 0}, "K must be"),
        ({"num_heads": 5}, "num_heads must divide dim"),
        ({"layer": "BranchAttention", "branch_ratio": 0.3}, "does not divide"),
        ({"sampling_type": "spatial", "num_samples": 5}, "5 x 5 .* 4 x 4 patches"),
        ({"layer": ["Attention"]}, "each of 2 blocks, got 1 names"),
        ({"layer": "Mystery"}, "'Mystery'"),
        ({"pool": "max"}, "pool must be one of cls, mean, got 'max'"),
        ({"positions": "rotary"}, "'rotary'"),
        ({"patch_size": 0}, "patch_size"),
        ({"img_size": (3, 32, 32)}, "img_size must be a number or"),
        ({"dropout": -0.1}, "dropout"),
        ({"dropout": "x"}, "dropout must be .* got 'x'"),
        ({"final_norm": "no"}, "final_norm must be True or False, got 'no'"),
        ({"num_classes": 0}, "num_classes"),
        ({"aggregation_type": "Col"}, "no layer has an option 'aggregation_type'"),
    ],
)
def test_wrong_arguments_are_refused_when_the_model_is_made(options, message):
    with pytest.raises(InvalidInput, match=message):
        small(**options)


def test_an_unknown_size_and_wrong_images_are_refused():
    with pytest.raises(InvalidInput, match="size must be one of tiny, small, base, got 'huge'"):
        create_vit("huge", layer="Attention")
    with pytest.raises(InvalidInput, match=r"expected images \(batch, 3, 32, 32\), got \(2, 1, 32, 32\)"):
        small()(images(channels=1))


def test_every_public_name_of_the_room_is_there():
    assert sorted(room.__all__, key=lambda name: (not name.isupper(), name)) == room.__all__
    for name in room.__all__:
        assert getattr(room, name).__doc__, name
        assert name in dir(room)
    with pytest.raises(AttributeError, match="no_such_name"):
        room.no_such_name  # noqa: B018

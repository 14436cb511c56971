"""The image embedder: what goes in, what comes out, what learns and what does not."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnknn.embed.images import ImageEmbedder, embed_images
from attnknn.embed.resnet import ResNet
from attnknn.errors import InvalidInput, MissingData

pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count, side=16, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def started(side=16, channels=3, **options):
    torch.manual_seed(0)
    return ImageEmbedder.start(pictures(8, side, channels), **{"embed_dim": 16, **options}).eval()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file as torchvision would write it, with its last layer and with statistics that are not 0 and 1."""
    torch.manual_seed(1)
    model = ResNet(18, stem="large")
    model(torch.randn(4, 3, 64, 64))
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save({**model.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, path)
    return path


@pytest.mark.parametrize(
    ("backbone", "side", "channels"),
    [("resnet18", 28, 1), ("resnet18", 64, 3), ("resnet18", 224, 1), ("resnet50", 32, 1), ("resnet50", 96, 3)],
)
def test_images_become_vectors_of_unit_length(backbone, side, channels):
    network = started(side, channels, backbone=backbone)
    vectors = embed_images(network, pictures(2, side, channels, seed=1))
    assert vectors.shape == (2, network.embed_dim) == (2, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert not np.allclose(vectors[0], vectors[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "kernel"), [((28, 28), 3), ((64, 64), 3), ((65, 32), 7), ((224, 224), 7)])
def test_sides_up_to_64_have_the_small_stem_in_gray_and_in_color(size, kernel, channels):
    network = ImageEmbedder(image_size=size, in_channels=channels)
    assert network.trunk.conv1.weight.shape == (64, channels, kernel, kernel)
    assert network.trunk.stem == ("small" if kernel == 3 else "large")


def test_mean_and_std_are_those_of_the_training_images():
    images = pictures(20, 9) // np.array([1, 2, 4], np.uint8)
    network = ImageEmbedder.start(images)
    np.testing.assert_allclose(network.mean.flatten(), images.mean(axis=(0, 1, 2)) / 255, rtol=1e-5)
    np.testing.assert_allclose(network.std.flatten(), images.std(axis=(0, 1, 2)) / 255, rtol=1e-5)
    pixels = network.pixels(network.front(torch.from_numpy(images)))
    assert float(pixels.max()) <= 1
    normalized = network.normalized(pixels)
    torch.testing.assert_close(normalized.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalized.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_a_given_mean_and_std_are_kept():
    network = ImageEmbedder.start(pictures(2), mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
    np.testing.assert_allclose(network.mean.flatten(), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(network.std.flatten(), [0.4, 0.5, 0.6])


def test_of_many_ordered_images_some_from_all_over_are_looked_at():
    images = np.sort(pictures(25_001, 1, 1).reshape(-1)).reshape(-1, 1, 1, 1).repeat(4, axis=1)
    network = ImageEmbedder.start(images)
    assert float(network.mean) == pytest.approx(images.mean() / 255, rel=1e-3)
    assert float(network.std) == pytest.approx(images.std() / 255, rel=1e-3)


def test_images_of_one_color_give_finite_vectors():
    images = np.full((4, 8, 8, 3), 7, np.uint8)
    assert np.isfinite(embed_images(ImageEmbedder.start(images, embed_dim=4), images)).all()


def test_the_front_only_moves_axes_and_the_body_takes_bytes_and_floats_alike():
    network, images = started(), torch.from_numpy(pictures(3, seed=1))
    front = network.front(images)
    assert front.dtype == torch.uint8
    assert front.data_ptr() == images.data_ptr()
    assert torch.equal(front[1, 2], images[1, :, :, 2])
    with torch.no_grad():
        assert torch.equal(network(images), network.body(front))
        torch.testing.assert_close(network.body(front.double().div(255).float()), network(images))


def test_vectors_are_the_projection_of_what_a_head_would_read():
    network = started(classes=5)
    front = network.front(torch.from_numpy(pictures(3, seed=1)))
    wide, norm, gelu, narrow = network.projection
    assert [type(each) for each in network.projection] == [nn.Linear, nn.LayerNorm, nn.GELU, nn.Linear]
    with torch.no_grad():
        features = network.trunk_features(front)
        assert features.shape == (3, 512)
        inner = narrow(gelu(norm(wide(features))))
        torch.testing.assert_close(network.body(front), inner / inner.norm(dim=1, keepdim=True))
        torch.testing.assert_close(
            network.head_logits(features), features @ network.head.weight.T + network.head.bias
        )
    with pytest.raises(InvalidInput, match="classes"):
        started().head_logits(features)


def test_without_a_projection_vectors_are_directions_of_the_features():
    network, images = started(projection=None), pictures(3, seed=1)
    assert network.embed_dim == 512
    with torch.no_grad():
        features = network.trunk_features(network.front(torch.from_numpy(images)))
    np.testing.assert_allclose(embed_images(network, images), F.normalize(features, dim=1), atol=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"projection": None}, {"classes": 3, "backbone": "resnet50"}, {"frozen": True}], ids=str
)
def test_shape_and_weights_make_the_same_network_again(options):
    torch.manual_seed(0)
    images = pictures(4, 12, 1)
    network = ImageEmbedder(image_size=(12, 12), in_channels=1, embed_dim=8, mean=[0.3], std=[0.2], **options)
    with torch.no_grad():
        network.trunk.train()(torch.randn(8, 1, 12, 12))  # statistics of BatchNorm are part of what comes back
    twin = ImageEmbedder(**json.loads(json.dumps(network.shape())))
    twin.load_state_dict(network.state_dict())
    assert twin.shape() == network.shape()
    np.testing.assert_array_equal(embed_images(twin, images), embed_images(network, images))


def test_embedding_is_the_same_every_time_and_leaves_the_network_in_eval_mode():
    network, images = started().train(), pictures(5, seed=2)
    first = embed_images(network, images)
    assert not network.training
    np.testing.assert_array_equal(embed_images(network, images), first)


def test_batches_of_any_size_and_arrays_of_any_layout_give_the_same_vectors():
    network, images = started(), pictures(7, seed=2)
    whole = embed_images(network, images)
    np.testing.assert_allclose(embed_images(network, images, batch=3), whole, atol=1e-5)
    fixed = images.copy()
    fixed.flags.writeable = False
    np.testing.assert_allclose(embed_images(network, fixed), whole, atol=1e-6)
    np.testing.assert_allclose(embed_images(network, images[::-1]), whole[::-1], atol=1e-5)
    assert embed_images(network, images[:0]).shape == (0, 16)


def test_channels_last_and_bfloat16_say_the_same():
    network, images = started(), pictures(4, seed=2)
    plain = embed_images(network, images)
    coarse = embed_images(network, images, precision="bfloat16")
    assert coarse.dtype == np.float32
    assert (coarse != plain).any()
    assert (coarse * plain).sum(axis=1).min() > 0.99
    np.testing.assert_allclose(np.linalg.norm(coarse, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(
        embed_images(network.to(memory_format=torch.channels_last), images), plain, atol=1e-5
    )


def one_step(network, images, labels):
    """Cross-entropy of the vectors in training mode; its gradients are left for the optimizer."""
    network.train()
    network.zero_grad()
    loss = F.cross_entropy(10 * network(images), labels)
    loss.backward()
    return loss


def test_a_frozen_trunk_gets_no_gradient_and_its_statistics_do_not_move():
    torch.manual_seed(0)
    network = ImageEmbedder(image_size=(16, 16), embed_dim=4, frozen=True)
    before = copy.deepcopy(network.trunk.state_dict())
    optimizer = torch.optim.SGD(
        [each for each in network.parameters() if each.requires_grad], lr=0.1, weight_decay=0.1
    )
    one_step(network, torch.from_numpy(pictures(4)), torch.tensor([0, 1, 2, 3]))
    assert network.training
    assert not network.trunk.training
    assert all(each.grad is None for each in network.trunk.parameters())
    assert all(each.grad is not None for each in network.projection.parameters())
    optimizer.step()
    for name, each in network.trunk.state_dict().items():
        assert torch.equal(each, before[name]), name


def test_a_trunk_that_is_not_frozen_gets_gradients_and_counts():
    network = started(embed_dim=4)
    before = network.trunk.bn1.running_mean.clone()
    one_step(network, torch.from_numpy(pictures(4)), torch.tensor([0, 1, 2, 3]))
    assert all(each.grad is not None and each.grad.isfinite().all() for each in network.parameters())
    assert not torch.equal(network.trunk.bn1.running_mean, before)


def test_a_few_steps_on_a_few_images_teach_it_two_classes():
    torch.manual_seed(0)
    images, labels = torch.from_numpy(pictures(16)), torch.arange(16) % 2
    network = ImageEmbedder.start(images.numpy(), embed_dim=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    losses = []
    for _ in range(6):
        losses.append(float(one_step(network, images, labels).detach()))
        optimizer.step()
    assert losses[-1] < 0.1 * losses[0]


def test_a_frozen_trunk_has_all_of_its_weights_from_the_file_and_the_mean_they_were_trained_with(weights):
    network = ImageEmbedder.start(pictures(2, 80), weights=weights, frozen=True, projection=None)
    stored = torch.load(weights, weights_only=True)
    assert network.notes == ()
    assert all(torch.equal(each, stored[name]) for name, each in network.trunk.state_dict().items())
    np.testing.assert_allclose(network.mean.flatten(), [0.485, 0.456, 0.406])
    np.testing.assert_allclose(network.std.flatten(), [0.229, 0.224, 0.225])


def test_a_stem_that_does_not_fit_is_noted_and_gray_images_keep_their_own_mean(weights):
    images = pictures(2, 16, 1)
    network = ImageEmbedder.start(images, weights=weights)
    (note,) = network.notes
    assert "stem" in note
    assert torch.equal(network.trunk.layer4[1].conv2.weight, torch.load(weights)["layer4.1.conv2.weight"])
    assert float(network.mean) == pytest.approx(images.mean() / 255)


def test_a_frozen_backbone_that_would_stay_random_is_refused(weights):
    with pytest.raises(InvalidInput, match=r"resnet50.*weights"):
        ImageEmbedder.start(pictures(2), backbone="resnet50", frozen=True)
    with pytest.raises(InvalidInput, match=r"resnet18.*stem"):
        ImageEmbedder.start(pictures(2), frozen=True, weights=weights)


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (pictures(2).astype(np.float32), {}, "float32"),
        (pictures(2)[..., 0], {}, r"\(2, 16, 16\)"),
        (pictures(0), {}, r"\(0, 16, 16, 3\)"),
        (pictures(2, channels=4), {}, "4"),
        (pictures(2), {"backbone": "resnet34"}, "resnet34"),
        (pictures(2), {"projection": "linear"}, "linear"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(images, options, words):
    with pytest.raises(InvalidInput, match=words):
        ImageEmbedder.start(images, **options)


def test_weights_that_are_not_there_are_missing(tmp_path):
    with pytest.raises(MissingData, match="nowhere"):
        ImageEmbedder.start(pictures(2), weights=tmp_path / "nowhere.pth")


def test_images_of_another_size_or_type_are_refused():
    network = started()
    with pytest.raises(InvalidInput, match=r"16, 16, 3.*16, 17, 3"):
        embed_images(network, np.zeros((2, 16, 17, 3), np.uint8))
    with pytest.raises(InvalidInput, match="int64"):
        embed_images(network, pictures(2).astype(np.int64))
    with pytest.raises(InvalidInput, match="batch"):
        embed_images(network, pictures(2), batch=0)
    with pytest.raises(InvalidInput, match="float16"):
        embed_images(network, pictures(2), precision="float16")

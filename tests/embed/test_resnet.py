"""The ResNets are torchvision's: same names, same shapes, same numbers out, and its files go in."""

from __future__ import annotations

import importlib.util
import io
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attnknn.embed.resnet import ResNet, load_torchvision, read_torchvision
from attnknn.errors import CorruptModel, InvalidInput, MissingData

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = json.loads((GOLDEN / "torchvision-resnet.json").read_text())
BUILT = {"resnet18": (18, "large"), "resnet50": (50, "large"), "resnet18-small": (18, "small")}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def maker():
    """The script that wrote the golden file: its rule gives the weights again."""
    spec = importlib.util.spec_from_file_location("make_torchvision", GOLDEN / "make_torchvision.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(name, **options):
    depth, stem = BUILT[name]
    return ResNet(depth, stem=stem, **options).eval()


@pytest.fixture(scope="module")
def weights(maker):
    """The weights of torchvision's resnet18 as recorded, with its last layer."""
    return {name: maker.filled(name, kind) for name, kind in RECORDED["resnet18"]["keys"].items()}


@pytest.mark.parametrize("name", BUILT)
def test_tensors_are_named_and_shaped_as_torchvision_does_it_but_for_the_last_layer(name):
    theirs = {key: kind for key, kind in RECORDED[name]["keys"].items() if not key.startswith("fc.")}
    ours = {key: " ".join(map(str, (*each.shape, each.dtype))) for key, each in built(name).state_dict().items()}
    assert ours == theirs


@pytest.mark.parametrize("name", BUILT)
def test_with_the_same_weights_every_stage_says_what_torchvision_says(name, maker):
    model = built(name)
    state = {key: maker.filled(key, kind) for key, kind in RECORDED[name]["keys"].items()}
    assert load_torchvision(model, state) == []
    said = {}
    for layer in maker.LAYERS:
        model.get_submodule(layer).register_forward_hook(lambda _, __, out, at=layer: said.update({at: out}))
    with torch.no_grad():
        features = model(maker.images())
    assert features.shape == (2, model.width)
    for layer in maker.LAYERS:
        near(maker.some(said[layer], 8), RECORDED[name]["layers"][layer])
    near(maker.some(features, 32), RECORDED[name]["features"])


def near(ours, theirs):
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-4 * max(theirs))


@pytest.mark.parametrize(
    ("name", "width", "count"), [("resnet18", 512, 11_176_512), ("resnet50", 2048, 23_508_032)]
)
def test_trunks_have_as_many_parameters_as_torchvision_without_its_last_layer(name, width, count):
    model = built(name)
    assert model.width == width
    assert sum(each.numel() for each in model.parameters()) == count


@pytest.mark.parametrize(("stem", "side"), [("small", 8), ("large", 2)])
def test_only_the_large_stem_shrinks_the_image_before_the_first_stage(stem, side):
    model, seen = ResNet(18, stem=stem, in_channels=1), []
    model.layer1.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[-2:]))
    model(torch.zeros(2, 1, 8, 8))
    assert seen == [(side, side)]


def test_convolutions_start_with_the_variance_of_he_over_what_goes_out_and_norms_as_the_identity():
    torch.manual_seed(0)
    for module in ResNet(18).modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_in_channels_last_and_under_bfloat16_it_says_the_same(weights):
    model = built("resnet18")
    load_torchvision(model, weights)
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        plain = model(images)
        other = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
        with torch.autocast("cpu", torch.bfloat16):
            coarse = model(images)
    torch.testing.assert_close(other, plain, rtol=1e-4, atol=1e-4)
    assert coarse.dtype == torch.bfloat16
    assert float((coarse - plain).norm() / plain.norm()) < 0.03


@pytest.mark.parametrize(("stem", "channels"), [("small", 3), ("large", 1), ("small", 1)])
def test_a_stem_of_another_shape_keeps_its_start_and_is_told_of(weights, stem, channels):
    model = ResNet(18, stem=stem, in_channels=channels)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    (message,) = load_torchvision(model, weights)
    assert "stem" in message
    assert "(64, 3, 7, 7)" in message
    assert str(tuple(model.conv1.weight.shape)) in message
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name] if name.startswith(("conv1.", "bn1.")) else weights[name]), name


def test_a_file_without_a_stem_is_told_of_too(weights):
    (message,) = load_torchvision(
        ResNet(18), {name: each for name, each in weights.items() if name != "conv1.weight"}
    )
    assert "conv1.weight" in message


def test_files_without_counters_and_last_layer_are_whole(weights):
    bare = {
        name: each for name, each in weights.items() if not name.startswith("fc.") and "num_batches" not in name
    }
    assert len(bare) == 100
    assert load_torchvision(ResNet(18), bare) == []


BROKEN = [
    ("layer3.1.bn2.weight", lambda state, name: state.pop(name)),
    ("bn1.running_var", lambda state, name: state.pop(name)),
    ("layer1.2.conv1.weight", lambda state, name: state.update({name: torch.zeros(64, 64, 3, 3)})),
    ("layer2.0.conv2.weight", lambda state, name: state.update({name: torch.zeros(128, 128, 1, 1)})),
]


@pytest.mark.parametrize(("name", "broken"), BROKEN, ids=[name for name, _ in BROKEN])
def test_weights_of_another_network_are_refused_by_name_and_change_nothing(weights, name, broken):
    model, state = ResNet(18), dict(weights)
    before = {key: each.clone() for key, each in model.state_dict().items()}
    broken(state, name)
    with pytest.raises(InvalidInput, match=name.replace(".", r"\.")):
        load_torchvision(model, state)
    assert all(torch.equal(each, before[key]) for key, each in model.state_dict().items())


@pytest.mark.parametrize("options", [{"depth": 34}, {"depth": 18, "stem": "medium"}])
def test_other_depths_and_stems_are_refused(options):
    with pytest.raises(InvalidInput, match=r"34|medium"):
        ResNet(**options)


def test_files_of_both_kinds_are_read_to_the_bit(tmp_path):
    state = {"fc.bias": torch.arange(3.0), "bn1.weight": torch.randn(4)}
    torch.save(state, tmp_path / "weights.pth")
    save_file(state, tmp_path / "weights.safetensors")
    for name in ("weights.pth", "weights.safetensors"):
        read = read_torchvision(tmp_path / name)
        assert read.keys() == state.keys()
        assert all(torch.equal(read[key], each) for key, each in state.items())


class Payload:
    """A pickle that would do something when read."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


UNREADABLE = {
    "empty": b"",
    "text": b"<!doctype html><title>404</title>",
    "cut": saved({"conv1.weight": torch.zeros(1000)})[:-700],
    "payload": saved({"conv1.weight": Payload()}),
}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", UNREADABLE)
def test_broken_files_are_refused_by_name_and_nothing_in_them_runs(tmp_path, monkeypatch, content, suffix):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(UNREADABLE[content])
    with pytest.raises(CorruptModel, match="weights"):
        read_torchvision(path)
    assert not Path("executed").exists()


@pytest.mark.parametrize("value", [[torch.zeros(2)], {}, {"epoch": 3}, {1: torch.zeros(2)}, torch.zeros(2)])
def test_files_of_something_else_are_refused_by_name(tmp_path, value):
    torch.save(value, tmp_path / "weights.pth")
    with pytest.raises(InvalidInput, match=r"weights\.pth"):
        read_torchvision(tmp_path / "weights.pth")


def test_a_file_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(MissingData, match=r"weights\.pth"):
        read_torchvision(tmp_path / "weights.pth")

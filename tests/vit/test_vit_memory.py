"""What a training takes at the least: never more than it does take, and too much is refused before it is made."""

from __future__ import annotations

import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import make_optimizer, parameter_groups
from attnknn.vit import LAYERS, ViT, ViTOptions, memory
from attnknn.vit.memory import least_need, memory_of, refuse_too_large

CONFIG = {"img_size": 16, "patch_size": 4, "num_layers": 3, "d_hidden": 12, "num_heads": 2, "d_mlp": 24, "K": 3}
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def size(tensors):
    return sum(each.numel() * each.element_size() for each in tensors)


def saved_bytes(model, images):
    """Of all that is kept for the gradients of a batch, each place in memory once, parameters left out."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    places = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            places[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(images)
    assert logits.requires_grad
    return sum(places.values())


@pytest.mark.parametrize("layer", [*LAYERS, ["ConvNNAttention", "Attention", "ConvNNAttention"]], ids=str)
@pytest.mark.parametrize("change", [{}, {"positions": "learned", "final_norm": True, "pool": "mean"}], ids=str)
def test_the_weights_are_those_of_the_model(layer, change):
    config = {**CONFIG, "layer": layer, **change}
    model = ViT(**config)
    assert least_need(config, ViTOptions()).weights == size([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("change", [{}, {"optimizer": "adam"}, {"optimizer": "sgd"}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_takes_gradients_a_memory_of_them_and_a_second_model(change, momentum):
    config, options = {**CONFIG, "layer": "KvtAttention"}, ViTOptions(**change, momentum=momentum)
    model, loop = ViT(**config), options.loop()
    optimizer = make_optimizer(loop.optimizer, parameter_groups(model, 0.1), lr=0.1, momentum=loop.momentum)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    optimizer.step()
    state = [*model.parameters(), *model.buffers()]
    remembered = [
        each
        for states in optimizer.state.values()
        for name, each in states.items()
        if torch.is_tensor(each) and name != "step"
    ]
    taken = 2 * size(state) + size(each.grad for each in model.parameters()) + size(remembered)
    assert least_need(config, options).training == taken


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_batch_is_never_said_to_take_more_than_it_does(layer, amp, dropout):
    config = {**CONFIG, "layer": layer, "dropout": dropout, "d_mlp": 96, "attention_dropout": dropout}
    torch.manual_seed(0)
    model, images = ViT(**config).train(), torch.randn(5, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        taken = saved_bytes(model, images) + size([images])
    least = least_need(config, ViTOptions(use_amp=amp), rows=5).batch
    assert taken / 8 < least <= taken


def test_no_more_images_count_than_there_are_and_some_are_judged_at_once():
    def batch(batch_size, rows, held):
        return least_need(CONFIG, ViTOptions(batch_size=batch_size), rows=rows, held=held).batch

    assert batch(10**20, 7, 1) == batch(7, 7, 1) == 7 * batch(1, 7, 1)
    assert batch(1, 7, 256) == batch(1, 7, 10**9) > batch(1, 7, 1)


WIDE = {"d_hidden": 3_000_000, "num_heads": 3}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (WIDE, "to train such a model takes at least 2,011,6.* GiB of memory, and cpu has 16.0 GiB: .* d_hidden"),
        ({"num_layers": 100_000, "d_hidden": 192, "num_heads": 3, "d_mlp": 768}, "such a model .* num_layers"),
        ({"num_layers": 2**31 - 1}, "such a model"),
        ({"patch_size": 2**20}, "such a model .* patch_size"),
        ({"img_size": 2048, "patch_size": 1, "d_hidden": 192}, "with 1 image in a batch .* larger patch_size"),
        ({"img_size": 2**31 - 1}, r"no machine holds such a model .* smaller images \(--resize\)"),
        ({"d_hidden": 2**31 - 2}, "no machine holds such a model"),
        ({"layer": "BranchConv", "kernel_size": 2**31 - 1}, "such a model .* kernel_size"),
        ({"d_hidden": 0}, "d_hidden must be a whole number"),
        ({"layer": ["Attention"] * 2}, "one for each of 3 blocks, got 2 names"),
        ({"num_layers": 1.5}, "num_layers must be a whole number"),
    ],
    ids=str,
)
def test_what_no_memory_holds_is_refused_before_it_is_made(monkeypatch, config, message):
    monkeypatch.setattr(memory, "memory_of", lambda device: 2**34)
    with pytest.raises(InvalidInput, match=message) as refused:
        refuse_too_large({**CONFIG, **config}, ViTOptions(), CPU)
    assert "\n" not in str(refused.value)


def test_a_batch_that_is_too_large_is_refused_and_a_smaller_one_is_not(monkeypatch):
    there = least_need(CONFIG, ViTOptions(batch_size=8), rows=1000).total
    monkeypatch.setattr(memory, "memory_of", lambda device: there)
    refuse_too_large(CONFIG, ViTOptions(batch_size=8), CPU, rows=1000)
    refuse_too_large(CONFIG, ViTOptions(batch_size=1000), CPU, rows=8)
    with pytest.raises(InvalidInput, match=r"with 1,000 images in a batch .* a smaller batch_size"):
        refuse_too_large(CONFIG, ViTOptions(batch_size=10**7), CPU, rows=1000)


def test_a_model_must_fit_into_the_machine_that_makes_it(monkeypatch):
    weights = least_need(CONFIG, ViTOptions()).weights
    for cpu, fits in ((weights, True), (weights - 1, False)):
        known = {"cpu": cpu, "cuda": 10**12}
        monkeypatch.setattr(memory, "memory_of", lambda device, known=known: known[device.type])
        if fits:
            refuse_too_large(CONFIG, ViTOptions(), torch.device("cuda"))
        else:
            with pytest.raises(InvalidInput, match="and cpu has"):
                refuse_too_large(CONFIG, ViTOptions(), torch.device("cuda"))


def test_a_container_may_use_what_it_is_given(monkeypatch, tmp_path):
    whole = memory_of(CPU)
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "some").write_text("123456789\n")
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "none", tmp_path / "max"))
    assert memory_of(CPU) >= whole > 123456789
    monkeypatch.setattr(memory, "_LIMITS", (tmp_path / "max", tmp_path / "some"))
    assert memory_of(CPU) == 123456789


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_tells_what_it_has():
    there = memory_of(torch.device("cuda"))
    assert there >= torch.cuda.mem_get_info()[0]
    with pytest.raises(InvalidInput, match=r"and (cpu|cuda) has"):
        refuse_too_large({**CONFIG, **WIDE}, ViTOptions(), torch.device("cuda"))

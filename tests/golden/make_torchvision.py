"""Write ``torchvision-resnet.json``: names, shapes and outputs of torchvision's own ResNets.

Run it once, where torchvision is installed: ``python tests/golden/make_torchvision.py``. The weights are not
stored: :func:`filled` makes them from their names, here and in the test.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import torch

FILE = Path(__file__).parent / "torchvision-resnet.json"
IMAGES = (2, 3, 96, 64)
LAYERS = ("layer1", "layer2", "layer3", "layer4")


def spread(name: str, count: int) -> np.ndarray:
    """Numbers between -1 and 1 that look random and follow from the name by integer arithmetic alone."""
    mixed = np.arange(count, dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):  # the finalizer of MurmurHash3
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return mixed.astype(np.float64) / 2**31 - 1


def filled(name: str, kind: str) -> torch.Tensor:
    """The tensor of a name and a kind like ``64 3 7 7 torch.float32``; a deep network of them stays in range."""
    *sides, dtype = kind.split()
    shape = tuple(map(int, sides))
    values = spread(name, int(np.prod(shape)))
    if name.endswith("num_batches_tracked"):
        values = values * 0
    elif len(shape) > 1:
        values = values * np.sqrt(6 / np.prod(shape[1:]))  # He's variance
    elif name.endswith(("running_var", "weight")):
        values = 0.75 + 0.25 * values
    else:
        values = 0.1 * values
    return torch.from_numpy(values.reshape(shape)).to(getattr(torch, dtype.removeprefix("torch.")))


def images() -> torch.Tensor:
    """The pictures that every network is shown."""
    return torch.from_numpy(spread("images", int(np.prod(IMAGES))).reshape(IMAGES)).float()


def some(values: torch.Tensor, count: int) -> list[float]:
    """Numbers from all over a tensor."""
    flat = values.detach().double().flatten()
    return flat[:: max(1, len(flat) // count)][:count].tolist()


def recorded(model: torch.nn.Module) -> dict[str, object]:
    """What a torchvision network is made of, and what it says."""
    keys = {name: " ".join(map(str, (*each.shape, each.dtype))) for name, each in model.state_dict().items()}
    model.load_state_dict({name: filled(name, kind) for name, kind in keys.items()})
    outputs: dict[str, torch.Tensor] = {}
    for name in (*LAYERS, "avgpool"):
        model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out}))
    with torch.no_grad():
        model.eval()(images())
    return {
        "keys": keys,
        "layers": {name: some(outputs[name], 8) for name in LAYERS},
        "features": some(outputs["avgpool"], 32),
    }


def main() -> None:
    import torchvision

    small = torchvision.models.resnet18()  # the usual change for small images
    small.conv1, small.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    made = {
        "torchvision": torchvision.__version__,
        "resnet18": recorded(torchvision.models.resnet18()),
        "resnet50": recorded(torchvision.models.resnet50()),
        "resnet18-small": recorded(small),
    }
    FILE.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""ResNet-18 and ResNet-50 without their last layer, and torchvision's files of weights for them.

torchvision itself is not imported: it must match torch to the build. Only the names of its tensors are kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.errors import CorruptModel, InvalidInput, MissingData

Depth = Literal[18, 50]
Stem = Literal["small", "large"]

# By depth: kernels of a block's convolutions, blocks of the four stages, how much wider a block's end is.
_PLANS: Final[dict[int, tuple[tuple[int, ...], tuple[int, ...], int]]] = {
    18: ((3, 3), (2, 2, 2, 2), 1),
    50: ((1, 3, 1), (3, 4, 6, 3), 4),
}
_WIDTHS: Final = (64, 128, 256, 512)
_STEM: Final = ("conv1.", "bn1.")
_COUNTER: Final = "num_batches_tracked"  # files from before it existed lack it, and nothing here reads it


class ResNet(nn.Module):
    """A residual network from images to the average of its last feature maps; named as torchvision names its own.

    Args:
        depth: 18 or 50.
        in_channels: Channels of the images.
        stem: ``small`` sees every pixel (3x3, stride 1, no pooling: for sides of 28 to 64), ``large`` shrinks the
            image to a quarter first (7x7, stride 2, max-pooling: for 224).
    """

    def __init__(self, depth: Depth, *, in_channels: int = 3, stem: Stem = "large") -> None:
        super().__init__()
        if depth not in _PLANS:
            raise InvalidInput(f"depth must be one of {', '.join(map(str, _PLANS))}, got {depth!r}")
        if stem not in get_args(Stem):
            raise InvalidInput(f"stem must be one of {', '.join(get_args(Stem))}, got {stem!r}")
        kernels, blocks, growth = _PLANS[depth]
        self.depth, self.stem = depth, stem
        self.conv1 = _convolution(in_channels, 64, *((3, 1) if stem == "small" else (7, 2)))
        self.bn1 = nn.BatchNorm2d(64)
        ends = [inner * growth for inner in _WIDTHS]
        self.layer1 = _stage(kernels, 64, _WIDTHS[0], ends[0], blocks[0], stride=1)
        self.layer2 = _stage(kernels, ends[0], _WIDTHS[1], ends[1], blocks[1])
        self.layer3 = _stage(kernels, ends[1], _WIDTHS[2], ends[2], blocks[2])
        self.layer4 = _stage(kernels, ends[2], _WIDTHS[3], ends[3], blocks[3])
        self.width = ends[3]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_channels, h, w) images to (n, width) features."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.stem == "large":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps.mean(dim=(2, 3))

    def extra_repr(self) -> str:
        """Depth and stem."""
        return f"depth={self.depth}, stem={self.stem}"


def _stage(kernels: Sequence[int], into: int, inner: int, out: int, count: int, stride: int = 2) -> nn.Sequential:
    """Blocks of one width, the first of which takes the stride."""
    first = _Residual(kernels, into, inner, out, stride)
    return nn.Sequential(first, *[_Residual(kernels, out, inner, out, 1) for _ in range(count - 1)])


class _Residual(nn.Module):
    """Convolutions whose result is added to what went in; its first 3x3 takes the stride."""

    def __init__(self, kernels: Sequence[int], into: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.steps = len(kernels)
        widths = [into, *[inner] * (self.steps - 1), out]
        for at, kernel in enumerate(kernels):
            step = stride if at == kernels.index(3) else 1
            self.add_module(f"conv{at + 1}", _convolution(widths[at], widths[at + 1], kernel, step))
            self.add_module(f"bn{at + 1}", nn.BatchNorm2d(widths[at + 1]))
        self.downsample = nn.Sequential()  # nothing to do where the shapes agree
        if stride != 1 or into != out:
            self.downsample = nn.Sequential(_convolution(into, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for at in range(1, self.steps + 1):
            out = getattr(self, f"bn{at}")(getattr(self, f"conv{at}")(out))
            if at < self.steps:
                out = F.relu(out, inplace=True)
        return F.relu(out + self.downsample(x), inplace=True)


def _convolution(into: int, out: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(into, out, kernel, stride=stride, padding=kernel // 2, bias=False)


def load_torchvision(model: ResNet, state: Mapping[str, Tensor]) -> list[str]:
    """Copy torchvision's weights into a network; what was left out comes back as messages.

    The last layer (``fc``) is not part of the network and is left out without a word. A stem of another shape
    keeps its own start, with the BatchNorm that was fitted to it.

    Raises:
        InvalidInput: A tensor is missing, is not of this network, or has another shape.
    """
    given = {name: each for name, each in state.items() if not name.startswith("fc.")}
    own = model.state_dict()
    if strange := [name for name in given if name not in own and not name.startswith(_STEM)]:
        raise InvalidInput(f"the weights are not of a ResNet-{model.depth}: it has no {strange[0]}")
    messages = _stem_messages(model.conv1.weight, given.get("conv1.weight"))
    wanted = [name for name in own if not (messages and name.startswith(_STEM))]
    for name in wanted:
        _check_shape(model, name, own[name], given.get(name))
    model.load_state_dict({name: given[name] for name in wanted if name in given}, strict=False)
    return messages


def _stem_messages(own: Tensor, given: Tensor | None) -> list[str]:
    if given is None:
        return ["the stem keeps its random start: the weights have no conv1.weight"]
    if given.shape != own.shape:
        shapes = f"the weights have {tuple(given.shape)}, the network {tuple(own.shape)}"
        return [f"the stem (conv1 and bn1) keeps its random start: conv1.weight differs, {shapes}"]
    return []


def _check_shape(model: ResNet, name: str, own: Tensor, given: Tensor | None) -> None:
    if given is None:
        if not name.endswith(_COUNTER):
            raise InvalidInput(f"the weights are not of a ResNet-{model.depth}: {name} is missing")
    elif given.shape != own.shape:
        shapes = f"{tuple(given.shape)} where a ResNet-{model.depth} has {tuple(own.shape)}"
        raise InvalidInput(f"{name} has shape {shapes}")


def read_torchvision(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a ``.pth`` or ``.safetensors`` file, by name; nothing in the file is executed.

    Raises:
        MissingData: There is no such file.
        CorruptModel: It cannot be read.
        InvalidInput: It holds something else than tensors by name.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingData(f"no file of weights at {path}")
    try:
        state = _read(path)
    except Exception as problem:  # a broken file may fail anywhere in the reader
        raise CorruptModel(f"{path} is not a readable file of weights: {_first_line(problem)}") from problem
    if not isinstance(state, dict) or not state:
        raise InvalidInput(
            f"{path} must hold tensors by name, as model.state_dict() does; got {type(state).__name__}"
        )
    for name, each in state.items():
        if not isinstance(name, str) or not isinstance(each, Tensor):
            raise InvalidInput(f"{path} must hold tensors by name; {name!r} is {type(each).__name__}")
    return state


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]

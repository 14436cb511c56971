"""What a training takes at the least, known before anything of it is made; where that is too much, it is refused.

Counted is what no way of computing does without, so that nothing is refused that might have worked: the model, its
gradients, what the optimizer remembers and the best model so far; of a batch its images and, for every block, what
its norms and its network keep for their gradients. Whatever the layers that mix tokens keep comes on top.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from attnknn.errors import InvalidInput
from attnknn.vit.heads import checked_count
from attnknn.vit.model import TransformerEncoder, ViT, layer_names
from attnknn.vit.settings import ViTOptions
from attnknn.vit.training import EVALUATED

_DEFAULTS: Final = {name: each.default for name, each in signature(ViT).parameters.items()}
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where Linux says how much of the machine a container may use."""


class Need(NamedTuple):
    """Bytes that a training takes at the least."""

    weights: int  # the model as it is made
    training: int  # the model with gradients, optimizer and the best so far
    batch: int  # what a batch adds

    @property
    def total(self) -> int:
        """All at once."""
        return self.training + self.batch


def least_need(config: Mapping[str, Any], options: ViTOptions, *, rows: int = 1, held: int = 1) -> Need:
    """What a training takes at the least.

    Args:
        config: Arguments of :class:`ViT`; wrong ones are refused as it would.
        options: How it is trained.
        rows: Training images.
        held: Validation images.

    >>> least_need({"layer": "KvtAttention"}, ViTOptions()).weights == 4 * (5479306 + 197 * 192)
    True
    """
    drafts = list(_drafts(config))
    model, first = drafts[0][0], drafts[0][1]
    blocks = sum(count for _, _, count in drafts)
    one_each = _bytes(model.parameters()) - _bytes(first.parameters())
    trained = one_each + sum(count * _bytes(block.parameters()) for _, block, count in drafts)
    weights = trained + _bytes(model.buffers())
    remembered = 2 if options.optimizer != "sgd" else 1 if options.momentum else 0
    tokens, width, d_mlp = model.positional_encoding.pe.shape[1], *first.widths
    number = 2 if options.use_amp else 4
    image = 4 * model.in_channels * model.img_size[0] * model.img_size[1]
    # What goes into two norms and a network, and what comes out of them, which a compiler may compute again.
    kept = blocks * tokens * (2 * width + d_mlp) * number * (1 if options.use_compiled else 2)
    learned = min(options.batch_size, rows) * (image + kept)
    judged = min(EVALUATED, held) * (image + tokens * (width + d_mlp) * number)
    return Need(weights, 2 * weights + (1 + remembered) * trained, max(learned, judged))


def refuse_too_large(
    config: Mapping[str, Any], options: ViTOptions, device: torch.device, *, rows: int = 1, held: int = 1
) -> None:
    """Refuse a training that a device cannot hold, or whose model the machine cannot hold to begin with.

    Args:
        config: Arguments of :class:`ViT`; wrong ones are refused as it would.
        options: How it is trained.
        device: Where.
        rows: Training images; 1 where they are not known yet.
        held: Validation images.
    """
    try:
        need = least_need(config, options, rows=rows, held=held)
    except RuntimeError as overflow:  # torch counts bytes in 64 bits
        raise InvalidInput(f"no machine holds such a model ({overflow}): {_SMALLER_MODEL}") from overflow
    for place, taken in ((torch.device("cpu"), need.weights), (device, need.total)):
        there = memory_of(place)
        if there is not None and taken > there:
            raise InvalidInput(_refusal(need, there, place.type, min(options.batch_size, rows)))


def _refusal(need: Need, there: int, place: str, images: int) -> str:
    if need.training > there:
        return f"to train such a model takes at least {_told(need.training, there, place)}: {_SMALLER_MODEL}"
    return (
        f"to train with {images:,} {'image' if images == 1 else 'images'} in a batch takes at least "
        f"{_told(need.total, there, place)}: a smaller batch_size, smaller images (--resize) or a larger "
        "patch_size take less"
    )


_SMALLER_MODEL: Final = (
    "smaller numbers for d_hidden, d_mlp, num_layers, kernel_size or patch_size, or smaller images (--resize), "
    "take less"
)


def memory_of(device: torch.device) -> int | None:
    """Bytes that a device has in all, used or not; None where it does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it says max
            limits.append(int(file.read_text()))
    return min(limits)


def _drafts(config: Mapping[str, Any]) -> Iterable[tuple[ViT, TransformerEncoder, int]]:
    """A model of one block for each kind of layer, which only has shapes, the block, and how many are like it."""
    given = {**_DEFAULTS, **config}
    layer, count = given["layer"], checked_count(given["num_layers"], "num_layers")
    kinds = {layer: count} if isinstance(layer, str) else Counter(layer_names(layer, count))
    for name, alike in kinds.items():
        with torch.device("meta"):
            model = ViT(**{**config, "layer": name, "num_layers": 1})
        yield model, next(model.blocks()), alike


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _told(taken: int, there: int, place: str) -> str:
    """What is taken, and what there is.

    >>> _told(3 * 2**40, 2**30, "cpu")
    '3,072.0 GiB of memory, and cpu has 1.0 GiB'
    """
    return f"{taken / 2**30:,.1f} GiB of memory, and {place} has {there / 2**30:,.1f} GiB"

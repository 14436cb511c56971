"""A trained ViT as a folder: its weights, and all that it takes to ask it again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from attnknn.bank.folder import parse_json, read_folder, write_folder
from attnknn.errors import AttnKNNError, CorruptModel, InvalidInput
from attnknn.vit.frames import Frames, Stats
from attnknn.vit.model import ViT
from attnknn.vit.settings import ViTOptions

KIND: Final = "vit"
"""Of the folder; see :func:`~attnknn.bank.folder.write_folder`."""


@dataclass(frozen=True, slots=True)
class TrainedViT:
    """A ViT and what it was trained with.

    Args:
        model: The model.
        config: The arguments of :class:`ViT` that make it.
        classes: Names of the classes, in the order of its outputs.
        stats: What normalizes its images.
        options: How it was trained.
        seed: What was drawn with, among it the images to test on where a folder does not name them.
    """

    model: ViT
    config: Mapping[str, Any]
    classes: tuple[str, ...]
    stats: Stats
    options: ViTOptions
    seed: int = 0

    def frames(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], device: torch.device | str = "cpu"
    ) -> Frames:
        """Images as the model reads them."""
        if images.shape[3] != self.model.in_channels:
            raise InvalidInput(
                f"the model reads images of {self.model.in_channels} channels, got {images.shape[3]}"
            )
        return Frames(images, labels, size=self.model.img_size, stats=self.stats, device=torch.device(device))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder: whole, or what was there stays."""
        about = {
            "config": dict(self.config),
            "classes": list(self.classes),
            "stats": [list(each) for each in self.stats],
            "options": self.options.state(),
            "seed": self.seed,
        }
        tensors = {name: each.detach().cpu().contiguous() for name, each in self.model.state_dict().items()}
        files = {"vit.json": json.dumps(about).encode(), "weights.safetensors": save_tensors(tensors)}
        write_folder(folder, KIND, files)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TrainedViT:
        """Read what :meth:`save` wrote, on the CPU, in eval mode.

        Raises:
            CorruptModel: The folder is damaged, or holds something else.
        """
        files = read_folder(folder, KIND)
        try:
            about = parse_json(files["vit.json"], "vit.json")
            model = ViT(**about["config"])
            model.load_state_dict(load_tensors(files["weights.safetensors"]))
            mean, std = (tuple(map(float, each)) for each in about["stats"])
            classes = tuple(map(str, about["classes"]))
            options, seed = ViTOptions(**{"select": "loss", **about["options"]}), int(about["seed"])
            return cls(model.eval(), about["config"], classes, (mean, std), options, seed)
        except CorruptModel:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, AttnKNNError) as broken:
            raise CorruptModel(f"{folder} does not hold a ViT that this version can read: {broken}") from broken

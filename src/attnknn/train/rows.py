"""Labelled rows to train on, as arrays and as tensors, and a digest that tells them from others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Encoded, labelled rows."""

    features: NDArray[Any]  # (n, width) float32; images are uint8 (n, height, width, channels)
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    groups: NDArray[np.int64]  # rows of one group never see each other; -1 is no group

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, at: NDArray[np.int64]) -> Rows:
        """Some of them."""
        return Rows(self.features[at], self.labels[at], self.weights[at], self.groups[at])


def own_groups(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """A group of its own for whoever has none: itself is what a row must not see."""
    alone = groups < 0
    return np.where(alone, int(groups.max(initial=-1)) + np.cumsum(alone), groups)


class Shown:
    """Labels, weights and groups of rows as tensors on a device."""

    def __init__(self, rows: Rows, device: torch.device | str) -> None:
        self.labels = torch.from_numpy(rows.labels).to(device)
        self.weights = torch.from_numpy(rows.weights / rows.weights.mean()).float().to(device)  # only ratios count
        self.groups = torch.from_numpy(own_groups(rows.groups)).to(device)


def has_room(size: float, device: torch.device) -> bool:
    """Whether so many bytes take less than half of what is free where a device keeps its tensors."""
    if device.type == "cuda":
        free = float(torch.cuda.mem_get_info(device)[0])
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    else:
        free = 4e9
    return 2 * size < free


def arrays_of(parts: Iterable[Rows | None]) -> Iterator[NDArray[Any]]:
    """All that these rows are."""
    for rows in parts:
        if rows is not None:
            yield from (rows.features, rows.labels, rows.weights, rows.groups)


def digest(told: object, arrays: Iterable[NDArray[Any]]) -> str:
    """What settings and data a checkpoint belongs to."""
    found = hashlib.sha256(repr(told).encode())
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()

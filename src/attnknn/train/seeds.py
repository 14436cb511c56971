"""The global random state of torch, which dropout draws from: seeded for a run, saved, and put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed what is global, on the CPU and on ``device``.

    Not with ``seed`` itself: dropout must not repeat what a generator with that seed draws for the batches.
    """
    other = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
    on = {"torch": torch.device("cpu"), "device": device}
    states = {name: torch.Generator(where).manual_seed(other).get_state() for name, where in on.items()}
    set_random_state(states, device)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The global state, of the CPU and of ``device`` where it has its own."""
    states = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what :func:`random_state` returned."""
    torch.set_rng_state(states["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"], device)


@contextmanager
def random_kept(device: torch.device) -> Iterator[None]:
    """Afterwards the global state is what it was before."""
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before, device)

"""The moving average of a model's weights, which is often better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


class Average:
    """An exponential moving average of everything floating in the state of a model; the rest is copied.

    The decay starts low and grows to ``decay``, as min(decay, (1 + t) / (10 + t)) after t updates: otherwise the
    start, which is noise, would be with us for 1 / (1 - decay) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._live = tensors_of(model)
        self.held = {name: each.clone() for name, each in self._live.items()}
        self._mixed = [name for name, each in self._live.items() if each.is_floating_point()]
        self._copied = [name for name, each in self._live.items() if not each.is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into account."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        if self._copied:
            torch._foreach_copy_(
                [self.held[name] for name in self._copied], [self._live[name] for name in self._copied]
            )
        held, live = ([state[name] for name in self._mixed] for state in (self.held, self._live))
        torch._foreach_lerp_(held, live, 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within, the model has the averaged weights; afterwards its own again, to the bit."""
        own = {name: each.clone() for name, each in self._live.items()}
        put(self.held, self._live)
        try:
            yield
        finally:
            put(own, self._live)

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs to go on as if nothing had happened."""
        return {"updates": self.updates, "held": self.held}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of :meth:`state`."""
        self.updates = int(state["updates"])
        put(state["held"], self.held)


def tensors_of(model: nn.Module) -> State:
    """The tensors of a model's state, by name: views, so that writing to them changes the model."""
    return {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}


@torch.no_grad()
def put(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    """Write the tensors of one state into those of another that has the same names."""
    for name, each in target.items():
        each.copy_(source[name])

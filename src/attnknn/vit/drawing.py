"""Random draws as an operation of torch, which a compiler takes as it is instead of cutting the graph.

Compilers do not look into generators. So the operation is given a ticket, a tensor whose number tells which
generator is meant: as a tensor it is an input of the graph, and one graph serves all layers that are alike. The
operation counts on the ticket, too: what writes to its input is neither moved, nor left out, nor done once for two
who ask for the same.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Source:
    """A generator on the CPU with its ticket; :func:`source_of` gives the same one to all who draw from it."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        with torch.inference_mode(False):  # or nothing outside that mode could write to it
            self.ticket = torch.tensor([id(generator), 0], device="cpu")  # no other has this id while it is held


_SOURCES: WeakValueDictionary[int, Source] = WeakValueDictionary()


def source_of(generator: torch.Generator) -> Source:
    """The source that a generator is."""
    found = _SOURCES.get(id(generator))
    if found is None:
        found = _SOURCES[id(generator)] = Source(generator)
    return found


def drawn_from(generator: torch.Generator, tokens: int, count: int, *, fixed: bool) -> Tensor:
    """(count,) of so many tokens, ascending: what comes next, or what its seed gives first if ``fixed``."""
    if fixed:
        generator = torch.Generator().manual_seed(generator.initial_seed())
    return torch.randperm(tokens, generator=generator, device="cpu")[:count].sort().values


@torch.library.custom_op("attnknn::drawn", mutates_args=("ticket",))
def drawn(ticket: Tensor, tokens: int, count: int, fixed: bool) -> Tensor:
    """:func:`drawn_from` the generator of a ticket."""
    number, _ = ticket.tolist()
    ticket[1] += 1
    return drawn_from(_SOURCES[number].generator, tokens, count, fixed=fixed)


@drawn.register_fake
def _drawn_fake(ticket: Tensor, tokens: int, count: int, fixed: bool) -> Tensor:
    return ticket.new_empty(count)

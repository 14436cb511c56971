"""A step of training recorded as one CUDA graph, which starts its hundreds of kernels at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from attnknn.errors import InvalidInput

_REHEARSALS: Final = 4  # steps before the recording: by then all that is made once, kernels and buffers, is made


@runtime_checkable
class Recordable(Protocol):
    """A task whose step may be recorded."""

    @property
    def recordable(self) -> bool:
        """Whether each step is the same work on other numbers.

        A batch is a tensor on the device of the run, always of one shape; nothing waits for the device, asks it
        for a value, or is remembered outside of tensors; what is random comes from the generator or from torch,
        or is drawn with the batch, before the step, and written to where the step read the first draw.
        """


class RecordedStep:
    """Takes steps: the first as they come, then all by replaying one.

    A step is told its batch and returns what is to be known of it, in a tensor of one shape. What it reads and
    writes must stay in place.

    Args:
        step: Takes one.
        random: Where its draws come from.
    """

    def __init__(self, step: Callable[[Tensor], Tensor], random: torch.Generator) -> None:
        self._step, self._random = step, random
        self._stream = torch.cuda.Stream(random.device)  # type: ignore[no-untyped-call]
        self._rehearsed = 0
        self._recording: tuple[torch.cuda.CUDAGraph, Tensor, Tensor] | None = None  # with its batch and its answer

    def __call__(self, batch: Tensor) -> Tensor:
        """Take a step; returns what the step does."""
        if self._recording is None:
            return self._rehearse(batch)
        graph, place, told = self._recording
        place.copy_(batch)
        graph.replay()
        return told.clone()  # the next replay writes to the same place

    def _rehearse(self, batch: Tensor) -> Tensor:
        """On a stream of its own, where the recording will be."""
        present = torch.cuda.current_stream(self._random.device)
        self._stream.wait_stream(present)
        with torch.cuda.stream(self._stream):
            told = self._step(batch)
        present.wait_stream(self._stream)
        self._rehearsed += 1
        if self._rehearsed == _REHEARSALS:
            self._record(batch)
        return told

    def _record(self, batch: Tensor) -> None:
        """What is recorded is not done yet."""
        place = batch.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._random)
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                told = self._step(place)
        except RuntimeError as failed:  # generators stay as they were while it was recorded: nothing can go on
            raise InvalidInput(
                f"a step of this training cannot be recorded: {failed}; a smaller batch_size may help"
            ) from failed
        self._recording = graph, place, told

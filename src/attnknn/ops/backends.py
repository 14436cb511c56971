"""Which of two ways an operation takes: torch, or kernels of its own, and how that is told."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Final, Literal, get_args

import torch

from attnknn.errors import InvalidInput

Backend = Literal["auto", "torch", "triton"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)

HAS_TRITON: Final = find_spec("triton") is not None


def checked_backend(backend: str) -> str:
    """``backend`` itself if it is one of ours."""
    if backend not in BACKENDS:
        raise InvalidInput(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    return backend


def served(backend: str, device: torch.device, reason: str | None, work: str, slow: str | None = None) -> bool:
    """Whether the kernels serve; where they are not asked for by name, on CUDA only, and unless they are ``slow``.

    ``reason`` says why they cannot, ``slow`` why torch is faster.

    Raises:
        InvalidInput: They were asked for and cannot, or there is no such backend.
    """
    if checked_backend(backend) == "torch":
        return False
    if device.type != "cuda" and (backend == "auto" or (reason is None and not interpreted())):
        reason = f"the tensors are on {device.type}"
    if backend == "triton" and reason is not None:
        raise InvalidInput(f"backend='triton' cannot serve: {reason}")
    if backend == "auto":
        reason = reason or slow
    if not torch.compiler.is_compiling():  # a compiler would stop at a log line
        _tell(work, "torch" if reason else "triton", reason or "tensors are on CUDA, and the kernels serve them")
    return reason is None


def interpreted() -> bool:
    """Whether Triton interprets its kernels, which then run on any device, slowly."""
    import triton

    from attnknn.ops.triton_tokens import select_weigh_combine

    return not isinstance(select_weigh_combine, triton.JITFunction)


def launching_on(device: torch.device) -> AbstractContextManager[object]:
    """Within, kernels run where their tensors are: Triton launches them on the current device."""
    if device.type != "cuda" or torch.cuda.device_count() == 1:  # to set it takes time
        return nullcontext()
    return torch.cuda.device(device)


@cache
def _tell(work: str, chosen: str, reason: str) -> None:
    """Once for each reason."""
    logging.getLogger(__name__).info("%s by %s: %s", work, chosen, reason)


def power(count: int) -> int:
    """The least power of 2 that is not below."""
    return 1 << max(0, count - 1).bit_length()

"""How many threads torch uses: steps on few rows are faster on one, and do not wait for a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

FEW_ROWS: Final = 4000
"""Training rows below which one thread is enough."""


@contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """One thread for few rows; afterwards as many as before."""
    before = torch.get_num_threads()
    if rows < FEW_ROWS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

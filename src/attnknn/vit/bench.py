"""Time and memory of token attention, side by side with plain attention, SDPA and a straightforward gather.

Every measurement has a process of its own, several times over; what is reported are medians over processes, and
ratios of these medians. All contenders take turns, so that a busy moment hits all.

- ``forward`` is inference, without gradients; ``forward_backward`` gives those of the input and all parameters.
- Time is the median over rounds after a warm-up. On the CPU with one thread it is CPU time
  (``time.process_time``), so that waiting for other processes does not count, though sharing caches with them
  does; else it is wall-clock.
- Memory is what one call adds at its peak, after calls that load whatever stays, in a process that times nothing.
  On CUDA it is what torch has allocated. On the CPU it is the resident memory of the whole process (Linux only),
  because NumPy's share is invisible to torch's profiler; there large blocks go back to the system as soon as they
  are free, so that the peak is what is in use and not what the allocator keeps. Elsewhere it is NaN.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import AttnKNNError, InvalidInput
from attnknn.vit.factory import LAYERS, create_layer
from attnknn.vit.heads import checked_count, checked_heads, merge_heads, split_heads

TOKENS: Final = (197, 1024, 4096)
DEFAULT: Final = ("plain:3", "sdpa:3", "gather:1", "gather:3", "ConvNNAttention:1", "ConvNNAttention:3")
"""Who is measured unless asked otherwise."""

DIRECTIONS: Final = ("forward", "forward_backward")
METRICS: Final = ("seconds", "mib")

_HEADS = 3
_WARM_UPS = 1
_FEWEST_ROUNDS = 3
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class _Projected(nn.Module):
    """Four projections around a way to mix tokens; parameters are named as those of our layers."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, checked_heads(dim, num_heads) ** -0.5
        self.W_q = nn.Linear(dim, dim, bias=False)
        self.W_k = nn.Linear(dim, dim, bias=False)
        self.W_v = nn.Linear(dim, dim, bias=False)
        self.W_o = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same."""
        q, k, v = (split_heads(each(x), self.num_heads) for each in (self.W_q, self.W_k, self.W_v))
        out: Tensor = self.W_o(merge_heads(self.mixed(q, k, v)))
        return out

    @abstractmethod
    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What each query takes from the values, (batch, heads, tokens, dim)."""


class PlainAttention(_Projected):
    """Attention as in the textbook: all scores, their softmax, a product."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All scores are held at once."""
        mixed: Tensor = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1) @ v
        return mixed


class SdpaAttention(_Projected):
    """The same by torch's own kernel."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Torch chooses the kernel."""
        return scaled_dot_product_attention(q, k, v)


class GatherAttention(_Projected):
    """ConvNN attention written straight down: all scores, the K largest, their values gathered, one sum."""

    def __init__(self, dim: int, num_heads: int, K: int) -> None:
        super().__init__(dim, num_heads)
        width = dim // num_heads
        self.K, self.conv = K, nn.Conv1d(width, width, K, stride=K, groups=width, bias=False)
        nn.init.ones_(self.conv.weight)

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All scores and all neighbors are held at once."""
        return gathered(q, k, v, self.conv.weight[:, 0, : k.shape[2]], self.scale)


def gathered(q: Tensor, k: Tensor, v: Tensor, factors: Tensor, scale: float) -> Tensor:
    """Attention to the nearest, written straight down; factors are (dim, K): all scores, the largest, one sum."""
    scores, indices = (q @ k.transpose(-2, -1) * scale).topk(factors.shape[1], dim=-1)
    rows = indices.flatten(2)[..., None].expand(-1, -1, -1, v.shape[-1])
    near = v.gather(2, rows).view(*indices.shape, -1)
    return torch.einsum("bhnk,bhnkc,ck->bhnc", scores.softmax(dim=-1), near, factors.to(v.dtype))


class Contender(NamedTuple):
    """What is measured: ``plain``, ``sdpa``, ``gather`` or a layer, and its heads."""

    kind: str
    heads: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.heads}"

    @property
    def is_peer(self) -> bool:
        """Whether it is what layers are compared with."""
        return self.kind not in LAYERS

    def made(self, dim: int, K: int) -> nn.Module:
        """It, with weights from torch's own generator."""
        if self.kind == "plain":
            return PlainAttention(dim, self.heads)
        if self.kind == "sdpa":
            return SdpaAttention(dim, self.heads)
        if self.kind == "gather":
            return GatherAttention(dim, self.heads, checked_count(K, "K"))
        return create_layer(self.kind, dim, self.heads, K=K)


PLAIN: Final = Contender("plain", _HEADS)


def contender(name: str) -> Contender:
    """A contender by its name; heads stand behind a colon, 3 by default.

    >>> str(contender("sdpa")), str(contender("ConvNNAttention:1"))
    ('sdpa:3', 'ConvNNAttention:1')
    """
    kind, colon, heads = name.partition(":")
    known = ("plain", "sdpa", "gather", *LAYERS)
    if kind not in known:
        raise InvalidInput(f"no layer is called {kind!r}; try one of: {', '.join(known)}")
    if colon and not (heads.isdecimal() and len(heads) < 10 and int(heads) > 0):
        raise InvalidInput(f"behind the colon stands a number of heads, such as {kind}:1; got {name!r}")
    return Contender(kind, int(heads) if colon else _HEADS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement, of both directions.

    Args:
        name: The contender's.
        tokens: Tokens of a sequence.
        metric: ``seconds`` or ``mib``.
        dim: Width of the tokens.
        K: Tokens that each token keeps, for layers that select.
        device: Where.
        threads: Of torch.
        least: Seconds that the rounds of a direction take together, at least.
        seed: Of weights and tokens.
    """

    name: str
    tokens: int
    metric: str
    dim: int = 192
    K: int = 9
    device: str = "cpu"
    threads: int = 1
    least: float = 0.5
    seed: int = 0


def batch_of(tokens: int) -> int:
    """Sequences in a batch: about as many tokens for every length.

    >>> [batch_of(tokens) for tokens in TOKENS]
    [8, 2, 1]
    """
    return max(1, min(8, 2048 // tokens))


def clock_of(device: str, threads: int) -> str:
    """``cpu`` or ``wall``: which time is measured."""
    return "cpu" if device == "cpu" and threads == 1 else "wall"


def measure(cell: Cell) -> dict[str, float]:
    """Seconds or MiB of each direction, measured in this process, whose threads and allocator it sets."""
    torch.set_num_threads(cell.threads)
    if cell.metric == "mib":
        _return_at_once()
    steps = _steps(cell)
    if cell.metric == "mib":
        return {direction: _mib(step, cell.device) for direction, step in steps.items()}
    return {direction: _seconds(step, cell) for direction, step in steps.items()}


def _steps(cell: Cell) -> dict[str, Callable[[], None]]:
    torch.manual_seed(cell.seed)
    layer = contender(cell.name).made(cell.dim, cell.K).to(cell.device)
    x = torch.randn(batch_of(cell.tokens), cell.tokens, cell.dim).to(cell.device)
    back = torch.randn_like(x)

    def forward() -> None:
        layer.eval()
        with torch.no_grad():
            layer(x)

    def forward_backward() -> None:
        layer.train()
        x.requires_grad_()
        layer(x).backward(back)
        layer.zero_grad(set_to_none=True)
        x.grad = None

    return dict(zip(DIRECTIONS, (forward, forward_backward), strict=True))


def _seconds(step: Callable[[], None], cell: Cell) -> float:
    now = time.process_time if clock_of(cell.device, cell.threads) == "cpu" else time.perf_counter
    laps: list[float] = []
    for _ in range(_WARM_UPS):
        step()
    while len(laps) < _FEWEST_ROUNDS or sum(laps) < cell.least:
        _wait_for(cell.device)
        start = now()
        step()
        _wait_for(cell.device)
        laps.append(now() - start)
    return median(laps)


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()


def _mib(step: Callable[[], None], device: str) -> float:
    for _ in range(_WARM_UPS):
        step()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    return _resident_mib(step) if device == "cpu" else float("nan")


def _resident_mib(step: Callable[[], None]) -> float:
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")  # the peak starts anew from what is resident now
    except OSError:  # another system, or a container that forbids it
        return float("nan")
    before = _peak_mib()
    step()
    return _peak_mib() - before


def _peak_mib() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    return int(found[1]) / 1024 if found else float("nan")


def _return_at_once() -> None:
    """Let glibc give every block of 64 KiB or more back when it is freed; another C library is left as it is."""
    if _CLEAR.exists():
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(-3, 2**16)  # M_MMAP_THRESHOLD


def measure_apart(cell: Cell) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, "-P", "-m", "attnknn.vit.bench", json.dumps(asdict(cell))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or [f"the process ended with code {ran.returncode}"])[-1]
        raise InvalidInput(f"{cell.name} could not be measured with {cell.tokens} tokens: {said}")
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def run_bench(
    names: Sequence[str] = DEFAULT,
    tokens: Sequence[int] = TOKENS,
    *,
    dim: int = 192,
    K: int = 9,
    device: str = "cpu",
    processes: int = 5,
    threads: int = 1,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure all contenders with all numbers of tokens, and compare them.

    Args:
        names: Contenders, as :func:`contender` knows them; plain attention with 3 heads is always among them.
        tokens: Numbers of tokens.
        dim: Width of the tokens.
        K: Tokens that each token keeps, for layers that select.
        device: Where to measure.
        processes: Processes that each number is the median of.
        threads: Of torch.
        seed: Of weights and tokens.
        say: Called with what is next.

    Returns:
        ``config``, ``seeds``, ``seconds`` and, under ``methods``, for each contender, number of tokens and
        direction: ``seconds`` and ``mib``, each with its median, smallest and largest value, and ``ratios`` of
        the medians to those of each of the peers that were measured.
    """
    start = time.perf_counter()
    base = Cell(str(PLAIN), 1, METRICS[0], dim, K, device, threads, seed=seed)
    cells = _cells(base, names, tokens)
    taken: dict[Cell, list[dict[str, float]]] = {cell: [] for cell in cells}
    for turn in range(processes):
        for cell in cells:
            say(f"process {turn + 1} of {processes}: {cell.name}, {cell.tokens} tokens, {cell.metric}")
            taken[cell].append(measure_apart(cell))
    return {
        "config": {**_config(base, tokens), "processes": processes},
        "seeds": [seed],
        "seconds": {"total": time.perf_counter() - start},
        "methods": compared(taken),
    }


def _cells(base: Cell, names: Sequence[str], tokens: Sequence[int]) -> list[Cell]:
    """What one turn measures; a contender that cannot be is refused before anything is measured."""
    asked = dict.fromkeys([PLAIN, *map(contender, names)])
    for each in asked:
        each.made(base.dim, base.K)
    return [
        replace(base, name=str(each), tokens=checked_count(count, "tokens"), metric=metric)
        for count in dict.fromkeys(tokens)
        for each in asked
        for metric in METRICS
    ]


def _config(base: Cell, tokens: Sequence[int]) -> dict[str, Any]:
    return {
        "dim": base.dim,
        "K": base.K,
        "batch": {str(count): batch_of(count) for count in tokens},
        "device": base.device,
        "threads": base.threads,
        "clock": clock_of(base.device, base.threads),
    }


def compared(taken: Mapping[Cell, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Medians over processes, and their ratios to the medians of the peers, by contender, tokens and direction."""
    found: dict[str, Any] = {}
    for cell, values in taken.items():
        for direction in DIRECTIONS:
            place = found.setdefault(cell.name, {}).setdefault(str(cell.tokens), {}).setdefault(direction, {})
            place[cell.metric] = _summary([each[direction] for each in values])
    peers = [name for name in found if contender(name).is_peer]
    for by_tokens in found.values():
        for tokens, by_direction in by_tokens.items():
            for direction, own in by_direction.items():
                own["ratios"] = {peer: _ratios(own, found[peer][tokens][direction]) for peer in peers}
    return found


def _summary(values: list[float]) -> dict[str, Any]:
    return {"median": median(values), "low": min(values), "high": max(values), "values": values}


def _ratios(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    return {
        metric: own[metric]["median"] / other[metric]["median"] if other[metric]["median"] else float("nan")
        for metric in METRICS
    }


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Cell(**json.loads(sys.argv[1])))))
    except AttnKNNError as problem:
        sys.exit(str(problem))

"""Time and memory of the fused kernels: search and token attention, beside torch's way and a floor.

What an epoch of training takes that compares each image with the whole bank stands beside one of a plain CNN.
Each number is the median over rounds, after rounds that compile and warm up. The answers are checked as well: what
is fast and wrong is not measured, it is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import AttnKNNError
from attnknn.ops import exact_topk, prepare
from attnknn.ops.backends import Backend
from attnknn.ops.token_attention import knn_attention
from attnknn.train.image_settings import ImageOptions
from attnknn.train.images import train_images
from attnknn.train.rows import Rows
from attnknn.vit.bench import gathered

_CHECKED: Final = 256  # queries whose neighbors are compared with those that torch finds
_SIDE: Final = 8192  # of the matrices whose product tells what the GPU can do
_PIECE: Final = 2**28  # scores that a plain search holds at a time
_FEWEST_ALIKE: Final = 0.999  # of the tokens kept: sums of another order part scores that all but tie
_LEAST_SECONDS: Final = 0.2  # of rounds
_PASSES: Final = 40  # over 256 MiB, before each of them: longer than a processor takes to launch one


@dataclass(frozen=True, slots=True)
class SearchSize:
    """A search that is measured."""

    keys: int
    queries: int
    dim: int = 256
    k: int = 16

    @property
    def name(self) -> str:
        """As the report has it."""
        return f"search {self.keys}x{self.queries}x{self.dim}"


@dataclass(frozen=True, slots=True)
class AttentionSize:
    """Token attention that is measured."""

    tokens: int
    batch: int
    heads: int = 3
    dim: int = 64
    k: int = 9

    @property
    def name(self) -> str:
        """As the report has it."""
        return f"attention N={self.tokens}"


@dataclass(frozen=True, slots=True)
class TrainingSize:
    """Training of a ResNet-18 that is measured."""

    images: int
    pixels: int = 32
    classes: int = 10
    epochs: int = 4
    compiled: bool = True

    @property
    def name(self) -> str:
        """As the report has it."""
        return f"epoch of {self.images} images"


SEARCHES: Final = (SearchSize(50_000, 50_000), SearchSize(1_281_167, 10_000))
TRAININGS: Final = (TrainingSize(50_000),)
ATTENTIONS: Final = tuple(AttentionSize(*each) for each in ((197, 256), (1024, 64), (4096, 8), (16_384, 1)))


def run_gpu_bench(
    searches: Sequence[SearchSize] = SEARCHES,
    attentions: Sequence[AttentionSize] = ATTENTIONS,
    trainings: Sequence[TrainingSize] = TRAININGS,
    *,
    device: str = "cuda",
    backend: Backend = "triton",
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure everything: ``config``, ``milliseconds``, ``mib`` and shares of the floor, by name.

    Args:
        searches: What to search.
        attentions: What to attend.
        trainings: What to train.
        device: Where.
        backend: Of ours; anything but ``triton`` is for trying this out.
        say: Is told what comes next.
    """
    where = torch.device(device)
    milliseconds: dict[str, Any] = {}
    mib, share = {}, {}
    rate = _rate(where) if searches else math.nan
    for search in searches:
        say(search.name)
        milliseconds[search.name] = found = _search(search, where, backend)
        found["floor"] = 2 * search.keys * search.queries * search.dim / rate
        share[search.name] = found["floor"] / found["ours"]
    for attention in attentions:
        say(attention.name)
        milliseconds[attention.name], mib[attention.name] = _attention(attention, where, backend)
    for training in trainings:
        say(training.name)
        milliseconds[training.name] = _training(training, device)
    asked: dict[str, Sequence[Any]] = {"searches": searches, "attentions": attentions, "trainings": trainings}
    config = {name: [asdict(each) for each in some] for name, some in asked.items()}
    return {"config": config, "milliseconds": milliseconds, "mib": mib, "share_of_floor": share}


def _search(size: SearchSize, device: torch.device, backend: Backend) -> dict[str, float]:
    """Ours with 16-bit and with 32-bit vectors, and torch's product and top-k."""
    random = torch.Generator(device).manual_seed(0)
    wide = [
        torch.nn.functional.normalize(torch.randn(count, size.dim, generator=random, device=device), dim=1)
        for count in (size.queries, size.keys)
    ]
    narrow = [each.bfloat16() for each in wide]
    found = {}
    for name, (queries, keys) in {"ours": narrow, "ours, float32": wide}.items():
        laid = prepare(keys, "ip")
        _check_search(queries, laid, size.k, backend)
        ours = partial(exact_topk, queries, laid, size.k, backend=backend)
        found[name] = _timed(ours, device)
    queries, keys = narrow
    several = max(1, _PIECE // size.keys)
    parts = torch.split(queries, several)
    found["torch"] = _timed(lambda: [(each @ keys.T).topk(size.k) for each in parts], device)
    return found


def _rate(device: torch.device) -> float:
    """Operations per millisecond of a large square product of 16-bit numbers: the most that a search can reach."""
    side = _SIDE if device.type == "cuda" else _SIDE // 64
    random = torch.Generator(device).manual_seed(0)
    one, other = (torch.randn(side, side, generator=random, device=device).bfloat16() for _ in range(2))
    return 2 * side**3 / _timed(lambda: one @ other, device)


def _check_search(queries: Tensor, keys: Any, k: int, backend: Backend) -> None:
    ours = exact_topk(queries, keys, k, backend=backend).rows[:_CHECKED]
    if not torch.equal(ours, exact_topk(queries[:_CHECKED], keys, k, backend="torch").rows):
        raise AttnKNNError(f"the {backend} search of {keys.rows} keys finds other neighbors than torch")


def _attention(
    size: AttentionSize, device: torch.device, backend: Backend
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Milliseconds and MiB beside the inputs, forward and with the backward pass, of ours and of others."""
    torch.manual_seed(0)
    shape = size.batch, size.tokens, 3, size.heads, size.dim
    given = torch.randn(shape, device=device, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    q, k, v = leaves = [each.detach().requires_grad_() for each in given.unbind()]
    factors = torch.ones(size.dim, size.k, device=device, requires_grad=True)
    _check_attention(leaves, factors, size.k, backend)
    ways: Mapping[str, Callable[[], Tensor]] = {
        "ours": lambda: knn_attention(q, k, v, size.k, rank_weights=factors, backend=backend),
        "gather": lambda: gathered(q, k, v, factors, size.dim**-0.5),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v),
    }
    slope = torch.randn_like(leaves[0])
    seconds: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    memory: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
    for name, way in ways.items():
        turned = leaves if name == "sdpa" else [*leaves, factors]
        for direction, work in (
            ("forward", partial(_forward, way)),
            ("backward", partial(_backward, way, turned, slope)),
        ):
            seconds[direction][name] = _timed(work, device)
            memory[direction][name] = _peak(work, device)
    return seconds, memory


def _training(size: TrainingSize, device: str) -> dict[str, float]:
    """An epoch of ours, leave-one-out over the whole bank, and of a CNN; the first compiles and does not count."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (size.images, size.pixels, size.pixels, 3), dtype=np.uint8)
    labels = draw.integers(0, size.classes, size.images)
    rows = Rows(images, labels, np.ones(size.images), np.full(size.images, -1))
    found = {}
    for name, weight in (("ours", 1.0), ("cnn", 0.0)):
        options = ImageOptions(epochs=size.epochs, candidates=1.0, nca=weight, compile=size.compiled)
        history = train_images(rows, None, classes=size.classes, options=options, seed=0, device=device).history
        found[name] = 1e3 * median(epoch["seconds"] for epoch in history.epochs if epoch["epoch"] > 1)
    return found


@torch.no_grad()
def _forward(way: Callable[[], Tensor]) -> None:
    way()


def _backward(way: Callable[[], Tensor], leaves: Sequence[Tensor], slope: Tensor) -> None:
    torch.autograd.grad(way(), leaves, slope)


def _check_attention(leaves: Sequence[Tensor], factors: Tensor, k: int, backend: Backend) -> None:
    q, keys, v = (each[:1] for each in leaves)
    _, ours = knn_attention(q, keys, v, k, rank_weights=factors, backend=backend, return_indices=True)
    _, others = knn_attention(q, keys, v, k, rank_weights=factors, backend="torch", return_indices=True)
    alike = float((ours == others).float().mean())
    if alike < _FEWEST_ALIKE:
        raise AttnKNNError(f"{backend} token attention keeps other tokens than torch: {alike:.4f} are the same")


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds, the median over rounds; on a GPU those of the GPU, with a cache that holds other things."""
    for _ in range(2):
        work()
    return median(_cuda_rounds(work, device) if device.type == "cuda" else _rounds(work))


def _rounds(work: Callable[[], Any]) -> list[float]:
    took: list[float] = []
    while len(took) < 5 or (sum(took) < 1e3 * _LEAST_SECONDS and len(took) < 200):
        began = time.perf_counter()
        work()
        took.append(1e3 * (time.perf_counter() - began))
    return took


def _cuda_rounds(work: Callable[[], Any], device: torch.device) -> list[float]:
    """While a round is launched the GPU is busy otherwise: what the processor does for it does not count."""
    other = torch.empty(2**28, dtype=torch.int8, device=device)
    took: list[float] = []
    while len(took) < 5 or (sum(took) < 1e3 * _LEAST_SECONDS and len(took) < 200):
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(5)]  # type: ignore[no-untyped-call]
        for start, end in marks:
            for _ in range(_PASSES):
                other.zero_()
            start.record()
            work()
            end.record()
        _settled(device)
        took += [start.elapsed_time(end) for start, end in marks]
    return took


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(work: Callable[[], Any], device: torch.device) -> float:
    """MiB that the work holds at most beside what is there before; NaN where the device does not tell."""
    if device.type != "cuda":
        return float("nan")
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20

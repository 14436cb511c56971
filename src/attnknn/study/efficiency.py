"""What a search costs: time to build, time per query, recall and memory of every index, from small banks to large.

Every place has a process of its own: past its time limit it is ended, whatever it does, and its memory is clean.
A place that could not be measured says why, under ``not_run``.

- Vectors are clustered and of length 1, as embeddings are: an approximate index needs something to find.
- Building is adding all rows at once and the first search. Small things that are loaded only once, such as FAISS
  and the threads of BLAS, are loaded before.
- Times are wall-clock, with as many threads as the process is given.
- Recall is against exhaustive search on the CPU.
- Memory is by how much the process grew while the bank was built, on the host and, where it searches there, on
  the GPU. The size of a saved index would say less: most are not saved but built again, and the bank's own
  vectors, labels and ids are beside them. It is right to a few MiB, and unknown where there is no ``/proc``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.bank import INDEXES, MemoryBank
from attnknn.errors import AttnKNNError, InvalidInput, MissingDevice
from attnknn.metrics.inputs import checked_count
from attnknn.ops import exact_topk
from attnknn.study.record import write_json

SIZES: Final = ((1_000, 256), (10_000, 256), (50_000, 256), (100_000, 64), (1_000_000, 64))
"""Rows and dimensions of the banks."""

HEAD: Final = (
    "index, rows x dim, device",
    "build s",
    "ms, one query",
    "ms, in a batch",
    "recall",
    "MiB",
    "remark",
)
"""Above the rows of :func:`table`."""

LIMIT: Final = 120.0
"""Seconds that a place may take, making the vectors included."""

_CLUSTERS = 500
_SINGLE = 200  # queries asked one by one
_JUDGES = 200  # queries that recall is of
_LOADING = 2_500  # rows enough for every index to do all it ever does
_QUICK = 20_000  # rows at most of a quick run
_STATUS = Path("/proc/self/status")

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """One bank to measure.

    Args:
        index: ``exact``, ``flat``, ``hnsw`` or ``ivf``.
        rows: In the bank.
        dim: Width of the vectors.
        device: Where ``exact`` searches; FAISS searches on the CPU.

    >>> Place("hnsw", 50_000, 256).name
    'hnsw-50000x256-cpu'
    """

    index: str
    rows: int
    dim: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.index not in INDEXES:
            raise InvalidInput(f"index must be one of {', '.join(INDEXES)}, got {self.index!r}")
        for name in ("rows", "dim"):
            checked_count(getattr(self, name), name)
        if self.index != "exact" and self.device != "cpu":
            raise InvalidInput(f"{self.index} searches on the CPU only, got device={self.device!r}")

    @property
    def name(self) -> str:
        """What results are filed under."""
        return f"{self.index}-{self.rows}x{self.dim}-{self.device}"


_KINDS = (*((index, "cpu") for index in INDEXES), ("exact", "cuda"))
PLACES: Final = tuple(Place(index, rows, dim, device) for rows, dim in SIZES for index, device in _KINDS)
"""All that the study measures."""


def quick_places() -> tuple[Place, ...]:
    """The smallest and the largest banks among those of at most 20,000 rows."""
    few = [place.rows for place in PLACES if place.rows <= _QUICK]
    return tuple(place for place in PLACES if place.rows in (min(few), max(few)))


def measure(
    place: Place, *, k: int = 16, queries: int = 1000, limit: float = LIMIT, seed: int = 0, repeats: int = 5
) -> dict[str, Any]:
    """Measure a place in a fresh process.

    Args:
        place: What to measure.
        k: Neighbors that are searched.
        queries: Size of the large batch.
        limit: Seconds that the process may take in all, making the vectors included.
        seed: Of the vectors.
        repeats: How often the large batch is searched.

    Returns:
        What :func:`measure_here` finds, or ``not_run`` with the reason: no such device, FAISS not installed, too
        little time or memory.
    """
    from attnknn.estimator.options import search_device  # here, so that the process to start loads less

    for name, count in {"k": k, "queries": queries, "repeats": repeats}.items():
        checked_count(count, name)
    if not limit > 0:
        raise InvalidInput(f"limit must be a number of seconds above 0, got {limit!r}")
    try:
        place = replace(place, device=search_device(place.device))
    except MissingDevice as missing:
        return {"not_run": str(missing)}
    asked = {"place": asdict(place), "k": k, "queries": queries, "seed": seed, "repeats": repeats}
    command = [sys.executable, "-P", "-m", "attnknn.study.efficiency", json.dumps(asked)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)  # noqa: S603
    except subprocess.TimeoutExpired:
        return {"not_run": f"took longer than {limit:g} s"}
    if ran.returncode:
        return {"not_run": _reason(ran.returncode, ran.stderr)}
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def measure_here(
    place: Place, *, k: int = 16, queries: int = 1000, seed: int = 0, repeats: int = 5
) -> dict[str, Any]:
    """The same in this process, without a limit; arguments as for :func:`measure`.

    What the process did before may blur the memory.

    Returns:
        What was asked; ``build_s``; ``ms_per_query`` with median and quartiles, of a ``single`` query and in a
        ``batch`` of all; ``recall``; and ``bytes`` on ``host`` (None where unknown) and ``gpu``.
    """
    vectors, asked = clustered(place.rows, place.dim, queries, seed)
    _built(place, vectors[:_LOADING]).search(asked, k)
    before = _held(place.device)
    start = time.perf_counter()
    bank = _built(place, vectors)
    bank.search(asked[:1], k)
    seconds = time.perf_counter() - start
    after = _held(place.device)
    bank.search(asked, k)  # the first of a size is slower
    settings = {"k": k, "queries": queries, "seed": seed, "repeats": repeats, "threads": torch.get_num_threads()}
    return {
        **asdict(place),
        **settings,
        "build_s": seconds,
        "ms_per_query": {
            "single": _timed(bank, (asked[at : at + 1] for at in range(min(queries, _SINGLE))), k),
            "batch": _timed(bank, (asked for _ in range(repeats)), k),
        },
        "recall": recall(bank.search(asked[:_JUDGES], k).rows, _nearest(vectors, asked[:_JUDGES], k)),
        "bytes": {where: _difference(before[where], after[where]) for where in after},
    }


def clustered(rows: int, dim: int, queries: int, seed: int) -> tuple[Floats, Floats]:
    """Vectors (rows, dim) and queries (queries, dim) of length 1 around the same 500 centers."""
    draw = np.random.default_rng(seed)
    points = draw.standard_normal((rows + queries, dim), np.float32)
    centers = draw.standard_normal((_CLUSTERS, dim), np.float32)
    points += centers[draw.integers(_CLUSTERS, size=len(points))]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points[:rows], points[rows:]


def recall(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Mean share of the true neighbors (queries, k) that were found, in whatever order.

    >>> recall(np.array([[7, 1, 9]]), np.array([[1, 2, 7]]))
    0.6666666666666666
    """
    return float(np.mean([np.isin(true, got).mean() for got, true in zip(found, truth, strict=True)]))


def run_places(
    folder: Path,
    places: Sequence[Place],
    say: Callable[[str], None],
    since: float = math.inf,
    late: Callable[[], str | None] = lambda: None,
) -> dict[str, dict[str, Any]]:
    """Measure the places that have no file in a folder yet; one that was not run is tried again.

    Args:
        folder: Where the files are.
        places: What to measure.
        say: Hears what is being done.
        since: What was not run since then, as ``time.time`` tells it, is not tried again.
        late: Tells why nothing more is measured; None while something may be.
    """
    found = {}
    for at, place in enumerate(places):
        path = folder / f"{place.name}.json"
        known = json.loads(path.read_text()) if path.exists() else {"not_run": "not tried"}
        if "not_run" in known and not (path.exists() and path.stat().st_mtime > since):
            left = LIMIT * (len(places) - at) / 60
            say(f"{place.name}: place {at + 1} of {len(places)}, at most {left:.0f} min left")
            if (why := late()) is None:
                known = measure(place)
                write_json(path, known)
            elif not path.exists():
                known = {"not_run": why}
        found[place.name] = known
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A row of text for each place, by name, under :data:`HEAD`; the last column says why one was not run."""
    return [[name, *_cells(each)] for name, each in found.items()]


def _cells(each: Mapping[str, Any]) -> list[str]:
    if "not_run" in each:
        return ["-"] * (len(HEAD) - 2) + [f"not run: {each['not_run']}"]
    times, held = each["ms_per_query"], each["bytes"]
    mib = "-" if held["host"] is None else f"{(held['host'] + held['gpu']) / 2**20:,.0f}"
    spread = [f"{times[how]['median']:.3f}" for how in ("single", "batch")]
    return [f"{each['build_s']:.2f}", *spread, f"{each['recall']:.3f}", mib, ""]


def _reason(code: int, said: str) -> str:
    """Why a process ended with a code other than 0: its last words, or the signal."""
    if code < 0:
        why = ", most likely for want of memory" if code == -9 else ""
        return f"the process was ended by signal {-code}{why}"
    return (said.strip().splitlines() or [f"the process ended with code {code}"])[-1]


def _built(place: Place, vectors: Floats) -> MemoryBank:
    bank = MemoryBank(place.dim, index=place.index, metric="cosine", device=place.device)
    bank.add(vectors, np.zeros(len(vectors), np.int64))
    return bank


def _nearest(vectors: Floats, queries: Floats, k: int) -> NDArray[np.int64]:
    """(queries, k) rows by exhaustive search."""
    rows: NDArray[np.int64] = exact_topk(
        torch.from_numpy(queries), torch.from_numpy(vectors), k, metric="cosine"
    ).rows.numpy()
    return rows


def _timed(bank: MemoryBank, batches: Iterable[Floats], k: int) -> dict[str, Any]:
    """Milliseconds per query over some searches; what a bank answers lies on the CPU, so nothing is left to do."""
    laps = []
    for batch in batches:
        start = time.perf_counter()
        bank.search(batch, k)
        laps.append(1e3 * (time.perf_counter() - start) / len(batch))
    low, median, high = np.percentile(laps, [25, 50, 75]).tolist()
    return {"median": median, "quartiles": [low, high]}


def _held(device: str) -> dict[str, int | None]:
    """Bytes in use, once all that is free has gone back to the system."""
    gc.collect()
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    gpu = torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0
    said = re.search(r"VmRSS:\s+(\d+) kB", _STATUS.read_text()) if _STATUS.exists() else None
    return {"host": 1024 * int(said[1]) if said else None, "gpu": gpu}


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _main(asked: dict[str, Any]) -> None:
    place = Place(**asked.pop("place"))
    try:
        print(json.dumps(measure_here(place, **asked)))
    except (AttnKNNError, MemoryError, torch.cuda.OutOfMemoryError) as problem:
        sys.exit((str(problem) or "too little memory").splitlines()[0])


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

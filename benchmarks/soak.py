"""Hours of use in minutes: random operations beside a dictionary, then threads on every index.

python benchmarks/soak.py --operations 200000 --minutes 10
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "laws"), str(TESTS / "faults")]

from bank_model import run_operations  # noqa: E402
from bank_threads import Crowd, run_threads  # noqa: E402

SHARES = {
    ("exact", "l2"): 0.3,
    ("exact", "cosine"): 0.15,
    ("exact", "ip"): 0.15,
    ("flat", "l2"): 0.1,
    ("flat", "cosine"): 0.1,
    ("hnsw", "l2"): 0.1,
    ("ivf", "l2"): 0.1,
}


def main() -> int:
    """Exits 0 when all agreed, 1 at the first disagreement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=200_000, help="operations in all")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of threads in all")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="default: from the clock")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    try:
        operate(options.operations, options.seed)
        crowd(options.minutes * 60, options.seed)
    except AssertionError as problem:
        print(f"\nFAILED with --seed {options.seed}: {problem}", flush=True)
        return 1
    print("all agreed")
    return 0


def operate(operations: int, seed: int) -> None:
    for (index, metric), share in SHARES.items():
        many, began = int(operations * share), time.monotonic()
        show = _line(f"{index} {metric}: {{}} of {many:,} operations")
        counts = run_operations(many, seed, index, metric, progress=show)
        show(many)
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        print(f" in {time.monotonic() - began:.0f} s ({kinds})", flush=True)


def crowd(seconds: float, seed: int) -> None:
    for index in ("exact", "flat", "hnsw", "ivf"):
        show = _line(f"{index}: {{}} answers from 8 threads while 2 edit and 1 saves")
        with tempfile.TemporaryDirectory() as folder:
            tell = partial(_answers, show)
            done = run_threads(index, seconds / 4, seed, Path(folder) / "bank", progress=tell)
        show(done.answers)
        print(f", {done.edits:,} edits, {seconds / 4:.0f} s", flush=True)


def _answers(show: Callable[[int], None], crowd: Crowd) -> None:
    show(crowd.answers)


def _line(text: str) -> Callable[[int], None]:
    """A progress line, rewritten in place."""
    return lambda count: print(f"\r{text.format(f'{count:,}')}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())

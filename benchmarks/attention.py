"""What learned attention costs on top of the search: 50,000 x 256, k = 16, batches of 1,000, on the CPU.

    python benchmarks/attention.py --out results/synthetic/attention.json

Search, attention and vote are timed apart, in one process, in rounds. The attention has its usual parts, with
weights drawn at random: what they are does not matter for the time. The reliability of the rows is computed
once before, as a bank does after an edit; it is reported beside.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from attnknn.attend import AttentionOptions, LearnedWeighting, MultiHeadNeighborAttention
from attnknn.bank import MemoryBank
from attnknn.ops import evidence
from attnknn.study.record import recorded, write_json
from search import make_data


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def measure(rows: int, dim: int, k: int, batch: int, rounds: int, parts: AttentionOptions) -> dict[str, Any]:
    """Milliseconds of each step for one batch: the median over rounds."""
    X, y, queries = make_data(rows, dim, "clustered", 0)
    bank = MemoryBank(dim)
    bank.add(X, y)
    torch.manual_seed(0)
    attention = MultiHeadNeighborAttention(dim, parts, unit=20.0)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    weigher = LearnedWeighting(attention)
    once, _ = seconds(lambda: bank.reliability(bank.live))
    asked = queries[:batch]
    taken: dict[str, list[float]] = {"search": [], "attention": [], "vote": []}
    for _ in range(rounds):
        lap, near = seconds(lambda: bank.search(asked, k))
        taken["search"].append(lap)
        lap, weights = seconds(lambda near=near: weigher(near, bank, asked))
        taken["attention"].append(lap)
        labels = torch.from_numpy(near.labels)
        lap, _ = seconds(lambda weights=weights, labels=labels: evidence(weights, labels, int(y.max()) + 1))
        taken["vote"].append(lap)
    each = {name: 1e3 * median(laps) for name, laps in taken.items()}
    return {"milliseconds": each, "ratio": each["attention"] / each["search"], "reliability_once_s": once}


def main() -> None:
    """Measure the usual parts and all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/synthetic/attention.json"))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    config = {name: value for name, value in vars(asked).items() if name != "out"}
    kinds = {
        "usual": AttentionOptions(),
        "all": AttentionOptions(distance_bias=True, prototypes=True, self_attention=True),
    }
    found = {name: measure(**config, parts=parts) for name, parts in kinds.items()}
    write_json(asked.out, recorded({"config": config, "attention": found}))
    for name, each in found.items():
        print(
            name, {step: round(ms, 2) for step, ms in each["milliseconds"].items()}, f"ratio {each['ratio']:.2f}"
        )


if __name__ == "__main__":
    main()

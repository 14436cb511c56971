"""Token layers side by side: one ViT for each variant and seed, trained alike, tested once.

    python benchmarks/vit.py --data cifar10 --seeds 3 --out runs/vit-cifar10 --save results/vit/cifar10.json

Each (variant, seed) is a training of its own in a folder of its own, as ``attnknn vit train`` leaves it; what is
there is not done again, so a run that is stopped goes on, and several may share the work by ``--variants``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attnknn.cli.vit_data import read
from attnknn.estimator.options import training_device
from attnknn.metrics import seed_interval
from attnknn.study import record
from attnknn.study.vit_run import run_vit
from attnknn.vit.settings import ViTOptions

CONVNN = {"layer": "ConvNNAttention", "K": 9}
VARIANTS: dict[str, dict[str, Any]] = {
    "attention": {"layer": "Attention"},
    "attention-random-16": {"layer": "Attention", "sampling_type": "random", "num_samples": 16},
    "attention-random-32": {"layer": "Attention", "sampling_type": "random", "num_samples": 32},
    "attention-spatial-4": {"layer": "Attention", "sampling_type": "spatial", "num_samples": 4},
    "kvt": {"layer": "KvtAttention", "K": 9},
    "convnn": CONVNN,
    "convnn-1-head": {**CONVNN, "num_heads": 1},
    "convnn-standard": {**CONVNN, "convolution_type": "standard"},
    "convnn-separable": {**CONVNN, "convolution_type": "depthwise-separable"},
    "convnn-cosine": {**CONVNN, "magnitude_type": "cosine"},
    "convnn-euclidean": {**CONVNN, "magnitude_type": "euclidean"},
    "convnn-coordinates": {**CONVNN, "coordinate_encoding": True},
    "convnn-random-16": {**CONVNN, "sampling_type": "random", "num_samples": 16},
    "convnn-random-32": {**CONVNN, "sampling_type": "random", "num_samples": 32},
    "convnn-spatial-4": {**CONVNN, "sampling_type": "spatial", "num_samples": 4},
    "local": {"layer": "LocalAttention", "window_size": 16},
    "neighborhood-1d": {"layer": "NeighborhoodAttention", "K": 9},
    "neighborhood-2d": {"layer": "NeighborhoodAttention2D", "K": 3},
    "sparse-local": {"layer": "SparseAttention", "sparse_mode": "local", "sparse_context_window": 16},
    "sparse-strided": {"layer": "SparseAttention", "sparse_mode": "strided", "sparse_context_window": 8},
    "branch-conv": {"layer": "BranchConv", "K": 9, "kernel_size": 9},
    "branch-attention": {"layer": "BranchAttention", "K": 9},
}
"""What differs; random and spatial candidates are compared with plain attention over as many of the same kind."""

PAIRS = (
    ("convnn-random-16", "attention-random-16"),
    ("convnn-random-32", "attention-random-32"),
    ("convnn-spatial-4", "attention-spatial-4"),
    ("convnn", "kvt"),
    ("convnn", "attention"),
    ("attention-random-16", "attention"),
    ("attention-random-32", "attention"),
    ("convnn-random-16", "attention"),
    ("convnn-random-32", "attention"),
)
"""First minus second, paired by seed."""


def main() -> None:
    asked = _arguments()
    options = ViTOptions(
        num_epochs=asked.epochs,
        batch_size=asked.batch_size,
        lr=asked.lr,
        weight_decay=0.05,
        scheduler="cosine",
        augment=True,
        use_amp=asked.amp,
        use_compiled=asked.compile,
    )
    base = {"img_size": asked.resize, "patch_size": asked.patch_size, "num_layers": asked.num_layers}
    names = asked.variants.split(",") if asked.variants else list(VARIANTS)
    data, device = None, training_device(asked.device, None)
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for name in names:
            folder = asked.out / f"{name}-{seed}"
            if (folder / "results.json").exists():
                continue
            data = data or read(asked.data, asked.data_path, asked.resize, 0)
            config = {**base, "num_heads": 3, **VARIANTS[name]}
            found = run_vit(data, config, options, out=folder, seed=seed, device=device, given_commit=asked.commit)
            print(f"{name} seed {seed}: {found.test.top1:.4f}", file=sys.stderr, flush=True)
    if asked.save:
        record.write(asked.save, _report(asked.out), given_commit=asked.commit)


def _report(out: Path) -> dict[str, Any]:
    """Means over seeds with intervals, and differences paired by seed."""
    cells: dict[str, dict[int, dict[str, Any]]] = {}
    for path in sorted(out.glob("*/results.json")):
        name, _, seed = path.parent.name.rpartition("-")
        cells.setdefault(name, {})[int(seed)] = json.loads(path.read_text())
    if not cells:
        raise SystemExit(f"nothing is finished in {out}")
    ordered = {name: cells[name] for name in VARIANTS if name in cells}
    first = next(iter(next(iter(ordered.values())).values()))
    return {
        "data": first["data"],
        "options": first["options"],
        "not_run": [name for name in VARIANTS if name not in cells],
        "variants": {name: _summary(found) for name, found in ordered.items()},
        "differences": [_difference(one, two, cells) for one, two in PAIRS if one in cells and two in cells],
    }


def _summary(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    each = [found[seed] for seed in sorted(found)]
    seconds = [np.median([epoch["train_seconds"] for epoch in one["epochs"][1:] or one["epochs"]]) for one in each]
    return {
        "config": each[0]["config"],
        "parameters": each[0]["parameters"]["all"],
        "gflops": each[0]["flops"]["total"] / 1e9,
        "seeds": sorted(found),
        "top1": [one["test"]["top1"] for one in each],
        "accuracy": _interval([one["test"]["top1"] for one in each]),
        "loss": _interval([one["test"]["loss"] for one in each]),
        "train_top1": _interval([one["epochs"][-1]["train_top1"] for one in each]),
        "seconds_per_epoch": float(np.median(seconds)),
        "peak_memory": each[0]["peak_memory"],
        "commits": sorted({str(one["commit"]) for one in each}),
        "device": each[0]["device"],
    }


def _difference(one: str, two: str, cells: dict[str, dict[int, dict[str, Any]]]) -> dict[str, Any]:
    seeds = sorted(cells[one].keys() & cells[two].keys())
    gaps = [cells[one][seed]["test"]["top1"] - cells[two][seed]["test"]["top1"] for seed in seeds]
    return {"first": one, "second": two, "seeds": seeds, "accuracy": _interval(gaps)}


def _interval(values: list[float]) -> dict[str, float | None]:
    if len(values) < 2:
        return {"value": values[0], "low": None, "high": None}
    found = seed_interval(values)
    return {"value": found.value, "low": found.low, "high": found.high}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-path", type=Path, default=Path("Data"))
    parser.add_argument("--resize", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--variants", help=f"some of {', '.join(VARIANTS)}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--commit")
    asked = parser.parse_args()
    strange = set((asked.variants or "attention").split(",")) - set(VARIANTS)
    if strange:
        parser.error(f"no variant is called {', '.join(sorted(strange))}; there are {', '.join(VARIANTS)}")
    return asked


if __name__ == "__main__":
    main()

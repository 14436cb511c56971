"""Token layers side by side: one ViT for each variant and seed, trained alike, tested once.

    python benchmarks/vit.py --data cifar10 --seeds 3 --out runs/vit-cifar10 --save results/vit/cifar10.json

Each (variant, seed) is a training of its own in a folder of its own, as ``attnknn vit train`` leaves it. What is
there, or in the record that ``--save`` names, is not done again, so a run that is stopped goes on, elsewhere too;
and the same command may be started several times at once: each training is taken by one of them.

What a step costs is measured apart, with nothing else on the device, by the same command with ``--timing``: each
variant trains a few dozen steps, and ``timing.json`` in the same folder says how long they took.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnknn.cli.vit_data import read
from attnknn.estimator.options import training_device
from attnknn.metrics import seed_interval
from attnknn.study import record
from attnknn.study.claims import claimed
from attnknn.study.vit_run import VitData, run_vit
from attnknn.vit import ViT, ViTOptions, train_vit
from attnknn.vit.frames import Frames, channel_stats
from attnknn.vit.settings import SELECTIONS

TIMING = "timing.json"
RESULTS = "results.json"
Cells = dict[str, dict[int, dict[str, Any]]]
"""What each training left in results.json, by variant and seed."""

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
    ("convnn-random-16", "convnn"),
    ("convnn-random-32", "convnn"),
    ("convnn", "kvt"),
    ("convnn", "attention"),
    ("attention-random-16", "attention"),
    ("attention-random-32", "attention"),
    ("convnn-random-16", "attention"),
    ("convnn-random-32", "attention"),
    ("local", "attention"),
    ("neighborhood-2d", "attention"),
    ("branch-conv", "attention"),
)
"""First minus second, paired by seed."""

TIMED_EPOCHS = 5
"""Of a timing; the first, in which all that is made once is made, does not count."""

ALONE = ("ms_per_step", "images_per_second", "peak_memory", "compile", "steps", "device", "commit", "error")
"""What a report repeats of a timing."""


def main() -> None:
    asked = _arguments()
    device = training_device(asked.device, None)
    names = asked.variants.split(",") if asked.variants else list(VARIANTS)
    if asked.save and asked.save.exists():
        _laid_out(json.loads(asked.save.read_text()), asked.out)
    (_time_all if asked.timing else _train_all)(asked, names, device)
    if asked.save:
        record.write(asked.save, _report(asked.out), given_commit=asked.commit)


def _train_all(asked: argparse.Namespace, names: list[str], device: str) -> None:
    """A training for each variant and seed that has none yet."""
    data, options = None, _options(asked)
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for name in names:
            folder = asked.out / f"{name}-{seed}"
            with claimed(folder / "claim") as mine:
                if not mine or (folder / RESULTS).exists():
                    continue
                data, config = data or _data(asked), _config(asked, name)
                torch.compiler.reset()  # a process compiles one function only so often
                told = {"out": folder, "seed": seed, "device": device, "given_commit": asked.commit}
                found = run_vit(data, config, options, **told)
                print(f"{name} seed {seed}: {found.test.top1:.4f}", file=sys.stderr, flush=True)


def _laid_out(report: dict[str, Any], out: Path) -> None:
    """Put what a record holds where it would lie had it been made here; what is there already stays."""
    every = {
        out / f"{name}-{seed}" / RESULTS: cell
        for name, seeds in report["cells"].items()
        for seed, cell in seeds.items()
    }
    for cell in every.values():
        cell["options"].setdefault("select", "loss")  # older ones could not choose
    for path, content in {**every, out / TIMING: {"variants": report["timing"]}}.items():
        if not path.exists():
            record.write_json(path, content)


def _time_all(asked: argparse.Namespace, names: list[str], device: str) -> None:
    """Time each variant that is not timed with these settings yet; one that fails is told, the others go on."""
    path, there = asked.out / TIMING, _timed(asked.out)
    told, options = record.environment(device)["device"], replace(_options(asked), num_epochs=TIMED_EPOCHS)
    data, frames = None, None
    for name in names:
        data = data or _data(asked)
        config = {**_config(asked, name), "num_classes": len(data.classes), "in_channels": data.train.shape[3]}
        settings = {"config": config, "options": options.state(), "steps": asked.steps, "device": told}
        entry = there.get(name, {"error": "new"})
        if "error" not in entry and all(entry[key] == value for key, value in settings.items()):
            continue
        frames = frames or _frames(data, (asked.resize, asked.resize), asked.steps * asked.batch_size, device)
        try:
            measured = _measured(config, *frames, options)
        except Exception as failed:  # whatever it is: the other variants are still worth measuring
            measured = {"error": _in_words(failed)}
        there[name] = record.recorded({**settings, **measured}, given_commit=asked.commit)
        ordered = {each: there[each] for each in VARIANTS if each in there}
        record.write(path, {"variants": ordered}, given_commit=asked.commit)
        words = measured.get("error") or f"{measured['ms_per_step']:.1f} ms per step"
        print(f"{name}: {words}", file=sys.stderr, flush=True)


def _measured(config: dict[str, Any], rows: Frames, held: Frames, options: ViTOptions) -> dict[str, Any]:
    """Time and memory of a short training with nothing beside it on the device; the images are there already."""
    gc.collect()  # of the variant before
    torch.compiler.reset()
    torch.manual_seed(0)
    on_gpu, before = rows.device.type == "cuda", 0
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(rows.device)
        before = torch.cuda.memory_allocated(rows.device)
    history = train_vit(ViT(**config), rows, held, options)
    steps = len(rows) // options.batch_size
    seconds = float(np.median([epoch["train_seconds"] for epoch in history.epochs[1:]])) / steps
    return {
        "ms_per_step": 1e3 * seconds,
        "images_per_second": options.batch_size / seconds,
        "peak_memory": torch.cuda.max_memory_allocated(rows.device) - before if on_gpu else None,
        "compile": options.use_compiled,
    }


def _frames(data: VitData, size: tuple[int, int], count: int, device: str) -> tuple[Frames, Frames]:
    """So many images to train on, some of them again where there are fewer, and a few to validate on."""
    at, stats = np.resize(np.arange(len(data.train)), count), channel_stats(data.train)
    parts = (at, at[:256])
    train, held = (
        Frames(data.train[part], data.train_codes[part], size=size, stats=stats, device=torch.device(device))
        for part in parts
    )
    return train, held


def _in_words(failed: Exception) -> str:
    """The first line of an error, without folders: those are of one machine."""
    first = (str(failed).strip().splitlines() or [""])[0]
    return f"{type(failed).__name__}: {re.sub(r'/[^ ]*/', '', first)}"[:200]


def _timed(out: Path) -> dict[str, dict[str, Any]]:
    path = out / TIMING
    return json.loads(path.read_text())["variants"] if path.exists() else {}


def _data(asked: argparse.Namespace) -> VitData:
    """The images; with ``--images`` so many of those to learn from, and at most as many to test on."""
    data = read(asked.data, asked.data_path, asked.resize, 0)
    if asked.images is None:
        return data
    draw = np.random.default_rng(0)
    learn, test = (draw.permutation(len(each))[: asked.images] for each in (data.train, data.test))
    return replace(
        data,
        train=data.train[learn],
        train_codes=data.train_codes[learn],
        test=data.test[test],
        test_codes=data.test_codes[test],
    )


def _config(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    base = {"img_size": asked.resize, "patch_size": asked.patch_size, "num_layers": asked.num_layers}
    return {**base, "num_heads": 3, **VARIANTS[name]}


def _options(asked: argparse.Namespace) -> ViTOptions:
    return ViTOptions(
        num_epochs=asked.epochs,
        batch_size=asked.batch_size,
        lr=asked.lr,
        weight_decay=0.05,
        scheduler="cosine",
        augment=not asked.plain,
        select=asked.select,
        use_amp=asked.amp,
        use_compiled=asked.compile,
    )


def _report(out: Path) -> dict[str, Any]:
    """Means over seeds with intervals, differences paired by seed, the timing where there is one, and all of it.

    Seconds of the trainings are only in what each left: several may have shared the device.
    """
    cells: Cells = {}
    for path in sorted(out.glob(f"*/{RESULTS}")):
        name, _, seed = path.parent.name.rpartition("-")
        cells.setdefault(name, {})[int(seed)] = json.loads(path.read_text())
    ordered = {name: cells[name] for name in VARIANTS if name in cells}
    if not ordered:
        raise SystemExit(f"nothing is finished in {out}")
    config, timed = _shared_config(ordered), _timed(out)
    seeds = sorted({seed for found in ordered.values() for seed in found})
    variants = {name: _about(found, timed.get(name)) for name, found in ordered.items()}
    differences: dict[str, dict[str, Any]] = {}
    for one, two in PAIRS:
        shared = sorted(ordered.get(one, {}).keys() & ordered.get(two, {}).keys())
        if shared:
            gaps = [_accuracy(ordered[one][seed]) - _accuracy(ordered[two][seed]) for seed in shared]
            differences.setdefault(one, {})[two] = {"accuracy": {**_interval(gaps), "seeds": shared}}
    return {
        "config": config,
        "seeds": seeds,
        "seconds": {
            name: {"step": each["alone"]["ms_per_step"] / 1e3}
            for name, each in variants.items()
            if "ms_per_step" in each.get("alone", {})
        },
        "methods": {name: _scores(found, seeds) for name, found in ordered.items()},
        "variants": variants,
        "differences": differences,
        "not_run": [name for name in VARIANTS if name not in cells],
        "environments": _environments(ordered, timed),
        "timing": timed,
        "cells": ordered,
    }


def _shared_config(cells: Cells) -> dict[str, Any]:
    """What all trainings have in common; refused where they differ in more than the layer."""
    every = [
        {
            "data": one["data"]["name"],
            "images": {part: one["data"][part] for part in ("train", "validation", "test")},
            **{key: one["config"][key] for key in ("img_size", "patch_size", "num_layers")},
            "options": one["options"],
        }
        for found in cells.values()
        for one in found.values()
    ]
    if any(each != every[0] for each in every):
        raise SystemExit("these trainings differ in more than the layer; they need folders of their own")
    return every[0]


def _about(found: dict[int, dict[str, Any]], timed: dict[str, Any] | None) -> dict[str, Any]:
    """What is the same for all seeds of a variant."""
    first = next(iter(found.values()))
    about = {
        "config": first["config"],
        "parameters": first["parameters"]["all"],
        "gflops": first["flops"]["total"] / 1e9,
        "device": first["device"],
    }
    if timed is None:
        return about
    asked = {**first["options"], "num_epochs": TIMED_EPOCHS}
    if timed["config"] != first["config"] or timed["options"] != asked:
        raise SystemExit(f"{TIMING} was measured with other settings than the trainings; measure it again")
    return {**about, "alone": {key: timed[key] for key in ALONE if key in timed}}


def _scores(found: dict[int, dict[str, Any]], seeds: list[int]) -> dict[str, Any]:
    each = [found.get(seed) for seed in seeds]
    return {
        "accuracy": _interval([one and _accuracy(one) for one in each]),
        "validation_accuracy": _interval([one and max(map(_validated, one["epochs"])) for one in each]),
        "nll": _interval([one and one["test"]["loss"] for one in each]),
        "train_accuracy": _interval([one and one["epochs"][-1]["train_top1"] for one in each]),
    }


def _accuracy(one: dict[str, Any]) -> float:
    return float(one["test"]["top1"])


def _validated(epoch: dict[str, Any]) -> float:
    return float(epoch["validation_top1"])


def _interval(values: Sequence[float | None]) -> dict[str, Any]:
    known = seed_interval([each for each in values if each is not None])
    return {"mean": known.value, "low": known.low, "high": known.high, "values": list(values)}


def _environments(cells: Cells, timed: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Machines, commits and sources, each with its trainings; a timing is called ``VARIANT-alone``."""
    every = {f"{name}-{seed}": one for name, seeds in cells.items() for seed, one in seeds.items()}
    every |= {f"{name}-alone": one for name, one in timed.items() if name in cells}
    found: dict[str, dict[str, Any]] = {}
    for cell, one in every.items():
        made = {key: one[key] for key in ("environment", "device", "commit", "source_hash")}
        found.setdefault(json.dumps(made), {**made, "cells": []})["cells"].append(cell)
    return list(found.values())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-path", type=Path, default=Path("Data"))
    parser.add_argument("--images", type=int, help="so many to learn from, and at most as many to test on")
    parser.add_argument("--resize", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=4)
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--plain", action="store_true", help="images as they are, neither shifted nor flipped")
    parser.add_argument("--select", choices=SELECTIONS, default="accuracy", help="what the best epoch is best in")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="0 trains nothing")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--variants", help=f"some of {', '.join(VARIANTS)}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--timing", action="store_true", help="time each variant instead of training it")
    parser.add_argument("--steps", type=int, default=20, help=f"of each of {TIMED_EPOCHS} epochs that are timed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--commit")
    asked = parser.parse_args()
    strange = set((asked.variants or "attention").split(",")) - set(VARIANTS)
    if strange:
        parser.error(f"no variant is called {', '.join(sorted(strange))}; there are {', '.join(VARIANTS)}")
    if min(asked.steps, asked.images or 1) < 1:
        parser.error(f"--steps and --images must be at least 1, got {asked.steps} and {asked.images}")
    return asked


if __name__ == "__main__":
    main()

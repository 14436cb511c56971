"""``attnknn bench``: what the parts of this package cost on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput, MissingExtra

app = typer.Typer(help="Measure time and memory.")


@app.callback()
def _group() -> None:  # or its one command would be the group itself
    """Measure time and memory."""


@app.command("gpu")
@screen.examples("attnknn bench gpu", "attnknn bench gpu --save results/gpu/kernels.json")
def gpu(commit: arguments.Commit = None, save: arguments.Save = None, as_json: arguments.Json = False) -> None:
    """Measure the fused kernels: exact search and token attention, beside torch and a floor.

    The floor of a search is what its multiplications take at the rate of a large square product of bfloat16
    numbers. Answers are compared with torch's before anything is measured. An epoch of a ResNet-18 that compares
    each image with all others is measured beside one of a plain CNN. It takes about two minutes and needs a CUDA
    device with 24 GiB, and Triton.

    Exits 0 when all is measured, 2 where it cannot be.
    """
    if save is not None and save.is_dir():
        raise InvalidInput(f"{save} is a folder; --save names a file")
    with screen.progress("starting") as say:
        import torch

        from attnknn.ops.backends import HAS_TRITON
        from attnknn.study.gpu_bench import run_gpu_bench
        from attnknn.study.record import environment, recorded, write_json

        if not torch.cuda.is_available():
            raise InvalidInput("attnknn bench gpu needs a CUDA device; there is none here")
        if not HAS_TRITON:
            raise MissingExtra("attnknn bench gpu needs Triton: pip install 'attnknn[triton]'")
        head = recorded({"environment": environment("cuda")}, given_commit=commit)
        report = {**head, **run_gpu_bench(say=say)}
    if save is not None:
        write_json(save, report)
    if as_json:
        screen.emit(report)
    else:
        show(report)


def show(report: Mapping[str, Any]) -> None:
    """Tables of a report."""
    searches = {name: each for name, each in report["milliseconds"].items() if "floor" in each}
    if searches:
        kinds = list(next(iter(searches.values())))
        screen.table(
            ["milliseconds", *kinds, "share of the floor"],
            [
                [name, *(_short(each[kind]) for kind in kinds), f"{report['share_of_floor'][name]:.0%}"]
                for name, each in searches.items()
            ],
        )
    rows = [
        [f"{name}, {way}", *(_short(each) for each in (*found.values(), *report["mib"][name][way].values()))]
        for name, both in report["milliseconds"].items()
        if "forward" in both
        for way, found in both.items()
    ]
    if rows:
        who = list(next(iter(report["mib"].values()))["forward"])
        units = [f"{each}, {unit}" for unit in ("ms", "MiB") for each in who]
        screen.table(["backward is with forward", *units], rows)

    trained = {name: each for name, each in report["milliseconds"].items() if "cnn" in each}
    if trained:
        screen.table(
            ["milliseconds", "ours", "cnn"],
            [[name, _short(each["ours"]), _short(each["cnn"])] for name, each in trained.items()],
        )


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "-"

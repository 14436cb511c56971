"""``attnknn vit bench``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attnknn.cli import arguments, screen
from attnknn.errors import InvalidInput

_DIRECTIONS = {"forward": "forward", "forward_backward": "forward + backward"}


@screen.examples(
    "attnknn vit bench",
    "attnknn vit bench --tokens 197 --layers ConvNNAttention:1,KvtAttention",
    "attnknn vit bench --device cuda --save results/vit/bench-cuda.json",
)
def bench(
    tokens: Annotated[
        str, typer.Option(metavar="A,B,...", help="Numbers of tokens, the class token included.")
    ] = "197,1024,4096",
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="plain, sdpa, gather or layers, such as ConvNNAttention; heads stand behind a colon, else 3. "
            "Without it, ConvNNAttention with 1 and 3 heads against the first three.",
        ),
    ] = None,
    K: Annotated[
        int, typer.Option("--K", metavar="N", min=1, help="Tokens that each token keeps, where it selects.")
    ] = 9,
    dim: Annotated[int, typer.Option(metavar="N", min=1, help="Width of the tokens.")] = 192,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where: auto, cpu, cuda or mps.")] = "auto",
    processes: Annotated[
        int, typer.Option(metavar="N", min=1, max=100, help="Processes that each number is the median of.")
    ] = 5,
    threads: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="Threads of torch on the CPU.")] = 1,
    commit: arguments.Commit = None,
    save: arguments.Save = None,
    as_json: arguments.Json = False,
) -> None:
    """Measure time and memory of token attention against plain attention.

    `plain` is matmul, softmax and matmul, `sdpa` the same by torch's kernel, `gather` ConvNN attention written
    straight down; `plain` with 3 heads is always measured. Each number is the median of several processes. On
    the CPU with one thread, time is CPU time, so that waiting for other processes does not count; all of it takes
    about a quarter of an hour there.

    Exits 0 when all is measured, 2 for bad input.
    """
    asked, counts = _names(layers), _counts(tokens)
    if save is not None and save.is_dir():
        raise InvalidInput(f"{save} is a folder; --save names a file")
    with screen.progress("starting") as say:
        from attnknn.estimator.options import search_device
        from attnknn.study.record import environment, recorded, write_json
        from attnknn.vit.bench import DEFAULT, run_bench

        where = search_device(device)
        head = recorded(
            {"environment": environment(where)}, given_commit=commit
        )  # now: files may change meanwhile
        found = run_bench(
            asked or DEFAULT, counts, dim=dim, K=K, device=where, processes=processes, threads=threads, say=say
        )
        report = {**head, **found}
    if save is not None:
        write_json(save, report)
    if as_json:
        screen.emit(report)
    else:
        _show(report)


def _names(layers: str | None) -> list[str]:
    if layers is None:
        return []
    names = [name.strip() for name in layers.split(",") if name.strip()]
    if not names:
        raise InvalidInput("--layers: no layer is named; try ConvNNAttention:1,KvtAttention")
    return names


def _counts(tokens: str) -> list[int]:
    counts = [each.strip() for each in tokens.split(",")]
    if not all(each.isdecimal() and len(each) < 10 and int(each) > 0 for each in counts):
        raise InvalidInput(f"--tokens: expected whole numbers above 0, such as 197,1024; got {tokens!r}")
    return [int(each) for each in counts]


def _show(report: Mapping[str, Any]) -> None:
    config = report["config"]
    clock = "CPU time" if config["clock"] == "cpu" else "wall-clock"
    screen.line(
        f"{report['environment']['device']}: {clock}, threads {config['threads']}, dim {config['dim']}, "
        f"K {config['K']}; medians over {config['processes']} processes"
    )
    for tokens, batch in config["batch"].items():
        for direction, said in _DIRECTIONS.items():
            screen.line(f"{tokens} tokens, batch {batch}, {said}")
            found = {name: each[tokens][direction] for name, each in report["methods"].items()}
            screen.table(
                ["layer:heads", "ms", "of plain", "MiB", "of plain"],
                [[name, *_cells(each)] for name, each in found.items()],
            )


def _cells(found: Mapping[str, Any]) -> list[str]:
    of_plain = found["ratios"]["plain:3"]
    return [
        _short(1e3 * found["seconds"]["median"], 1),
        _short(of_plain["seconds"], 2),
        _short(found["mib"]["median"], 1),
        _short(of_plain["mib"], 2),
    ]


def _short(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"

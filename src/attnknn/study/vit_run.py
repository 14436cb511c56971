"""One training of a ViT with all that it leaves behind: what was asked, what came out, and the model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from attnknn.data import split
from attnknn.errors import AnotherTraining, InvalidInput, MissingExtra
from attnknn.study import record
from attnknn.study.claims import claimed
from attnknn.study.curves import training_curves
from attnknn.train.loop import History
from attnknn.train.rows import digest
from attnknn.train.seeds import random_kept, seed_torch
from attnknn.vit.factory import unread_options
from attnknn.vit.frames import Frames, channel_stats
from attnknn.vit.memory import refuse_too_large
from attnknn.vit.model import ViT
from attnknn.vit.saved import TrainedViT
from attnknn.vit.settings import LOSS_NAMES, ViTOptions
from attnknn.vit.summary import flops, summary
from attnknn.vit.training import Scores, count_parameters, evaluate, train_vit

BEST: Final = "best"
CLAIM: Final = ".claim"
LAST: Final = "last.pt"
LOG: Final = "train_eval_results.txt"
HELD: Final = 0.1
"""Share of the training images that choose the best epoch."""

Images = NDArray[np.uint8]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VitData:
    """Images to learn from and images to test on, uint8 (n, h, w, c), with classes as numbers."""

    name: str
    classes: tuple[str, ...]
    train: Images
    train_codes: Codes
    test: Images
    test_codes: Codes


@dataclass(frozen=True, slots=True)
class VitOutcome:
    """What a training leaves."""

    trained: TrainedViT
    history: History
    test: Scores
    results: dict[str, Any]  # what results.json holds


def run_vit(
    data: VitData,
    config: Mapping[str, Any],
    options: ViTOptions,
    *,
    out: Path,
    seed: int = 0,
    device: str = "cpu",
    asked: Mapping[str, Any] | None = None,
    progress: bool = False,
    given_commit: str | None = None,
) -> VitOutcome:
    """Train, choose the best epoch on held-out training images, test once, and write everything to ``out``.

    ``args.txt``, ``model.txt``, ``train_eval_results.txt`` (a line after each epoch), ``results.json``, the
    folder ``best``, ``curves.png`` and ``last.pt``, which a run that is stopped goes on from.

    Args:
        data: The images.
        config: Arguments of :class:`~attnknn.vit.ViT`; classes and channels are those of the data.
        options: How to train.
        out: Folder for what is written.
        seed: Of the model's start, the split, the batches and all else that is drawn.
        device: Where.
        asked: What ``args.txt`` says; the arguments here where it is None.
        progress: Whether a bar is shown.
        given_commit: The commit to record, where there is no git.

    Raises:
        AnotherTraining: ``out`` holds a training with other settings, or one that is under way.
    """
    if device.startswith("cuda") and torch.cuda.is_available():
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
    trained, rows, held = _begun(data, config, options, seed, torch.device(device))
    all_count, trained_count = count_parameters(trained.model)
    cost = flops(trained.model)
    told = {**(asked or {**config, **options.state(), "seed": seed}), **_found(trained.model, len(data.classes))}
    texts = {
        "args.txt": [f"{name}: {value}" for name, value in told.items()],
        "model.txt": [summary(trained.model)],
    }
    first = (
        f"Model Complexity (Profiler): GFLOPs: {cost.total / 1e9:.8f}, "
        f"Trainable Parameters: {trained_count / 1e6:.8f} M"
    )
    with _alone(out):
        history = train_vit(
            *(trained.model, rows, held, options),
            seed=seed,
            checkpoint=out / LAST,
            fingerprint={**_counted(trained.config), "data": digest((), (data.train, data.train_codes))[:12]},
            progress=f"training {_layers(trained.model)}" if progress else None,
            on_epoch=_kept_of(out, first, texts, trained),
        )
        for name, lines in texts.items():
            _write_lines(out / name, lines)
        trained.save(out / BEST)
        frames = trained.frames(data.test, data.test_codes, device)
        test = evaluate(trained.model, frames, options)
        _write_lines(out / LOG, [first, *map(epoch_line, history.epochs), *_ending(history, test)])
        results = {
            "data": {"name": data.name, "train": len(rows), "validation": len(held), "test": len(frames)},
            "config": dict(trained.config),
            "options": options.state(),
            "seed": seed,
            "device": record.environment(device)["device"],
            "parameters": {"all": all_count, "trained": trained_count},
            "flops": cost._asdict() | {"total": cost.total},
            "best_epoch": history.best_epoch,
            "epochs": list(history.epochs),
            "test": {"loss": test.loss, "top1": test.top1, "top5": test.top5},
            "peak_memory": _peak(torch.device(device)),
        }
        record.write(out / "results.json", results, given_commit=given_commit)
        _draw(out / "curves.png", history, f"{_layers(trained.model)} on {data.name}", test)
        return VitOutcome(trained, history, test, results)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Refuse to write where another training does, be it with the same settings."""
    with claimed(out / CLAIM) as mine:
        if not mine:
            raise AnotherTraining(
                f"another training writes to {out}: wait until it has ended, or choose another folder"
            )
        yield


def epoch_line(numbers: Mapping[str, float]) -> str:
    """The line of an epoch, as the source document has it, but with validation images in place of test images."""
    train = _told(numbers["loss_total"], numbers["train_top1"], numbers["train_top5"])
    loss = next(numbers[key] for name in LOSS_NAMES.values() if (key := f"validation_{name}") in numbers)
    held = _told(loss, numbers["validation_top1"], numbers["validation_top5"])
    seconds = numbers["train_seconds"]
    return f"[Epoch {int(numbers['epoch']):03d}] Time: {seconds:.4f}s | [Train] {train} | [Val] {held}"


def _begun(
    data: VitData, config: Mapping[str, Any], options: ViTOptions, seed: int, device: torch.device
) -> tuple[TrainedViT, Frames, Frames]:
    """An untrained model with its images; the seed is set before the model is built."""
    full = {**config, "num_classes": len(data.classes), "in_channels": data.train.shape[3]}
    learn, held = split(data.train_codes, test=HELD, seed=seed)
    if not len(learn) or not len(held) or not len(data.test):
        raise InvalidInput(
            f"{data.name} has {len(data.train)} images to learn from, of which {len(held)} would choose the best "
            f"epoch, and {len(data.test)} to test on: there must be more"
        )
    refuse_too_large(full, options, device, rows=len(learn), held=len(held))
    with random_kept(torch.device("cpu")):
        seed_torch(seed, torch.device("cpu"))
        model = ViT(**full)
    stats = channel_stats(data.train[learn])
    trained = TrainedViT(model.eval(), full, data.classes, stats, options, seed)
    parts = [trained.frames(data.train[at], data.train_codes[at], device) for at in (learn, held)]
    return trained, parts[0], parts[1]


def _found(model: ViT, classes: int) -> dict[str, Any]:
    """What the reference adds to the flags in ``args.txt``, under its names."""
    total, trained = count_parameters(model)
    shape = (model.in_channels, *model.img_size)
    return {
        "num_classes": classes,
        "img_size": shape,
        "model": "VIT",
        "total_params": total,
        "trainable_params": trained,
    }


def _counted(config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a model what it is: options that its layers do not read are as if nothing had been said."""
    unread = unread_options(config.get("layer", "Attention"))
    return {name: unread.get(name, value) for name, value in config.items()}


def _kept_of(
    out: Path, first: str, texts: Mapping[str, Sequence[str]], trained: TrainedViT
) -> Callable[[dict[str, Any]], None]:
    """Adds a line for each epoch as it ends, and saves the model where it is the best so far.

    The texts are written with the first, when the run is accepted.
    """
    path = out / LOG

    def write(numbers: dict[str, Any]) -> None:
        if numbers["epoch"] == 1 or not path.exists():
            _write_lines(path, [first])
            for name, lines in texts.items():
                _write_lines(out / name, lines)
        with path.open("a", encoding="utf-8") as file:
            file.write(epoch_line(numbers) + "\n")
        if numbers["best_epoch"] == numbers["epoch"]:
            trained.save(out / BEST)

    return write


def _ending(history: History, test: Scores) -> list[str]:
    seconds = [each["train_seconds"] for each in history.epochs]
    best = max(history.epochs, key=lambda each: each["validation_top1"])
    return [
        "",
        f"Average Epoch Time: {np.mean(seconds):.4f}s",
        f"Max Accuracy: {100 * best['validation_top1']:.4f}% at Epoch {int(best['epoch'])}",
        f"[Test] {_told(test.loss, test.top1, test.top5)}",
    ]


def _told(loss: float, top1: float, top5: float) -> str:
    return f"Loss: {loss:.8f} Accuracy: Top1: {100 * top1:.4f}%, Top5: {100 * top5:.4f}%"


def _draw(path: Path, history: History, title: str, test: Scores) -> None:
    try:
        record.write_bytes(path, training_curves(history.epochs, title, test.top1))
    except MissingExtra as missing:
        warnings.warn(str(missing), UserWarning, stacklevel=3)


def _layers(model: ViT) -> str:
    return " + ".join(dict.fromkeys(model.layers))


def _peak(device: torch.device) -> int | None:
    """Bytes that were allocated at most, where the device tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    record.write_bytes(path, ("\n".join(lines) + "\n").encode())

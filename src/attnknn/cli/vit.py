"""``attnknn vit``: train, test, compare and look into Vision Transformers with nearest-neighbor attention."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnknn.cli import screen, vit_flags
from attnknn.cli.errors import folder_named_by
from attnknn.cli.vit_bench import bench
from attnknn.cli.vit_flags import BOTH_SPELLINGS, DATA, MODEL, NAMED, SYSTEM, TEST_ONLY, TRAINING, UNKNOWN
from attnknn.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    from attnknn.study.vit_run import VitData
    from attnknn.vit.saved import TrainedViT
    from attnknn.vit.settings import ViTOptions

app = typer.Typer(help="Vision Transformers whose tokens attend to their nearest neighbors.")
app.command("bench", context_settings=BOTH_SPELLINGS)(bench)

JSON = vit_flags.Flag("json", False, bool, "One JSON object on stdout.", "System and output")
COMMIT = vit_flags.Flag("commit", None, str, "Commit to record where there is no git.", "System and output")


@screen.examples(
    "attnknn vit train --layer Attention --dataset cifar10 --output_dir runs/attention",
    "attnknn vit train --layer ConvNNAttention --K 9 --resize 32 --patch_size 4",
    "attnknn vit train --layer ConvNNAttention --sampling_type random --num_samples 32",
    "attnknn vit train --dataset photos/ --num_epochs 30 --use_amp --scheduler cosine",
)
def train(given: dict[str, Any]) -> None:
    """Train a ViT, choose its best epoch on held-out training images, and test it once.

    Writes args.txt, model.txt, train_eval_results.txt (a line per epoch, as it goes), results.json, curves.png
    and the model, in best/, to --output-dir. A run that is stopped goes on where it was. Flags may be written with
    hyphens or underscores.

    Exits 0 when the model is tested, 2 for bad input.
    """
    vit_flags.refuse_unknown(given)
    if given["test_only"]:
        return _tested(given)
    _check_out(given["output_dir"])
    from attnknn.study.vit_run import run_vit
    from attnknn.vit.settings import ViTOptions

    options = ViTOptions(**vit_flags.of(TRAINING, given))
    config = {**vit_flags.of(MODEL, given), "img_size": given["resize"]}
    device = _device(given["device"])
    _check_model(config, options, device)
    data = _data(given)
    asked = vit_flags.of((*MODEL, *DATA, *TRAINING, *SYSTEM), given)
    with folder_named_by("--output_dir"):
        outcome = run_vit(
            *(data, config, options),
            out=given["output_dir"],
            seed=given["seed"],
            device=device,
            asked={**asked, "device": device},
            progress=not given["json"] and sys.stderr.isatty(),
            given_commit=given["commit"],
        )
    told = {"best_epoch": outcome.history.best_epoch, "parameters": outcome.results["parameters"]["all"]}
    return _say(given, data, asdict(outcome.test), told)


@screen.examples(
    "attnknn vit test --output_dir runs/attention",
    "attnknn vit test --output_dir runs/attention --dataset cifar10 --device cpu --json",
)
def test(given: dict[str, Any]) -> None:
    """Test the best model of a training on the images to test on.

    Exits 0 when the images are tested, 2 for bad input.
    """
    return _tested(given)


app.command("train", context_settings=BOTH_SPELLINGS)(
    vit_flags.command(train, (*MODEL, *DATA, *TRAINING, *SYSTEM, TEST_ONLY, COMMIT, JSON, *UNKNOWN))
)
app.command("test", context_settings=BOTH_SPELLINGS)(
    vit_flags.command(test, (*DATA, *(flag for flag in SYSTEM if flag.name != "seed"), JSON))
)


@app.command("layers")
@screen.examples("attnknn vit layers", "attnknn vit layers --json")
def layers(as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False) -> None:
    """List the layers, what each does, and the flags of `vit train` that it reads.

    Exits 0.
    """
    from attnknn.vit import LAYERS, layer_options

    flags = {flag.name for flag in MODEL}
    found = [
        {
            "layer": name,
            "class": each.__name__,
            "what": (each.__doc__ or "").splitlines()[0].replace("``", ""),
            "options": sorted(layer_options(name) & flags),
        }
        for name, each in LAYERS.items()
    ]
    if as_json:
        screen.emit({"layers": found})
        return
    body = [[each["layer"], each["what"], ", ".join(each["options"])] for each in found]
    screen.table(["layer", "what it does", "flags"], body, left=(0, 1, 2))


@app.command("show")
@screen.examples(
    "attnknn vit show runs/vit photo.png --token 3,4 --out kept.svg",
    "attnknn vit show runs/vit/best photo.png --token 0,0 --head 1 --out kept.html",
)
def show(
    model: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Folder of a training, or of its model.")],
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image.")],
    at: Annotated[str, typer.Option("--token", metavar="R,C", help="Row and column of a patch, from 0.")] = "0,0",
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Which head, counted from 0.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Picture to write: .svg, .html, or .png, which has no words.")
    ] = Path("kept.svg"),
) -> None:
    """Draw which tokens each block keeps for one token of an image.

    Exits 0 when the picture is written, 2 for bad input.
    """
    from attnknn.cli.vit_show import draw

    draw(_loaded(model), image, at, head, out)
    screen.line(f"{out}: the tokens that {at} keeps in each block")


def _tested(given: dict[str, Any]) -> None:
    """Test what a training left."""
    from attnknn.vit.training import evaluate

    found, device = _loaded(given["output_dir"]), _device(given["device"])
    _refuse_another_model(found, given)
    data = _data({**given, "resize": found.model.img_size[0], "seed": found.seed})
    if data.classes != found.classes:
        raise InvalidInput(
            f"the model knows {len(found.classes)} classes, {', '.join(found.classes[:3])} ..., and {data.name} "
            f"has {len(data.classes)}, {', '.join(data.classes[:3])} ...: test it on what it was trained for"
        )
    frames = found.frames(data.test, data.test_codes, device)
    scores = evaluate(found.model.to(device), frames, found.options)
    return _say(given, data, asdict(scores), {})


def _refuse_another_model(found: TrainedViT, given: dict[str, Any]) -> None:
    """Refuse flags that were written and say what the model, its images or its test are not."""
    from attnknn.vit.factory import unread_options

    rows, columns = found.model.img_size
    config = {flag.name: found.config.get(flag.name, flag.default) for flag in MODEL}
    there = {"resize": rows if rows == columns else f"{rows} x {columns}", "seed": found.seed}
    there |= {name: getattr(found.options, name) for name in ("criterion", "use_amp")}
    there = {**config, **there}
    written = given[NAMED] - unread_options(config["layer"]).keys()
    differing = [name for name in there if name in written and there[name] != given[name]]
    if differing:
        told = "; ".join(f"{name} is {there[name]} there, {given[name]} here" for name in differing)
        raise InvalidInput(
            f"{given['output_dir']} holds another model: {told}; leave out what it settles itself, or choose "
            "another folder (--output_dir)"
        )


def _say(given: dict[str, Any], data: VitData, scores: dict[str, float], told: dict[str, Any]) -> None:
    if given["json"]:
        screen.emit(
            {"model": given["output_dir"], "data": data.name, "images": len(data.test), **told, "test": scores}
        )
        return
    screen.facts(
        {
            "test images": len(data.test),
            "loss": screen.number(scores["loss"]),
            "top 1": screen.number(scores["top1"]),
            "top 5": screen.number(scores["top5"]),
            **{name.replace("_", " "): value for name, value in told.items()},
            "model in": given["output_dir"],
        }
    )


def _loaded(folder: Path) -> TrainedViT:
    from attnknn.study.vit_run import BEST
    from attnknn.vit.saved import TrainedViT

    inner = folder / BEST
    place = inner if inner.is_dir() else folder
    if not (place / "manifest.json").is_file():
        raise MissingData(f"no trained ViT in {folder}: `attnknn vit train --output-dir {folder}` leaves one")
    return TrainedViT.load(place)


def _check_out(out: Path) -> None:
    """Refuse a folder that cannot be made because there is a file, before any data is read."""
    there = next(each for each in (out, *out.parents) if each.exists())
    if not there.is_dir():
        raise InvalidInput(f"{there} is a file; --output_dir names a folder")


def _check_model(config: dict[str, Any], options: ViTOptions, device: str) -> None:
    """Refuse what makes no model, or one that is too large for a single image, before any data is read."""
    import torch

    from attnknn.vit.memory import refuse_too_large

    refuse_too_large(config, options, torch.device(device))


def _data(given: dict[str, Any]) -> VitData:
    from attnknn.cli import vit_data

    with screen.progress(f"reading {given['dataset']}") as say:
        return vit_data.read(given["dataset"], given["data_path"], given["resize"], given["seed"], say)


def _device(name: str) -> str:
    from attnknn.estimator.options import training_device

    return training_device(name, None)

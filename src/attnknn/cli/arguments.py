"""Arguments that several commands take, and those of the longest ones: what they are called, and their help."""

from pathlib import Path
from typing import Annotated

import typer

from attnknn.errors import InvalidInput

_DATA = "CSV, TSV or Parquet file; folder of images; or a data set: see `attnknn data list`."
_IMAGES, _ANSWERS = "Images", "Answers"  # panels of the help

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="CSV, TSV or Parquet file; a folder of images, in it one folder for each class; or a data set: see "
        "`attnknn data list`.",
    ),
]
Labelled = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="CSV, TSV or Parquet file; a folder of images, in it one folder for each class; or a data set.",
    ),
]
Asked = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="CSV, TSV or Parquet file; an image or a folder of images; or a data set."
    ),
]
DataOption = Annotated[str, typer.Option("--data", metavar="DATA", help=_DATA)]
Target = Annotated[
    str | None, typer.Option(metavar="COL", help="Column of labels in a file; images and data sets know theirs.")
]
Ids = Annotated[
    str | None, typer.Option(metavar="COL", help="Column of ids, to edit and explain by; else row numbers.")
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the data sets' files; else $ATTNKNN_DATA.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, max=2**31 - 1, help="Seed of what is drawn.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where to train and search: auto, cpu, cuda or mps.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

ModelOut = Annotated[Path, typer.Option("--out", metavar="MODEL", help="Folder for the model.")]
Neighbors = Annotated[str, typer.Option(metavar="N", help="Neighbors per prediction: a number, or auto.")]
HoldOut = Annotated[
    float, typer.Option(metavar="SHARE", min=0.0, max=0.9, help="Share of the rows to hold out and evaluate on.")
]
Test = Annotated[
    str | None, typer.Option("--test", metavar="DATA", help="Other labelled rows or images to evaluate on.")
]
Members = Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Trained members to average.")]
Epochs = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Epochs of training; 100 on images, else by the number of rows."),
]
LearningRate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Highest learning rate; chosen by the number of rows.")
]
Blocks = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Residual blocks of the periodic embedder; 0.")
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Rows or images per step; chosen by their number.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder to save the training to; after a kill it goes on from there."),
]

ImageSize = Annotated[
    str | None,
    typer.Option(
        metavar="N|HxW",
        rich_help_panel=_IMAGES,
        help="Size to bring images to: 32, or 32x48 for height x width. Else the size that all share; where they "
        "differ, or are larger than 224, a square of their median side, at most 224.",
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_IMAGES,
        help="resnet18 (the default), resnet50, efficientnet-lite0 (pretrained), or timm:NAME.",
    ),
]
Pretrained = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=_IMAGES, help="Weights to begin with, in torchvision's or timm's format."
    ),
]
Frozen = Annotated[
    bool,
    typer.Option(
        "--frozen", rich_help_panel=_IMAGES, help="Take the backbone's features as they are; train no backbone."
    ),
]
Compile = Annotated[
    bool, typer.Option("--compile", rich_help_panel=_IMAGES, help="Compile the network: slow to start, then fast.")
]

Relabel = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=5,
        rich_help_panel=_IMAGES,
        help="For labels of which many are wrong: revise them after each of so many shorter trainings, such as 2. "
        "`attnknn bank info --suspects` lists what was changed.",
    ),
]
Views = Annotated[
    bool, typer.Option("--tta", rich_help_panel=_ANSWERS, help="Average over several views of each image.")
]
KEnsemble = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", rich_help_panel=_ANSWERS, help="Mix the votes of several k: 16,64,256."),
]
HeadPrior = Annotated[
    bool,
    typer.Option(
        "--head-prior", rich_help_panel=_ANSWERS, help="Let the image network's head take the place of the prior."
    ),
]


def check_outside(out: Path | None, data: str) -> None:
    """Refuse to write into a folder of images that is read: the next reading would find it there."""
    if out is None or not Path(data).is_dir():
        return
    if Path(data).resolve() in (out.resolve(), *out.resolve().parents):
        raise InvalidInput(f"{out} lies inside {data}, whose folders are classes; choose another place")


StudyOut = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for cells, report, tables and figures.")
]
Seeds = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=100, help="How many seeds; 5 when left out, 2 with --quick."),
]
Studies = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Some of the studies, such as noise,imbalance; all when left out."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        metavar="M", min=0, help="Begin nothing after so many, and tell what was not run; 0 only reports."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        min=1,
        max=256,
        help="Processes that share the work, and the processors; what is timed is then timed beside others.",
    ),
]
Along = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,...", help="Other places on the axis: k, rates of wrong labels, or ratios of a tail."
    ),
]
AlongEach = Annotated[
    list[str] | None,
    typer.Option(
        "--along", metavar="STUDY=A,B,...", help="Other places on the axis of a study; once for each study."
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="A first look: 2 seeds, the ends of each axis, short trainings, 20,000 rows at most, no LightGBM.",
    ),
]
Figures = Annotated[
    bool,
    typer.Option(
        "--figures/--no-figures",
        help=r"Draw DIR/figures/*.png beside *.svg, or leave them out; pictures take attnknn\[plots].",
    ),
]
Pdf = Annotated[bool, typer.Option("--pdf", help=r"Also write DIR/report.pdf; takes attnknn\[plots].")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Go on where a run in DIR was stopped, or refuse to.")
]
FirstSeed = Annotated[int, typer.Option(metavar="N", min=0, max=10_000, help="The first; to share the work.")]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Some of the methods below; all when left out.")
]
EnsembleSize = Annotated[int, typer.Option(metavar="N", min=2, max=100, help="Members of ensembles.")]
TestShare = Annotated[
    float | None,
    typer.Option(metavar="SHARE", min=0.01, max=0.9, help="Rows to test on; 0.2, or as the set says."),
]
NoiseRate = Annotated[
    float, typer.Option(metavar="RATE", min=0.0, max=0.9, help="Share of wrong labels to learn from.")
]
StudyNeighbors = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Neighbors of our methods; chosen when left out.")
]
Commit = Annotated[str | None, typer.Option(metavar="HASH", help="Commit to record where there is no git.")]
Keep = Annotated[
    str | None, typer.Option(metavar="A,B,...", help="Methods whose models are saved, in DIR/models.")
]
ImageEpochs = Annotated[
    int | None,
    typer.Option("--epochs", metavar="N", min=1, rich_help_panel=_IMAGES, help="Of trainings on images."),
]
Save = Annotated[Path | None, typer.Option(metavar="PATH", help="Also write the report to this file.")]

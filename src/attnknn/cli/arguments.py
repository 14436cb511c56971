"""Arguments that several commands take, and those of the longest ones: what they are called, and their help."""

from pathlib import Path
from typing import Annotated

import typer

_DATA = "CSV, TSV or Parquet file, or a data set: see `attnknn data list`."

Data = Annotated[str, typer.Argument(metavar="DATA", help=_DATA)]
DataOption = Annotated[str, typer.Option("--data", metavar="DATA", help=_DATA)]
Target = Annotated[str | None, typer.Option(metavar="COL", help="Column of labels; data sets know theirs.")]
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
Members = Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Trained members to average.")]
Epochs = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Epochs of training; chosen by the number of rows.")
]
LearningRate = Annotated[
    float | None, typer.Option(metavar="RATE", help="Highest learning rate; chosen by the number of rows.")
]
Blocks = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Residual blocks of the periodic embedder; 0.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder to save the training to; after a kill it goes on from there."),
]

StudyOut = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for cells and report.json.")]
Seeds = Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How many seeds.")]
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
Save = Annotated[Path | None, typer.Option(metavar="PATH", help="Also write the report to this file.")]

"""What is learned: the few numbers of the untrained weightings, embedders, attention."""

from attnknn.train.attention import train_attention
from attnknn.train.judges import Hearing, Judges
from attnknn.train.loop import History, LoopOptions, Task, run
from attnknn.train.settings import TrainingOptions
from attnknn.train.table import Layout, Rows, train_networks
from attnknn.train.tune import Tuning, choose_judges, tune

__all__ = [
    "Hearing",
    "History",
    "Judges",
    "Layout",
    "LoopOptions",
    "Rows",
    "Task",
    "TrainingOptions",
    "Tuning",
    "choose_judges",
    "run",
    "train_attention",
    "train_networks",
    "tune",
]

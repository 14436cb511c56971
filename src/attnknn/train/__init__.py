"""What is learned: the few numbers of the untrained weightings, embedders, attention."""

from attnknn.train.attention import train_attention
from attnknn.train.image_settings import ImageOptions, training_from_state
from attnknn.train.images import TrainedImages, train_images
from attnknn.train.judges import Hearing, Judges
from attnknn.train.loop import History, LoopOptions, Task, run
from attnknn.train.rows import Rows
from attnknn.train.settings import TrainingOptions
from attnknn.train.table import Layout, train_networks
from attnknn.train.tune import Tuning, choose_judges, tune

__all__ = [
    "Hearing",
    "History",
    "ImageOptions",
    "Judges",
    "Layout",
    "LoopOptions",
    "Rows",
    "Task",
    "TrainedImages",
    "TrainingOptions",
    "Tuning",
    "choose_judges",
    "run",
    "train_attention",
    "train_images",
    "train_networks",
    "training_from_state",
    "tune",
]

"""The flags of ``attnknn vit``: a table, as in the source document, that commands and their help are made from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import typer

from attnknn.errors import InvalidInput

BOTH_SPELLINGS: Final[dict[str, Any]] = {"token_normalize_func": lambda token: token.replace("_", "-")}
"""Context settings that take ``--num_layers`` for ``--num-layers``."""

_MODEL, _CONVNN, _OTHER = "Model", "ConvNN-Attention", "Other layers"
_DATA, _TRAINING, _STEPS, _SYSTEM = "Data", "Training", "Optimization", "System and output"
USUAL_PATH: Final = Path("Data")
_YES_NO: Final = ("True", "False")
_LAYERS: Final = (
    *("Attention", "ConvNNAttention", "KvtAttention", "LocalAttention", "NeighborhoodAttention"),
    *("NeighborhoodAttention2D", "SparseAttention", "BranchConv", "BranchAttention"),
)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag.

    Args:
        name: In Python; on the command line with hyphens or underscores.
        default: As the source document states it.
        kind: A type, or the values to choose from.
        help: One line.
        panel: Where the help shows it.
        hidden: Whether the help does not show it.
        metavar: What the help shows instead of all the values.
    """

    name: str
    default: Any
    kind: type | tuple[str, ...]
    help: str
    panel: str
    hidden: bool = False
    metavar: str | None = None

    @property
    def spelled(self) -> str:
        """On the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """What Typer reads."""
        wanted: Any = self.kind
        default = self.default
        if isinstance(self.kind, tuple):
            wanted = _chosen(self.name, self.kind)
            default = wanted(str(default))
        shown = {"help": self.help, "rich_help_panel": self.panel, "hidden": self.hidden, "metavar": self.metavar}
        exact = self.kind != _YES_NO  # true, True and TRUE are one
        option = typer.Option(default, self.spelled, case_sensitive=exact, **shown)  # type: ignore[arg-type]
        wanted = wanted | None if default is None else wanted
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=wanted)

    def plain(self, value: Any) -> Any:
        """What was given, as Python has it."""
        value = value.value if isinstance(value, Enum) else value
        return value == "True" if self.kind == _YES_NO else value


MODEL: Final = (
    Flag("layer", "Attention", _LAYERS, "Layer of the blocks; see `attnknn vit layers`.", _MODEL, metavar="NAME"),
    Flag("patch_size", 16, int, "Side of a patch.", _MODEL),
    Flag("num_layers", 12, int, "Transformer blocks.", _MODEL),
    Flag("num_heads", 3, int, "Heads of each layer.", _MODEL),
    Flag("d_hidden", 192, int, "Width of the tokens.", _MODEL),
    Flag("d_mlp", 768, int, "Width of the networks within blocks.", _MODEL),
    Flag("dropout", 0.1, float, "Dropout of linear layers.", _MODEL),
    Flag("attention_dropout", 0.1, float, "Dropout of the layers that mix tokens.", _MODEL),
    Flag("pool", "cls", ("cls", "mean"), "What is classified: a class token, or the mean of all.", _MODEL),
    Flag("positions", "sinusoidal", ("sinusoidal", "learned"), "Where tokens are.", _MODEL),
    Flag("final_norm", False, bool, "Normalize after the last block.", _MODEL),
    Flag(
        *("convolution_type", "depthwise", ("standard", "depthwise", "depthwise-separable")),
        *("Convolution over the neighbors, by rank.", _CONVNN),
    ),
    Flag("softmax_topk_val", True, _YES_NO, "Softmax over the similarities that are kept.", _CONVNN),
    Flag("K", 9, int, "Neighbors of a token, or the side of a neighborhood.", _CONVNN),
    Flag("sampling_type", "all", ("all", "random", "spatial"), "Which tokens are candidates.", _CONVNN),
    Flag("num_samples", -1, int, "Candidates: so many, or an n x n grid if spatial; -1 is all.", _CONVNN),
    Flag("sample_padding", 0, int, "Patches at the edge that a spatial grid leaves out.", _CONVNN),
    Flag("magnitude_type", "matmul", ("cosine", "euclidean", "matmul"), "What is near.", _CONVNN),
    Flag("coordinate_encoding", False, _YES_NO, "Positions count in the similarity too.", _CONVNN),
    Flag(
        *("eval_sampling", "fixed", ("fixed", "all", "resample")),
        *("What random sampling does after training.", _CONVNN),
    ),
    Flag("kernel_size", 9, int, "Of the convolution in BranchConv.", _OTHER),
    Flag("branch_ratio", 0.5, float, "Share of the channels that the ConvNN branch gets.", _OTHER),
    Flag("window_size", 128, int, "Of LocalAttention.", _OTHER),
    Flag("sparse_mode", "all", ("all", "local", "strided"), "What SparseAttention sees.", _OTHER),
    Flag("sparse_context_window", 32, int, "Of SparseAttention.", _OTHER),
)
"""What a model is made of; the size of images and what they show come from the data."""

DATA: Final = (
    Flag(
        *("dataset", "cifar10", str),
        *(
            "cifar10, cifar100, mnist, fashion-mnist, imagenet, or a folder with a folder of images per class.",
            _DATA,
        ),
    ),
    Flag("data_path", USUAL_PATH, Path, "Folder of the data; where absent, $ATTNKNN_DATA.", _DATA),
    Flag("resize", 224, int, "Side that images are brought to.", _DATA),
)
TRAINING: Final = (
    Flag("augment", False, bool, "Shift and flip training images at random.", _DATA),
    Flag("noise", 0.0, float, "Standard deviation of noise on training images.", _DATA),
    Flag("batch_size", 256, int, "Images per step.", _TRAINING),
    Flag("num_epochs", 150, int, "Epochs.", _TRAINING),
    Flag("use_amp", False, bool, "Compute in bfloat16 where that is safe.", _TRAINING),
    Flag("use_compiled", False, bool, "Compile the model: slow to start, then faster.", _TRAINING),
    Flag(
        *("compile_mode", "default", ("default", "reduce-overhead", "reduce-memory", "max-autotune")),
        *("How hard the compiler tries; torch has no reduce-memory.", _TRAINING),
    ),
    Flag("clip_grad_norm", 1.0, float, "Greatest norm of the gradient; 0 does not clip.", _TRAINING),
    Flag(
        "select",
        "accuracy",
        ("accuracy", "loss"),
        "What the best epoch is best in, on held-out images.",
        _TRAINING,
    ),
    Flag("criterion", "CrossEntropy", ("CrossEntropy", "MSE"), "Loss.", _STEPS),
    Flag("optimizer", "adamw", ("adam", "sgd", "adamw"), "Optimizer.", _STEPS),
    Flag("lr", 1e-3, float, "Learning rate.", _STEPS),
    Flag("weight_decay", 1e-6, float, "Not on biases and norms.", _STEPS),
    Flag("momentum", 0.9, float, "Of SGD.", _STEPS),
    Flag("scheduler", "none", ("step", "cosine", "plateau", "none"), "How the rate falls.", _STEPS),
    Flag("lr_step", 20, int, "Epochs from step to step.", _STEPS),
    Flag("lr_gamma", 0.1, float, "What a rate is multiplied with when it falls.", _STEPS),
)
SYSTEM: Final = (
    Flag("device", "auto", ("auto", "cpu", "cuda", "mps"), "Where to compute.", _SYSTEM),
    Flag("seed", 0, int, "Of everything that is drawn.", _SYSTEM),
    Flag("output_dir", Path("runs/vit"), Path, "Folder for what is written, and to go on from.", _SYSTEM),
)
UNKNOWN: Final = (
    Flag("similarity_type", None, str, "", _CONVNN, hidden=True),
    Flag("aggregation_type", None, str, "", _CONVNN, hidden=True),
)
"""Flags of an example in the source document that never existed."""

NAMED: Final = "named"
"""What a command finds the names of the flags by that were written."""

TEST_ONLY: Final = Flag("test_only", False, bool, "Only test the model in --output-dir: as vit test.", _SYSTEM)


def command(run: Callable[[dict[str, Any]], None], flags: Iterable[Flag]) -> Callable[..., None]:
    """A function that Typer can make a command of: what it is given goes to ``run``, by name.

    Args:
        run: Its docstring is the help. It is given every flag by name, and by :data:`NAMED` which were written.
        flags: Each becomes an option.
    """
    known = {flag.name: flag for flag in flags}

    def called(context: typer.Context, **given: Any) -> None:
        plain = {name: flag.plain(given[name]) for name, flag in known.items()}
        run({**plain, NAMED: frozenset(name for name in known if _is_named(context, name))})

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *(flag.parameter for flag in known.values())]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__doc__, called.__name__ = run.__doc__, run.__name__
    return called


def _is_named(context: typer.Context, name: str) -> bool:
    """Whether a flag was written on the command line, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _chosen(name: str, values: tuple[str, ...]) -> Any:
    """A type with so many values, which Typer knows as choices."""
    members = [(value, value) for value in values]
    return Enum(name, members, type=str)


def of(flags: Iterable[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given for these flags."""
    return {flag.name: given[flag.name] for flag in flags}


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Say what never existed, in one line."""
    for flag in UNKNOWN:
        if given.get(flag.name) is not None:
            raise InvalidInput(
                f"--{flag.name} does not exist, although an example of the source document uses it: leave it out"
            )
    if not 0 <= given.get("seed", 0) < 2**63:
        raise InvalidInput(f"--seed must be from 0 to 2^63 - 1, got {given['seed']}")
    if given.get("compile_mode") == "reduce-memory":
        raise InvalidInput(
            "--compile_mode reduce-memory is no mode of torch.compile: use default, reduce-overhead or "
            "max-autotune"
        )

"""How a Vision Transformer is trained: the options of the command line, checked when they are made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from attnknn.errors import InvalidInput
from attnknn.train.optimizer import OPTIMIZERS, OptimizerName
from attnknn.train.options import LoopOptions
from attnknn.train.schedule import Schedule

Criterion = Literal["CrossEntropy", "MSE"]
CRITERIA: Final[tuple[Criterion, ...]] = get_args(Criterion)
LOSS_NAMES: Final[dict[Criterion, str]] = {"CrossEntropy": "nll", "MSE": "mse"}
"""What each is called among the numbers of an epoch, behind ``validation_``."""

Scheduler = Literal["step", "cosine", "plateau", "none"]
SCHEDULERS: Final[tuple[Scheduler, ...]] = get_args(Scheduler)
Selection = Literal["accuracy", "loss"]
SELECTIONS: Final[tuple[Selection, ...]] = get_args(Selection)
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
COMPILE_MODES: Final[tuple[CompileMode, ...]] = get_args(CompileMode)

_SCHEDULES: Final[dict[Scheduler, Schedule]] = {
    "step": "step",
    "cosine": "one-cycle",
    "plateau": "plateau",
    "none": "constant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ViTOptions:
    """How to train a ViT. Names and defaults are those of the source document.

    Args:
        num_epochs: Epochs.
        batch_size: Images per step; fewer where there are fewer.
        criterion: ``CrossEntropy``, or ``MSE`` between the outputs and a 1 for the class, 0 for the others.
        optimizer: ``adamw``, ``adam`` or ``sgd``.
        lr: Learning rate.
        weight_decay: Not on biases and norms.
        momentum: Of SGD.
        scheduler: ``none`` keeps the rate; ``cosine`` falls to 0; ``step`` falls every ``lr_step`` epochs to
            ``lr_gamma`` of itself, ``plateau`` when the validation loss has not fallen for 10 epochs.
        lr_step: Epochs.
        lr_gamma: Factor.
        clip_grad_norm: Greatest norm of the gradient; 0 does not clip.
        augment: Whether images are shifted by up to 4 pixels and flipped at random.
        noise: Standard deviation of normal noise that is added to training images, after normalization.
        select: What the best epoch has most of, or least, on the validation images: ``accuracy`` or ``loss``.
        use_amp: Whether to compute in bfloat16 where that is safe.
        use_compiled: Whether torch compiles the model: slow to start, then faster.
        compile_mode: ``default``, ``reduce-overhead`` or ``max-autotune``.
    """

    num_epochs: int = 150
    batch_size: int = 256
    criterion: Criterion = "CrossEntropy"
    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-6
    momentum: float = 0.9
    scheduler: Scheduler = "none"
    lr_step: int = 20
    lr_gamma: float = 0.1
    clip_grad_norm: float = 1.0
    augment: bool = False
    noise: float = 0.0
    select: Selection = "accuracy"
    use_amp: bool = False
    use_compiled: bool = False
    compile_mode: CompileMode = "default"

    def __post_init__(self) -> None:
        for name, known in (
            ("criterion", CRITERIA),
            ("optimizer", OPTIMIZERS),
            ("scheduler", SCHEDULERS),
            ("select", SELECTIONS),
            ("compile_mode", COMPILE_MODES),
        ):
            if getattr(self, name) not in known:
                raise InvalidInput(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InvalidInput(f"batch_size must be a whole number of at least 1, got {self.batch_size!r}")
        for name in ("noise", "clip_grad_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidInput(f"{name} must be at least 0, got {getattr(self, name)!r}")
        self.loop()  # checks the rest

    def loop(self) -> LoopOptions:
        """The options of the loop."""
        schedule = _SCHEDULES[self.scheduler]
        return LoopOptions(
            epochs=self.num_epochs,
            optimizer=self.optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum if self.optimizer == "sgd" else None,
            schedule=schedule,
            lr_step=self.lr_step if schedule == "step" else None,
            lr_gamma=self.lr_gamma if schedule in ("step", "plateau") else None,
            clip=self.clip_grad_norm or None,
            best={"accuracy": "top1", "loss": "nll"}[self.select],
            precision="bfloat16" if self.use_amp else "float32",
        )

    def told(self) -> dict[str, Any]:
        """What a checkpoint must have been trained with: all that counts, but not how it is compiled."""
        loop = self.loop()
        unread = {name for name in ("momentum", "lr_step", "lr_gamma") if getattr(loop, name) is None}
        left_out = {"use_compiled", "compile_mode", *unread}
        return {name: value for name, value in self.state().items() if name not in left_out}

    def state(self) -> dict[str, Any]:
        """The options for JSON."""
        return asdict(self)

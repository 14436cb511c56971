"""The loop: epochs of steps, validation, the best weights kept, a checkpoint after each epoch.

It knows no model and no data. A :class:`Task` brings both; tables, images and token attention share the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnknn.errors import InvalidInput, MissingDevice, TrainingDiverged
from attnknn.train.average import Average, State, put, tensors_of
from attnknn.train.checkpoint import read_checkpoint, write_checkpoint
from attnknn.train.ledger import Ledger
from attnknn.train.optimizer import make_optimizer, parameter_groups, restore_state, set_rate, state_of
from attnknn.train.options import LoopOptions, Precision
from attnknn.train.progress import Bar, progress_bar
from attnknn.train.recorded import Recordable, RecordedStep
from attnknn.train.schedule import drops, one_cycle
from attnknn.train.seeds import random_kept, random_state, seed_torch, set_random_state

__all__ = ["History", "LoopOptions", "Task", "run"]


class Task(Protocol):
    """What is trained, on what, and how it is judged.

    Whatever is random must come from the generator (it is on the device of the run) or from torch's own: then
    two runs with one seed are equal. Whatever must outlive a kill must be in the model's state.
    """

    @property
    def model(self) -> nn.Module:
        """What is trained, averaged and saved."""

    @property
    def steps(self) -> int:
        """How many batches an epoch has."""

    def batches(self, random: torch.Generator) -> Iterable[Any]:
        """The batches of one epoch."""

    def losses(self, batch: Any, random: torch.Generator) -> Mapping[str, Tensor]:
        """The parts of the loss by name, already weighted: their sum is minimized."""

    def validate(self) -> Mapping[str, float]:
        """Scores on held-out rows, ``nll`` among them, or nothing where there are none.

        The model is in eval mode, without gradients, and has the averaged weights if there is an average.
        """


@runtime_checkable
class Measuring(Protocol):
    """A task that also measures the batches it trains on."""

    def measured(self) -> Mapping[str, float]:
        """What was seen since the last call, by name; asked for at the end of each epoch of training."""


@runtime_checkable
class NamingLoss(Protocol):
    """A task whose ``nll`` may be another loss."""

    @property
    def loss_name(self) -> str:
        """What it is called wherever it is told, in place of ``nll``."""


@dataclass(frozen=True, slots=True)
class History:
    """What happened, epoch by epoch.

    Each has ``epoch`` and ``seconds``; if it trained, ``lr`` (where the schedule has come to at its end),
    ``loss_<part>`` and ``loss_total`` (means over the steps) and ``gradient_norm`` (likewise, before clipping);
    what a :class:`Measuring` task adds; if it was validated, ``validation_<score>``, with the loss of a
    :class:`NamingLoss` task by its name.
    """

    epochs: tuple[dict[str, float], ...]
    best_epoch: int  # whose weights the model has: the last where nothing validates
    best_nll: float | None  # None also where the loss is another one
    stopped_early: bool


def run(
    task: Task,
    options: LoopOptions,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    last: int | None = None,
    checkpoint: Path | None = None,
    fingerprint: str | Mapping[str, object] = "",
    progress: str | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> History:
    """Train ``task.model`` in place; it ends in eval mode with the weights of the best epoch, by ``options.best``.

    Two runs with the same seed are equal, to the bit on the CPU. The global random state of torch is left alone.

    Args:
        task: What to train.
        options: How.
        seed: Of batches, dropout and whatever else the task draws.
        device: Where the model goes; the task's batches must be there.
        last: Stop after this epoch, on the schedule of all; None runs all.
        checkpoint: A file that is saved after each epoch. If it is there, the training goes on where it ended,
            and ends as if it had never been interrupted.
        fingerprint: Of data and settings: a checkpoint with another one is refused. Either in one word, or each by
            its name, the options among them as the caller knows them: a refusal says what differs by these names.
        progress: Title of a progress bar on the terminal.
        on_epoch: Called with the numbers of each epoch, and ``best_epoch`` so far, once it is saved.
    """
    device = _checked_device(torch.device(device), options.precision)
    identity = _identity(task, options, device, fingerprint, {"seed": seed, "last": last})
    with random_kept(device):
        training = _Training(task, options, device, seed, last)
        saved = None if checkpoint is None else read_checkpoint(checkpoint, identity)
        if saved is not None:
            training.restore(saved)
        done = max(0, training.next - 1)
        with progress_bar(progress, epochs=training.last, steps=task.steps, done=done) as bar:
            while not training.finished:
                numbers = training.told(training.epoch(bar))
                if checkpoint is not None:
                    write_checkpoint(checkpoint, identity, training.state())
                bar.epoch(numbers)
                if on_epoch is not None:
                    with random_kept(device):  # whatever it draws
                        on_epoch({**numbers, "best_epoch": training.best_epoch})
    return training.end()


class _Training:
    """A run under way: all that a checkpoint holds, and the steps that change it."""

    def __init__(
        self, task: Task, options: LoopOptions, device: torch.device, seed: int, last: int | None
    ) -> None:
        if task.steps < 1:
            raise InvalidInput(f"an epoch needs at least one batch, got steps={task.steps}")
        if last is not None and not 1 <= last <= options.epochs:
            raise InvalidInput(f"last must be an epoch from 1 to {options.epochs}, got {last!r}")
        self.task, self.options, self.device = task, options, device
        self.last = options.epochs if last is None else last
        self.model = task.model.to(device)
        groups = parameter_groups(self.model, options.weight_decay, options.lr_scales)
        recorded = device.type == "cuda" and isinstance(task, Recordable) and task.recordable
        self.optimizer = make_optimizer(
            options.optimizer, groups, lr=options.lr, momentum=options.momentum, recorded=recorded
        )
        self.trained = [each for group in groups for each in group["params"]]
        self.average = None if options.ema is None else Average(self.model, options.ema)
        self.random = torch.Generator(device).manual_seed(seed)
        self.replayed = RecordedStep(self._taken, self.random) if recorded else None
        self.parts: tuple[str, ...] = ()  # of the loss, as the recording has them
        self.loss = task.loss_name if isinstance(task, NamingLoss) else "nll"
        seed_torch(seed, device)
        self.next = 0 if options.validate_first else 1
        self.history: list[dict[str, float]] = []
        self.best: State | None = None
        self.best_epoch, self.best_score = 0, math.inf  # the less, the better

    @property
    def stopped_early(self) -> bool:
        patience, last = self.options.patience, self.next - 1
        return patience is not None and last < self.last and last - self.best_epoch >= patience

    @property
    def finished(self) -> bool:
        return self.next > self.last or self.stopped_early

    def epoch(self, bar: Bar) -> dict[str, float]:
        began = time.perf_counter()
        numbers: dict[str, float] = {"epoch": self.next}
        if self.next > 0:
            numbers |= self._train(bar)
        numbers |= self._validate()
        numbers["seconds"] = time.perf_counter() - began
        self.history.append(numbers)
        self.next += 1
        return numbers

    def told(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The numbers of an epoch with the loss by its name; a checkpoint has them as the loop knows them."""
        names = {"validation_nll": f"validation_{self.loss}"}
        return {names.get(name, name): value for name, value in numbers.items()}

    def _train(self, bar: Bar) -> dict[str, float]:
        self.model.train()
        ledger = Ledger(self.next)
        begin = (self.next - 1) * self.task.steps
        for step, batch in enumerate(self.task.batches(self.random)):
            if step == self.task.steps:
                raise InvalidInput(f"the task gives more than the {self.task.steps} batches it promises")
            set_rate(self.optimizer, self._rate(begin + step + 0.5))
            self._step(batch, ledger)
            bar.step()
        if len(ledger) < self.task.steps:
            raise InvalidInput(f"the task promises {self.task.steps} batches and gives {len(ledger)}")
        measured = self.task.measured() if isinstance(self.task, Measuring) else {}
        return {"lr": self._rate(begin + self.task.steps), **ledger.means(), **measured}

    def _rate(self, at: float) -> float:
        """The learning rate when so many steps are done."""
        options = self.options
        if options.schedule == "one-cycle":
            return options.lr * one_cycle(at, options.epochs * self.task.steps, options.warmup)
        if options.schedule == "constant":
            return options.lr
        gamma = 0.1 if options.lr_gamma is None else options.lr_gamma
        if options.schedule == "step":
            every = (20 if options.lr_step is None else options.lr_step) * self.task.steps
            return options.lr * gamma ** math.floor(at / every)
        losses = [each["validation_nll"] for each in self.history if "validation_nll" in each]
        return options.lr * gamma ** drops(losses)

    def _step(self, batch: Any, ledger: Ledger) -> None:
        if self.replayed is None:
            self._take(batch, ledger)
        else:
            found = self.replayed(batch)
            ledger.note(self.parts, found[:-1], found[-1])
        if self.average is not None:
            self.average.update()

    def _taken(self, batch: Any) -> Tensor:
        """Take a step; returns the parts of its loss and the norm of its gradient."""
        ledger = Ledger(self.next)
        self._take(batch, ledger)
        self.parts, parts, norm = ledger.last()
        return torch.cat([parts, norm[None]])

    def _take(self, batch: Any, ledger: Ledger) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with _precision(self.device, self.options.precision):
            parts = self.task.losses(batch, self.random)
        torch.autograd.backward(ledger.begin(parts))
        norm = nn.utils.get_total_norm([each.grad for each in self.trained if each.grad is not None])
        ledger.finish(norm)
        if self.options.clip is not None:
            nn.utils.clip_grads_with_norm_(self.trained, self.options.clip, norm)
        self.optimizer.step()

    def _validate(self) -> dict[str, float]:
        self.model.eval()
        if self.next % self.options.validate_every and self.next != self.last:
            return {}
        swapped = contextlib.nullcontext() if self.average is None else self.average.swapped_in()
        with torch.no_grad(), swapped:
            scores = {name: float(value) for name, value in self.task.validate().items()}
            if not scores:
                _refuse_unread(self.options)
                return {}
            _check_scores(scores, {self.options.best: self.options.best, "nll": self.loss}, self.next)
            score = scores["nll"] if self.options.best == "nll" else -scores[self.options.best]
            if self.best is None or score < self.best_score:
                self.best = {name: each.clone() for name, each in tensors_of(self.model).items()}
                self.best_epoch, self.best_score = self.next, score
        return {f"validation_{name}": value for name, value in scores.items()}

    def state(self) -> dict[str, Any]:
        return {
            "model": tensors_of(self.model),
            "average": None if self.average is None else self.average.state(),
            "optimizer": state_of(self.optimizer),
            "random": {"task": self.random.get_state(), **random_state(self.device)},
            **{name: getattr(self, name) for name in _PLAIN},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"], strict=False)  # in place; what is no tensor is not saved
        if self.average is not None:
            self.average.restore(state["average"])
        restore_state(self.optimizer, state["optimizer"])
        self.random.set_state(state["random"]["task"])
        set_random_state(state["random"], self.device)
        for name in _PLAIN:
            setattr(self, name, state[name])

    def end(self) -> History:
        self.replayed = None  # with all the memory of its own, where the gradients lie too
        self.optimizer.zero_grad(set_to_none=True)
        chosen = self.best
        if chosen is None and self.average is not None:
            chosen = self.average.held
        if chosen is not None:
            put(chosen, tensors_of(self.model))
        self.model.eval()
        best_epoch = self.next - 1 if self.best is None else self.best_epoch
        epochs = tuple(map(self.told, self.history))
        best_nll = next((each.get("validation_nll") for each in epochs if each["epoch"] == best_epoch), None)
        return History(epochs, best_epoch, best_nll, self.stopped_early)


_PLAIN = ("next", "history", "best", "best_epoch", "best_score")  # saved as they are


def _identity(
    task: Task,
    options: LoopOptions,
    device: torch.device,
    fingerprint: str | Mapping[str, object],
    given: Mapping[str, Any],
) -> dict[str, str]:
    """What must be the same for a checkpoint to be of use, in words."""
    shapes = {name: (tuple(each.shape), str(each.dtype)) for name, each in tensors_of(task.model).items()}
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
    model = f"{type(task.model).__name__} with {len(shapes)} tensors ({digest})"
    own: dict[str, Any] = {**given, "steps": task.steps, "device": device.type, "model": model}
    if isinstance(fingerprint, str):
        every = {"fingerprint": fingerprint, **own, **asdict(options)}
    elif twice := sorted(fingerprint.keys() & {*own, "loop"}):
        raise InvalidInput(f"fingerprint must not name {twice[0]!r}, which every checkpoint does")
    else:
        every = {**fingerprint, **own, "loop": asdict(options)}
    return {name: str(value) for name, value in every.items()}


def _check_scores(scores: Mapping[str, float], names: Mapping[str, str], epoch: int) -> None:
    """Those that choose must be there, and be numbers: nothing is better than one that is none.

    ``names`` are what they are told by.
    """
    for name, called in names.items():
        if name not in scores:
            raise InvalidInput(f"validation at epoch {epoch} must give {name!r}, got {', '.join(scores)}")
        if math.isnan(scores[name]):
            raise TrainingDiverged(f"validation gives {called} nan at epoch {epoch}: a lower lr or clip may help")


def _refuse_unread(options: LoopOptions) -> None:
    if options.schedule == "plateau":
        raise InvalidInput("the task validates nothing, so schedule='plateau' has nothing to wait for")
    unread = (("best", "nll"), ("patience", None), ("validate_first", False), ("validate_every", 1))
    for name, unset in unread:
        if getattr(options, name) != unset:
            raise InvalidInput(f"the task validates nothing, so nothing reads {name}={getattr(options, name)!r}")


def _precision(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[Any]:
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _checked_device(device: torch.device, precision: Precision) -> torch.device:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False):
        raise MissingDevice(f"this machine has no device {str(device)!r}; train on 'cpu'")
    able = {"cpu": True, "cuda": device.type == "cuda" and torch.cuda.is_bf16_supported()}
    if precision == "bfloat16" and not able.get(device.type, False):
        raise InvalidInput(f"device {str(device)!r} has no bfloat16; use precision='float32'")
    return device

"""What turns gradients into steps: parameter groups, Adam, AdamW and SGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor, nn

from attnknn.errors import InvalidInput

OptimizerName = Literal["adamw", "sgd", "adam"]
OPTIMIZERS: Final[tuple[OptimizerName, ...]] = get_args(OptimizerName)
MOMENTUM: Final = 0.9
"""Of SGD where none is given."""


def parameter_groups(
    model: nn.Module, weight_decay: float, lr_scales: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """The trainable parameters by how they are stepped: with decay or without, and by the factor of their rate.

    Biases and parameters of one dimension or none (norms, scales) are not decayed. Each group has ``params``,
    ``weight_decay`` and ``lr_scale``.

    Args:
        model: Whose parameters.
        weight_decay: Of all other parameters.
        lr_scales: Factors of the learning rate by the name of a parameter or a module in the model; the
            longest name that fits counts.

    >>> [len(group["params"]) for group in parameter_groups(nn.Linear(3, 2), 0.1)]
    [1, 1]
    """
    scales = dict(lr_scales or {})
    named = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not named:
        raise InvalidInput(f"{type(model).__name__} has no parameter to train")
    unused = [prefix for prefix in scales if not any(_fits(prefix, name) for name, _ in named)]
    if unused:
        raise InvalidInput(
            f"lr_scales name what is not in the model or not trained: {', '.join(map(repr, unused))}"
        )
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, each in named:
        decay = 0.0 if each.ndim < 2 or name.rpartition(".")[2] == "bias" else weight_decay
        longest = max((prefix for prefix in scales if _fits(prefix, name)), key=len, default=None)
        groups.setdefault((decay, scales[longest] if longest is not None else 1.0), []).append(each)
    return [
        {"params": params, "weight_decay": decay, "lr_scale": scale} for (decay, scale), params in groups.items()
    ]


def make_optimizer(
    name: OptimizerName,
    groups: list[dict[str, Any]],
    *,
    lr: float,
    momentum: float | None = None,
    recorded: bool = False,
) -> torch.optim.Optimizer:
    """AdamW, Adam, or SGD with Nesterov's momentum, over the groups of :func:`parameter_groups`.

    Where its step is ``recorded`` the rates are tensors: numbers would be those of the recording for ever.
    """
    if recorded:
        where = groups[0]["params"][0].device
        groups = [{**group, "lr": torch.tensor(lr * group["lr_scale"], device=where)} for group in groups]
    # One pass over each parameter instead of a dozen; MPS has it only in newer versions of torch.
    fused = all(each.device.type in ("cpu", "cuda") for group in groups for each in group["params"])
    if name != "sgd":
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        return kind(groups, lr=lr, fused=fused, capturable=recorded)
    momentum = MOMENTUM if momentum is None else momentum
    return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group the rate ``lr``, times its own factor."""
    for group in optimizer.param_groups:
        rate = lr * group["lr_scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What :func:`restore_state` needs, with rates as numbers, however they are kept."""
    state = optimizer.state_dict()
    return {**state, "param_groups": [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]}


def restore_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Go on from a state of :func:`state_of`."""
    names = ("lr", "capturable")  # of the run, not of the state: the rate is set before each step
    own = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(state))
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        group.update(kept)


def _fits(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")

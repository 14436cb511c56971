"""The numbers of the steps of one epoch, which must be finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from attnknn.errors import InvalidInput, TrainingDiverged

_LOOK: Final = 32  # steps between looks where a look makes a GPU wait


class Ledger:
    """Keeps the parts of the loss and the norm of the gradient; refuses what is not finite, and says where.

    On the CPU before a step is taken, so that the weights stay sound; elsewhere some steps later.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._names: list[str] = []
        self._parts: list[Tensor] = []  # of each step, (parts,)
        self._norms: list[Tensor] = []
        self._seen = 0  # steps known to be finite

    def __len__(self) -> int:
        return len(self._parts)

    def begin(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Note the parts of a step's loss; returns their sum."""
        self._name(parts)
        each = torch.stack(list(parts.values()))
        self._parts.append(each.detach())
        if each.device.type == "cpu":
            self._look()
        return each.sum()

    def finish(self, norm: Tensor) -> None:
        """Note the norm of a step's gradient."""
        self._norms.append(norm)
        if norm.device.type == "cpu" or len(self) - self._seen >= _LOOK:
            self._look()
            self._seen = len(self)

    def note(self, names: Iterable[str], parts: Tensor, norm: Tensor) -> None:
        """Note a step that was taken elsewhere."""
        self._name(names)
        self._parts.append(parts)
        self.finish(norm)

    def last(self) -> tuple[tuple[str, ...], Tensor, Tensor]:
        """The names of the parts, and of the last step the parts (parts,) and the norm."""
        return tuple(self._names), self._parts[-1], self._norms[-1]

    def means(self) -> dict[str, float]:
        """Of each part, their sum and the norm, over the steps."""
        self._look()
        parts = torch.stack(self._parts).cpu().double().mean(dim=0).tolist()
        norm = torch.stack(self._norms).cpu().double().mean().item()
        named = {f"loss_{name}": part for name, part in zip(self._names, parts, strict=True)}
        return {**named, "loss_total": sum(parts), "gradient_norm": norm}

    def _name(self, parts: Iterable[str]) -> None:
        names = list(parts)
        if not names or "total" in names or (self._names and names != self._names):
            before = f" after {self._names}" if self._names else ""
            raise InvalidInput(f"a loss has the same parts at each step, none named total; got {names}{before}")
        self._names = names

    def _look(self) -> None:
        for name, rows in (("loss", self._parts), ("gradient", self._norms)):
            unseen = rows[self._seen :]
            if not unseen:
                continue
            values = torch.stack(unseen).cpu().reshape(len(unseen), -1)
            bad = (~values.isfinite()).nonzero()
            if len(bad):
                step, at = bad[0].tolist()
                what = f"the loss {self._names[at]!r}" if name == "loss" else "the norm of the gradient"
                where = f"epoch {self.epoch}, step {self._seen + step + 1}"
                raise TrainingDiverged(
                    f"{what} is {values[step, at].item()} at {where}: a lower lr or clip may help"
                )

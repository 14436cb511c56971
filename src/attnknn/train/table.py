"""Training of an embedder for table rows: leave-one-out NCA, and beside it whatever else is asked for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.attend.attention import SCALES
from attnknn.embed import NETWORKS, AnyNetwork
from attnknn.ops import same_group, similarity
from attnknn.ops.similarity import distance_matrix
from attnknn.train.loop import History, run
from attnknn.train.losses import candidates, nca, supcon, weight_entropy
from attnknn.train.options import LoopOptions
from attnknn.train.rows import Rows, Shown, arrays_of, digest
from attnknn.train.seeds import random_kept, seed_torch
from attnknn.train.settings import TrainingOptions
from attnknn.train.threads import threads_for
from attnknn.train.together import as_one

_MASS: Final = 1e-3  # of the prior in the validation NLL, which is then never infinite
_CELLS: Final = 4_000_000  # validation rows x training rows at a time


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of encoded rows are."""

    numbers: tuple[int, ...]  # places that hold numbers
    columns: tuple[int, ...]  # the column of the table that each place belongs to


class _Nca(nn.Module):
    """The network, the scale of its similarities, and the auxiliary head where there is one."""

    def __init__(self, network: AnyNetwork, classes: int, *, head: bool) -> None:
        super().__init__()
        self.network = network
        self.log_scale = nn.Parameter(torch.tensor(math.log(SCALES[network.metric][0])))
        self.head = nn.Linear(network.embed_dim, classes) if head else None

    @property
    def scale(self) -> Tensor:
        """Inverse temperature, within its bounds."""
        _, low, high = SCALES[self.network.metric]
        return self.log_scale.exp().clamp(low, high)


class NcaTask:
    """Every training row looks for its class among the others; see :class:`~attnknn.train.loop.Task`.

    A query never sees itself nor a row of its group, unless the options let it. Keys are drawn anew for each step
    and embedded by the network as it is, so no distance is ever stale.

    Args:
        network: What is trained.
        rows: Training rows.
        held: Validation rows, or None.
        classes: How many classes there are.
        layout: What the columns are.
        options: How to train.
        device: Where.
    """

    def __init__(
        self,
        network: AnyNetwork,
        rows: Rows,
        held: Rows | None,
        *,
        classes: int,
        layout: Layout,
        options: TrainingOptions,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model = _Nca(network.to(device), classes, head=options.auxiliary > 0)
        self.options, self.classes = options, classes
        self.rows, self.held = Shown(rows, device), None if held is None else Shown(held, device)
        self._batch = options.batch(len(rows))
        self._columns = torch.tensor(layout.columns, device=device)
        with torch.no_grad():
            self.features = _tensor(rows, device)
            self._prepared = network.front(self.features)
            self._held_prepared = None if held is None else network.front(_tensor(held, device))
        totals = torch.zeros(classes, device=device).index_add_(0, self.rows.labels, self.rows.weights)
        self._prior = totals / totals.sum()
        self._weighted = bool((self.rows.weights != 1).any())

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return max(1, len(self.rows.labels) // self._batch)

    def batches(self, random: torch.Generator) -> Iterator[Tensor]:
        """Rows in random order; what is left of the last batch waits for another epoch."""
        order = torch.randperm(len(self.rows.labels), generator=random, device=random.device)
        for at in range(self.steps):
            yield order[at * self._batch : (at + 1) * self._batch]

    def losses(self, batch: Tensor, random: torch.Generator) -> Mapping[str, Tensor]:
        """NCA; the head's cross-entropy and the contrastive loss where they are on."""
        options, rows = self.options, self.rows
        drawn = candidates(len(rows.labels), options.candidates, random)
        at = torch.cat([batch, drawn[~torch.isin(drawn, batch)]])
        vectors = self.model.network.body(self._prepared[at])
        queries, labels = vectors[: len(batch)], rows.labels[at]
        weights = rows.weights[at] if self._weighted else None
        parts = {
            "nca": nca(
                queries,
                vectors,
                labels[: len(batch)],
                labels,
                self.model.scale,
                metric=self.model.network.metric,
                leave_out=same_group(rows.groups[batch], rows.groups[at]) if options.leave_one_out else None,
                smoothing=options.label_smoothing,
                classes=self.classes,
                sample_weight=None if weights is None else weights[: len(batch)],
                key_prior=None if weights is None else weights.log(),
            )
        }
        if self.model.head is not None:
            each = F.cross_entropy(
                self.model.head(queries),
                labels[: len(batch)],
                label_smoothing=options.label_smoothing,
                reduction="none",
            )
            share = rows.weights[batch] / rows.weights[batch].sum().clamp(min=1e-12)
            parts["auxiliary"] = options.auxiliary * (share * each).sum()
        if options.contrastive:
            parts["contrastive"] = options.contrastive * self._contrastive(batch, random)
        return parts

    def validate(self) -> Mapping[str, float]:
        """NLL and accuracy of the validation rows among all training rows, the scale, and how even weights are.

        The mean entropy of the weights, as a share of the most, is of the rows of the first step: enough of them.
        """
        if self.held is None or self._held_prepared is None or len(self.held.labels) == 0:
            return {}
        network, keys = self.model.network, self._embedded(self._prepared)
        logs = self.rows.weights.log()
        owners = F.one_hot(self.rows.labels, self.classes).to(keys.dtype)
        step = max(1, _CELLS // len(keys))
        chances: list[Tensor] = []
        entropy = 0.0
        for part in torch.split(self._embedded(self._held_prepared), step):
            gaps = _gaps(part, keys, network.metric)
            weights = (self.model.scale * similarity(gaps, network.metric) + logs).softmax(dim=1)
            if not chances:
                entropy = float(weight_entropy(weights)) / math.log(max(2, len(keys)))
            shares = weights @ owners
            chances.append((shares + _MASS * self._prior) / (1 + _MASS))
        all_chances = torch.cat(chances)
        own = all_chances.gather(1, self.held.labels[:, None])[:, 0]
        counts = self.held.weights / self.held.weights.sum()
        right = (all_chances.argmax(dim=1) == self.held.labels).to(own)
        return {
            "nll": float(-(counts * own.log()).sum()),
            "accuracy": float((counts * right).sum()),
            "scale": float(self.model.scale),
            "entropy": entropy,
        }

    def _embedded(self, prepared: Tensor) -> Tensor:
        return torch.cat([self.model.network.body(part) for part in torch.split(prepared, 16_384)])

    def _contrastive(self, batch: Tensor, random: torch.Generator) -> Tensor:
        views = [self.model.network(self._corrupted(batch, random)) for _ in range(2)]
        options = self.options
        return supcon(
            *(views[0], views[1], self.rows.labels[batch]),
            temperature=0.1 if options.temperature is None else options.temperature,
            margin=options.margin or 0.0,
        )

    def _corrupted(self, batch: Tensor, random: torch.Generator) -> Tensor:
        """Rows in which some columns hold the value of another row."""
        rate = 0.2 if self.options.corruption is None else self.options.corruption
        count, where = int(self._columns.max()) + 1, random.device
        swapped = torch.rand(len(batch), count, generator=random, device=where) < rate
        other = torch.randint(len(self.rows.labels), (len(batch), count), generator=random, device=where)
        place = torch.arange(len(self._columns), device=where)
        strange = self.features[other[:, self._columns], place]
        return torch.where(swapped[:, self._columns], strange, self.features[batch])


def train_networks(
    kind: str,
    parts: Sequence[tuple[Rows, Rows | None]],
    *,
    classes: int,
    layout: Layout,
    options: TrainingOptions,
    seed: int,
    device: str = "cpu",
    epochs: int | None = None,
    checkpoint: Path | None = None,
    progress: str | None = None,
) -> tuple[list[AnyNetwork], History]:
    """Train an embedder for each part; with validation rows all are of the epoch that is best for all.

    Args:
        kind: A key of ``NETWORKS``.
        parts: (training rows, validation rows or None): one, or the folds of a table.
        classes: How many classes there are.
        layout: What the columns are.
        options: How to train.
        seed: Of the first start, the batches and the candidates; the next part starts from the next seed.
        device: Where.
        epochs: Stop after so many, on the same schedule; for a training without validation rows.
        checkpoint: File to save to and go on from.
        progress: Title of a progress bar.
    """
    rows = min(len(learn) for learn, _ in parts)
    shape: dict[str, Any] = {"embed_dim": options.embed_dim, "blocks": options.blocks}
    if kind == "periodic":
        shape["dropout"] = options.hidden(rows, mixed=len(layout.numbers) < len(layout.columns))
    given = {name: value for name, value in shape.items() if value is not None}
    tasks: list[NcaTask] = []
    for number, (learn, held) in enumerate(parts):
        with random_kept(torch.device("cpu")):
            seed_torch(seed + number, torch.device("cpu"))
            network = NETWORKS[kind].start(learn.features, layout.numbers, **given)
            each = NcaTask(network, learn, held, classes=classes, layout=layout, options=options, device=device)
        tasks.append(each)
    loop: LoopOptions = options.loop(rows)
    if any(held is None for _, held in parts):
        loop = replace(loop, patience=None)  # nothing to be impatient about
    with threads_for(rows):
        history = run(
            as_one(tasks),
            loop,
            seed=seed,
            device=device,
            last=epochs,
            checkpoint=checkpoint,
            fingerprint=digest(options.told(), arrays_of(itertools.chain.from_iterable(parts))),
            progress=progress,
        )
    return [task.model.network.eval() for task in tasks], history


def _tensor(rows: Rows, device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows.features, np.float32)).to(device)


def _gaps(queries: Tensor, keys: Tensor, metric: Any) -> Tensor:
    if metric != "l2":
        return distance_matrix(queries, keys, metric)
    # By matrix product: several times as fast as by subtraction, and precise enough to compare epochs.
    return torch.cdist(queries, keys, compute_mode="use_mm_for_euclid_dist")

"""The MLP that our methods on tables must match: the network behind their vectors, with a head of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnknn.data import Table
from attnknn.embed import NETWORKS, Standardize
from attnknn.study.baselines import grown
from attnknn.study.job import Fitted, Floats, Job
from attnknn.study.learners import Encoded, Encoder
from attnknn.study.splits import Rows
from attnknn.train import TrainingOptions
from attnknn.train.seeds import random_kept, seed_torch
from attnknn.train.threads import threads_for

_KIND = "periodic"  # the usual embedder of tables


def mlp_trunk(job: Job) -> Fitted:
    """The network of our embedder, trained by cross-entropy; rate and epochs of least NLL on held-out rows."""
    return grown(job, Trunk, job.recipe.trunk.settings(), job.recipe.trunk.rounds)


class Trunk:
    """Our embedder's network, ReLU and a linear head; an epoch for each round."""

    def __init__(self, job: Job, fit: Rows, settings: Mapping[str, Any]) -> None:
        self._rows = Encoded(job.task.table.take, fit, self._learn)
        self._device = torch.device(job.device)
        features = self._rows(fit).astype(np.float32)
        self._labels = torch.from_numpy(job.parts.labels[fit]).to(self._device)
        options = TrainingOptions()
        mixed = len(self._encoder.numbers) < len(self._encoder.columns)
        self._batch = options.batch(len(fit))
        self._random = torch.Generator().manual_seed(job.seed)
        with random_kept(torch.device("cpu")):
            seed_torch(job.seed, torch.device("cpu"))
            hidden = options.hidden(len(fit), mixed=mixed)
            self._network = NETWORKS[_KIND].start(features, self._encoder.numbers, dropout=hidden).to(self._device)
            self._head = nn.Linear(self._network.embed_dim, len(job.task.classes)).to(self._device)
        self._prepared = self._front(features)
        learned = [*self._network.parameters(), *self._head.parameters()]
        self._optimizer = torch.optim.AdamW(learned, lr=settings["lr"], weight_decay=options.weight_decay)

    def grow(self, rounds: int) -> None:
        """Learn for some epochs more; what is left of the last batch waits for another one."""
        self._network.train()
        with threads_for(len(self._labels)), random_kept(self._device):
            for _ in range(rounds):
                seed_torch(int(torch.randint(2**31, (), generator=self._random)), self._device)  # for dropout
                order = torch.randperm(len(self._labels), generator=self._random).to(self._device)
                for batch in torch.split(order, self._batch)[: max(1, len(order) // self._batch)]:
                    loss = F.cross_entropy(self._scores(self._prepared[batch]), self._labels[batch])
                    self._optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    self._optimizer.step()

    @torch.no_grad()
    def predict(self, rows: Rows) -> Floats:
        """(rows, classes) probabilities."""
        self._network.eval()
        prepared = self._front(self._rows(rows).astype(np.float32))
        chances = [self._scores(part).double().softmax(dim=1) for part in torch.split(prepared, 16_384)]
        return np.asarray(torch.cat(chances).cpu().numpy())

    def _learn(self, table: Table) -> Encoder:
        self._encoder = Standardize().fit(table)
        return lambda rows: self._encoder.transform(rows).astype(np.float64)

    @torch.no_grad()
    def _front(self, features: np.ndarray[Any, np.dtype[np.float32]]) -> Tensor:
        return self._network.front(torch.from_numpy(np.ascontiguousarray(features)).to(self._device))

    def _scores(self, prepared: Tensor) -> Tensor:
        found: Tensor = self._head(self._network.body(prepared).relu())
        return found

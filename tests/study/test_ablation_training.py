"""Without leave-one-out a row is among its own neighbors while vectors are trained, and only then."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnknn.embed import LinearEmbedder
from attnknn.embed.images import ImageEmbedder
from attnknn.errors import InvalidInput
from attnknn.train import ImageOptions, TrainingOptions, training_from_state
from attnknn.train.image_task import ImageTask
from attnknn.train.policies import Augmentation
from attnknn.train.rows import Rows
from attnknn.train.table import Layout, NcaTask

pytestmark = pytest.mark.usefixtures("one_thread")

COUNT = 12


def rows_of(features):
    labels = np.arange(COUNT, dtype=np.int64) % 3
    return Rows(features, labels, np.ones(COUNT), np.full(COUNT, -1))


def expected(vectors, labels, scale, *, leave_one_out):
    """The NCA loss by its definition, on vectors of unit length."""
    logits = scale * vectors @ vectors.T
    if leave_one_out:
        logits = logits.masked_fill(torch.eye(len(vectors), dtype=torch.bool), -torch.inf)
    own = (logits.softmax(dim=1) * (labels[:, None] == labels)).sum(dim=1)
    return -own.log().mean().item()


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_a_row_of_a_table_sees_itself_only_where_it_may(leave_one_out):
    features = np.random.default_rng(0).normal(size=(COUNT, 4)).astype(np.float32)
    options = TrainingOptions(candidates=1.0, leave_one_out=leave_one_out)
    layout = Layout(numbers=(0, 1, 2, 3), columns=(0, 1, 2, 3))
    task = NcaTask(LinearEmbedder(4), rows_of(features), None, classes=3, layout=layout, options=options)
    found = task.losses(torch.arange(COUNT), torch.Generator().manual_seed(0))["nca"]
    vectors = task.model.network(task.features)
    wanted = expected(vectors, task.rows.labels, task.model.scale, leave_one_out=leave_one_out)
    assert found.item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_an_image_sees_itself_only_where_it_may(leave_one_out):
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8, 1)).astype(np.uint8)
    options = ImageOptions(candidates=1.0, leave_one_out=leave_one_out)
    network = ImageEmbedder.start(pixels, embed_dim=4, classes=3)
    task = ImageTask(network, rows_of(pixels), None, options=options, augmentation=Augmentation())
    found = task.losses(torch.arange(COUNT), torch.Generator().manual_seed(0))["nca"]
    wanted = expected(task.model.keys, task.rows.labels, task.model.scale, leave_one_out=leave_one_out)
    assert found.item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("kind", [TrainingOptions, ImageOptions])
def test_only_what_is_not_usual_is_told_so_that_earlier_studies_go_on(kind):
    assert "leave_one_out" not in kind().state()
    off = kind(leave_one_out=False)
    assert training_from_state(off.state()) == off
    assert off.told() != kind().told()


def test_what_leave_one_out_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="nca=0 has none"):
        ImageOptions(leave_one_out=False, nca=0.0)
    with pytest.raises(InvalidInput, match="leave_one_out must be True or False, got 'no'"):
        TrainingOptions(leave_one_out="no")

"""The networks compute what they say, start where they say, and come back from their state to the bit."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from attnknn.data import as_table
from attnknn.embed import NETWORKS, LinearEmbedder, PeriodicEmbedder, Standardize, TabularEmbedder, embed
from attnknn.embed import networks as rooms
from attnknn.embed.networks import network_from_state
from attnknn.errors import InvalidInput

WIDTH, NUMBERS = 6, (0, 2, 5)


pytestmark = pytest.mark.usefixtures("one_thread")


def rows(count, seed=0):
    """Encoded rows: three numbers among three zeros and ones."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(count, WIDTH)).astype(np.float32)
    others = [at for at in range(WIDTH) if at not in NUMBERS]
    features[:, others] = draw.integers(0, 2, size=(count, len(others)))
    return features


def started(kind, **options):
    torch.manual_seed(0)
    return NETWORKS[kind].start(rows(200), NUMBERS, **options).eval()


def by_hand(network, row):
    """What the periodic embedder makes of one row, one number and one wave at a time."""
    scores = network.normal(torch.from_numpy(row)[None, list(network.numbers)])[0].tolist()
    parts = []
    for at, score in enumerate(scores):
        angles = [2 * math.pi * score * wave for wave in network.frequencies[at].tolist()]
        waves = torch.tensor([math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles])
        curve = network.mix_bias[at, 0].double()
        for wave, share in zip(waves.double(), network.mix[at].double(), strict=True):
            curve = curve + wave * share
        parts.append(curve.clamp(min=0))
    parts.append(torch.tensor([float(row[at]) for at in range(len(row)) if at not in network.numbers]).double())
    vector = network.linear.weight.double() @ torch.cat(parts) + network.linear.bias.double()
    for block in network.blocks:
        norm, wide, _, _, narrow = block
        centered = vector - vector.mean()
        inner = centered / (centered.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias
        hidden = (wide.weight.double() @ inner + wide.bias).clamp(min=0)
        vector = vector + narrow.weight.double() @ hidden + narrow.bias
    return vector.detach().numpy()


@pytest.mark.parametrize("blocks", [0, 2])
def test_the_periodic_embedder_equals_a_loop_over_rows_and_numbers(blocks):
    network = started("periodic", sigma=1.0, embed_dim=9, frequencies=4, number_width=3, blocks=blocks)
    asked = rows(7, seed=1)
    expected = np.stack([by_hand(network, row) for row in asked])
    np.testing.assert_allclose(embed(network, asked), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_forward_is_the_body_of_the_front_and_the_front_has_nothing_to_learn(kind):
    network, asked = started(kind), torch.from_numpy(rows(8, seed=1))
    front = network.front(asked)
    assert not front.requires_grad
    assert torch.equal(network(asked), network.body(front))
    assert network(asked).shape == (8, network.embed_dim)


SHAPES = [
    ("periodic", {}),
    ("periodic", {"embed_dim": 5}),
    ("periodic", {"blocks": 2, "frequencies": 7, "number_width": 3, "sigma": 0.5}),
    ("tabular", {}),
    ("tabular", {"embed_dim": 5}),
    ("linear", {}),
]


@pytest.mark.parametrize(("kind", "options"), SHAPES)
def test_shape_and_weights_make_the_same_network_again(kind, options):
    network = started(kind, **options)
    with torch.no_grad():
        for each in network.parameters():
            each.add_(torch.randn_like(each) * 0.1)
    state = json.loads(json.dumps({"kind": kind, "shape": network.shape()}))
    twin = network_from_state(state, network.state_dict())
    assert type(twin) is type(network)
    assert twin.shape() == network.shape()
    assert not twin.training
    np.testing.assert_array_equal(embed(twin, rows(20, seed=2)), embed(network, rows(20, seed=2)))


@pytest.mark.parametrize("kind", NETWORKS)
def test_weights_that_do_not_fit_are_refused(kind):
    network = started(kind)
    state, weights = {"kind": kind, "shape": network.shape()}, network.state_dict()
    first = next(iter(weights))
    broken = [
        {},
        {name: each for name, each in weights.items() if name != first},
        {**weights, first: weights[first][:0]},
        {**weights, "stranger": torch.zeros(1)},
    ]
    for tensors in broken:
        with pytest.raises(InvalidInput, match=kind):
            network_from_state(state, tensors)


@pytest.mark.parametrize("kind", ["resnet", None, 3])
def test_an_unknown_kind_of_network_is_refused_by_name(kind):
    with pytest.raises(InvalidInput, match=str(kind)):
        network_from_state({"kind": kind, "shape": {}}, {})


def test_the_linear_embedder_starts_as_the_identity_of_directions():
    network = LinearEmbedder(WIDTH)
    given = rows(30)
    vectors = embed(network, given)
    unit = given / np.linalg.norm(given, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, unit, atol=1e-6)
    np.testing.assert_allclose(vectors @ vectors.T, unit @ unit.T, atol=1e-6)


def test_the_linear_embedder_does_not_know_lengths():
    network = started("linear")
    np.testing.assert_allclose(embed(network, 7 * rows(9)), embed(network, rows(9)), atol=1e-6)


def test_the_tabular_embedder_has_the_layers_of_the_source_documents_and_unit_length():
    network = TabularEmbedder(11, embed_dim=32)
    kinds = [type(layer) for layer in network.net]
    hidden = [nn.Linear, nn.LayerNorm, nn.GELU, nn.Dropout]
    assert kinds == [*hidden, *hidden, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in network.net if isinstance(layer, nn.Linear)] == [
        (256, 11),
        (256, 256),
        (32, 256),
    ]
    assert [layer.p for layer in network.net if isinstance(layer, nn.Dropout)] == [0.2, 0.1]
    vectors = embed(network, np.random.default_rng(0).normal(size=(40, 11)))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("kind", NETWORKS)
def test_many_rows_in_chunks_are_embedded_as_in_one_pass(kind, monkeypatch):
    network, asked = started(kind), rows(45, seed=3)
    whole = embed(network, asked)
    monkeypatch.setattr(rooms, "_ROWS_AT_ONCE", 10)
    np.testing.assert_allclose(embed(network, asked), whole, rtol=1e-5, atol=1e-6)
    assert embed(network, asked[:0]).shape == (0, network.embed_dim)


@pytest.mark.parametrize("kind", ["periodic", "tabular"])
def test_embedding_uses_no_dropout_and_leaves_the_network_in_eval_mode(kind):
    network = started(kind, **({"blocks": 1} if kind == "periodic" else {})).train()
    np.testing.assert_array_equal(embed(network, rows(9)), embed(network, rows(9)))
    assert not network.training


FRAME = pd.DataFrame(
    {
        "gap": [1.0, None, 3.0, 4.0, None, 6.0, 7.5, 8.0, 9.0, 10.0],
        "constant": [2.0] * 10,
        "nothing": [None] * 10,
        "kind": ["a", "b", None, "a", "c", "b", "a", None, "c", "a"],
        "flag": [True, False, None, True, False, True, True, False, None, True],
    }
)


def encoded(frame):
    table = as_table(frame)
    encoder = Standardize().fit(table)
    return encoder, encoder.transform(table)


@pytest.mark.parametrize("kind", NETWORKS)
def test_missing_values_and_constant_columns_give_finite_vectors(kind):
    encoder, features = encoded(FRAME)
    network = NETWORKS[kind].start(features, encoder.numbers)
    strange = FRAME.assign(kind="never seen", gap=1e12, constant=-1e12)
    for asked in (features, encoder.transform(as_table(strange))):
        assert np.isfinite(embed(network, asked)).all()


def trained_one_step(network, features):
    """Losses before and after a step of the vectors towards a target; all gradients must be finite."""
    network.train()
    prepared = network.front(torch.from_numpy(features))
    target = torch.randn(len(features), network.embed_dim)
    before = copy.deepcopy(network.state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    (network.body(prepared) - target).square().mean().backward()
    for name, each in network.named_parameters():
        assert each.grad is not None, name
        assert each.grad.isfinite().all(), name
    optimizer.step()
    return any(not torch.equal(before[name], each) for name, each in network.state_dict().items())


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize(
    "columns", [["kind", "flag"], ["gap", "constant"]], ids=["only categories", "only numbers"]
)
def test_tables_of_one_kind_of_column_go_forward_and_back(kind, columns):
    encoder, features = encoded(FRAME[columns].dropna() if columns == ["gap", "constant"] else FRAME[columns])
    torch.manual_seed(0)
    network = NETWORKS[kind].start(features, encoder.numbers)
    assert embed(network, features).shape == (len(features), network.embed_dim)
    assert np.isfinite(embed(network, features)).all()
    assert trained_one_step(network, features)


def test_a_periodic_embedder_without_numbers_is_its_linear_map():
    network = PeriodicEmbedder(4, ()).eval()
    asked = torch.eye(4)
    torch.testing.assert_close(network(asked), network.linear(asked))
    twin = network_from_state({"kind": "periodic", "shape": network.shape()}, network.state_dict())
    assert torch.equal(twin(asked), network(asked))


def test_dropout_hides_whole_numbers_and_single_other_columns_only_while_training():
    rows = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    torch.manual_seed(0)
    network = PeriodicEmbedder.start(rows, (0, 1), embed_dim=2 * 16 + 2, dropout=0.5)
    with torch.no_grad():
        network.linear.weight.copy_(torch.eye(34))  # what goes into the linear map is what comes out
        network.linear.bias.zero_()
        network.mix_bias.add_(5.0)  # no curve is 0 of itself
        shown = network.train()(torch.from_numpy(rows))
        plain = network.eval()(torch.from_numpy(rows))
    numbers, others = shown[:, :32].reshape(400, 2, 16), shown[:, 32:]
    hidden = numbers == 0
    assert (hidden.all(dim=2) | ~hidden.any(dim=2)).all()
    for share in (hidden[:, 0, 0], hidden[:, 1, 0], others[:, 0] == 0, others[:, 1] == 0):
        assert 0.4 < share.float().mean() < 0.6
    kept = shown != 0
    torch.testing.assert_close(shown[kept], 2 * plain[kept])
    assert (plain != 0).all()
    assert network.shape()["dropout"] == 0.5

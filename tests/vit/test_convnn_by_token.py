"""ConvNN attention against its definition, written down again token by token in plain loops."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from attnknn.ops import links
from attnknn.vit import MultiHeadConvNNAttention

pytestmark = pytest.mark.usefixtures("one_thread")

DIM, K = 12, 4
SIDE = 3  # the patches are a 3 x 3 grid


def place_of(token, class_token):
    """Row and column from -1 to 1; the class token has none, and lies in the middle."""
    if class_token and token == 0:
        return [0.0, 0.0]
    patch = token - class_token
    return [float(patch // SIDE) - 1, float(patch % SIDE) - 1]


def similarity_of(kind, query, key, head_dim, temperature):
    if kind == "matmul":
        return (query * key).sum() / head_dim**0.5
    if kind == "cosine":
        return (query * key).sum() / (query.norm() * key.norm()) / temperature
    return -(query - key).norm()


def kept_by(token, tokens, candidates, scores):
    """The tokens kept, by rank: best first, of equals the lower; where they are sampled, itself before all."""
    scores = [score.item() for score in scores]
    if candidates is None:
        return sorted(range(tokens), key=lambda other: (-scores[other], other))[:K]
    others = [other for other in candidates if other != token]
    return [token, *sorted(others, key=lambda other: (-scores[other], other))[: K - 1]]


def weights_of(kind, softmax, scores):
    if softmax:
        return torch.stack(scores).softmax(dim=0)
    return [1 / (-score + 1e-8) if kind == "euclidean" else score for score in scores]


def convolved(layer, kind, rows):
    """The convolution over rank of weighted rows, channel by channel."""
    if kind == "standard":
        return sum(layer.conv.weight[:, :, rank] @ row for rank, row in enumerate(rows))
    if kind == "depthwise":
        return sum(layer.conv.weight[:, 0, rank] * row for rank, row in enumerate(rows))
    mixed = sum(layer.conv[0].weight[:, 0, rank] * row for rank, row in enumerate(rows))
    return layer.conv[1].weight[:, :, 0] @ mixed


def by_token(layer, x, *, heads, kind, convolution, softmax, coordinates, class_token, candidates):
    """The layer's output, and which tokens each token kept in each head."""
    head_dim = DIM // heads
    q, k, v = x @ layer.W_q.weight.T, x @ layer.W_k.weight.T, x @ layer.W_v.weight.T
    places = [x.new_tensor(place_of(j, class_token)) if coordinates else x[0, 0, :0] for j in range(x.shape[1])]
    batches, kept = [], {}
    for b in range(len(x)):
        columns = []
        for h in range(heads):
            part, rows = slice(h * head_dim, (h + 1) * head_dim), []
            temperature = None if layer.temperature is None else layer.temperature[h]
            queries = [torch.cat([q[b, j, part], place]) for j, place in enumerate(places)]
            keys = [torch.cat([k[b, j, part], place]) for j, place in enumerate(places)]
            for i in range(x.shape[1]):
                scores = [similarity_of(kind, queries[i], key, head_dim, temperature) for key in keys]
                near = kept[b, h, i] = kept_by(i, x.shape[1], candidates, scores)
                values = [v[b, j, part] for j in near]
                if convolution != "depthwise":
                    values = [torch.cat([value, places[j]]) for value, j in zip(values, near, strict=True)]
                weights = weights_of(kind, softmax, [scores[j] for j in near])
                weighted = [weight * value for weight, value in zip(weights, values, strict=True)]
                rows.append(convolved(layer, convolution, weighted))
            columns.append(torch.stack(rows))
        batches.append(torch.cat(columns, dim=-1))
    return torch.stack(batches) @ layer.W_o.weight.T, kept


CASES = list(
    product(
        (1, 2, 3, 4),
        ("all", "random", "spatial"),
        ("matmul", "cosine", "euclidean"),
        ("depthwise", "standard", "depthwise-separable"),
    )
)


@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "patches only"])
@pytest.mark.parametrize(("heads", "sampling", "kind", "convolution"), CASES)
def test_output_neighbors_and_gradients_are_those_of_the_loops(
    heads, sampling, kind, convolution, class_token, monkeypatch
):
    if class_token:  # as where there are many neighbors: matrices rank by rank
        monkeypatch.setattr(links, "_FEW", 0)
    number = CASES.index((heads, sampling, kind, convolution))
    torch.manual_seed(number)
    softmax, coordinates = class_token, heads % 2 == number % 2  # half of the cases each
    layer = MultiHeadConvNNAttention(
        DIM,
        heads,
        K=K,
        sampling_type=sampling,
        num_samples={"all": -1, "random": 5, "spatial": 2}[sampling],
        magnitude_type=kind,
        convolution_type=convolution,
        softmax_topk_val=softmax,
        coordinate_encoding=coordinates,
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    layer.eval()
    tokens = SIDE * SIDE + class_token
    x = torch.randn(1, tokens, DIM, dtype=torch.float64, requires_grad=True)
    corners = [class_token + corner for corner in (0, 2, 6, 8)]
    candidates = {"all": None, "spatial": [0, *corners] if class_token else corners}.get(sampling)
    if sampling == "random":
        candidates = layer.sampler(tokens, x.device).tolist()
        assert len(set(candidates)) == 5
    expected, kept = by_token(
        layer,
        x,
        heads=heads,
        kind=kind,
        convolution=convolution,
        softmax=softmax,
        coordinates=coordinates,
        class_token=class_token,
        candidates=candidates,
    )
    output, indices = layer(x, return_indices=True)
    assert {at: indices[at].tolist() for at in kept} == kept
    torch.testing.assert_close(output, expected)
    at = [x, *layer.parameters()]
    cotangent = torch.randn_like(output)
    ours, theirs = (torch.autograd.grad(out, at, cotangent) for out in (output, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)

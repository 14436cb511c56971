"""AttnKNN is the composition of its parts, and its prototypes are moving means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attnknn.attend.attention import MultiHeadNeighborAttention
from attnknn.attend.biases import prototype_alignment
from attnknn.attend.options import AttentionOptions
from attnknn.errors import InvalidInput
from attnknn.model import AttnKNN


def made(prototypes=False, **more):
    torch.manual_seed(0)
    attention = MultiHeadNeighborAttention(4, AttentionOptions(prototypes=prototypes))
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return AttnKNN(nn.Linear(7, 4), attention, 3, **more).eval()


def task(queries=6, k=5):
    draw = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(queries, 7, generator=draw),
        "neigh_emb": torch.randn(queries, k, 4, generator=draw),
        "neigh_labels": torch.randint(0, 3, (queries, k), generator=draw),
        "dists": torch.rand(queries, k, generator=draw, dtype=torch.float64),
    }


@pytest.mark.parametrize("mass", [0.0, 0.4])
def test_forward_is_embedding_then_attention_then_the_vote(mass):
    shares = torch.tensor([0.5, 0.3, 0.2])
    model, given = made(prior_mass=mass, class_prior=shares), task()
    more = {"reliability": torch.rand(6, 5) + 0.1, "prior": torch.rand(6, 5).double()}
    found = torch.ones(6, 5, dtype=torch.bool)
    found[0, 2:] = False
    found[1] = False
    probs, weights, query = model(**given, **more, found=found)
    embedded = model.embedder(given["x"])
    vectors, labels, dists = given["neigh_emb"], given["neigh_labels"], given["dists"]
    expected = model.attention(embedded, vectors, dists, labels, **more, found=found)
    torch.testing.assert_close(query, embedded)
    torch.testing.assert_close(query, model.get_embedding(given["x"]))
    torch.testing.assert_close(weights, expected)
    for at in range(6):
        for label in range(3):
            won = weights[at, labels[at] == label].sum().item()
            right = (won + mass * shares[label].item()) / (1 + mass) if found[at].any() else shares[label].item()
            assert probs[at, label].item() == pytest.approx(right, abs=1e-7)
    np.testing.assert_allclose(probs.sum(dim=1).detach(), 1, rtol=0, atol=1e-15)


def test_without_a_class_prior_the_classes_share_the_mass():
    probs, _, _ = made(prior_mass=3.0)(**task(), found=torch.zeros(6, 5, dtype=torch.bool))
    torch.testing.assert_close(probs, torch.full((6, 3), 1 / 3).double())


def test_gradients_reach_embedder_and_attention():
    model = made()
    probs, _, _ = model(**task())
    probs[:, 0].square().sum().backward()
    assert all(each.grad.abs().max() > 0 for each in model.parameters())


def test_prototypes_are_moving_means_of_their_classes():
    model, draw = made(), np.random.default_rng(0)
    assert model.get_prototypes() is None
    means = {}
    for step in range(12):
        labels = draw.integers(0, 2 if step < 6 else 3, 4)  # class 2 comes late
        vectors = draw.normal(size=(4, 4)).astype(np.float32)
        model.update_prototypes(torch.from_numpy(vectors), torch.from_numpy(labels), momentum=0.8)
        for label in set(labels.tolist()):
            batch = vectors[labels == label].mean(axis=0)
            means[label] = 0.8 * means[label] + 0.2 * batch if label in means else batch
        for label in range(3):
            right = means.get(label, np.zeros(4))
            np.testing.assert_allclose(model.prototype_means[label], right, rtol=1e-5, atol=1e-6)
    lengths = torch.linalg.vector_norm(model.get_prototypes(), dim=1)
    torch.testing.assert_close(lengths, torch.ones(3))
    torch.testing.assert_close(model.get_prototypes(), nn.functional.normalize(model.prototype_means, dim=1))


def test_alignment_comes_from_the_kept_prototypes_unless_given():
    model, given = made(prototypes=True), task()
    with pytest.raises(InvalidInput, match="no prototypes yet"):
        model(**given)
    model.update_prototypes(torch.randn(30, 4), torch.arange(30) % 3)
    aligned = prototype_alignment(given["neigh_emb"], given["neigh_labels"], model.prototype_means)
    torch.testing.assert_close(model(**given)[1], model(**given, alignment=aligned)[1])
    assert not torch.allclose(model(**given)[1], model(**given, alignment=-aligned)[1])


def test_prototypes_and_prior_are_saved_with_the_model():
    model = made(prototypes=True, prior_mass=1.0, class_prior=torch.tensor([0.2, 0.2, 0.6]))
    model.update_prototypes(torch.randn(9, 4), torch.arange(9) % 3)
    copy = made(prototypes=True, prior_mass=1.0)
    copy.load_state_dict(model.state_dict())
    for ours, theirs in zip(copy(**task()), model(**task()), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prior_mass": -1.0}, "got -1.0"),
        ({"prior_mass": float("nan")}, "got nan"),
        ({"class_prior": torch.tensor([0.5, 0.5])}, "3 probabilities"),
        ({"class_prior": torch.tensor([0.5, 0.5, 0.5])}, "sum to 1"),
        ({"class_prior": torch.tensor([1.5, 0.5, -1.0])}, "sum to 1"),
    ],
)
def test_impossible_priors_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        made(**given)


def test_labels_outside_the_classes_and_odd_momenta_are_refused():
    model = made()
    for label in (3, -1):
        with pytest.raises(InvalidInput, match="within 0 and 2"):
            model.update_prototypes(torch.zeros(1, 4), torch.tensor([label]))
    with pytest.raises(InvalidInput, match=r"got 1\.5"):
        model.update_prototypes(torch.zeros(1, 4), torch.tensor([0]), momentum=1.5)
    with pytest.raises(InvalidInput, match="num_classes must be at least 1, got 0"):
        AttnKNN(nn.Identity(), model.attention, 0)

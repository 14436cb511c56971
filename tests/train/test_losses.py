"""The losses equal slow loops, gradients included, and stay finite where naive formulas do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn import functional

from attnknn import ops
from attnknn.errors import InvalidInput
from attnknn.train import nca as core
from attnknn.train.losses import candidates, class_shares, nca, robust_loss, served_vote, supcon, weight_entropy


def close_by(metric, query, key):
    if metric == "l2":
        return -((query - key) ** 2).sum().sqrt()
    if metric == "cosine":
        return (query @ key) / (query @ query * (key @ key)).sqrt()
    return query @ key


def slow_nca(queries, keys, query_labels, key_labels, scale, metric, hidden, smoothing, classes, weight, prior):
    """Query by query, key by key, exponentials and all."""
    losses, weights = [], []
    for i, query in enumerate(queries):
        mass = {}
        for j, key in enumerate(keys):
            if not hidden[i, j]:
                label = int(key_labels[j])
                mass[label] = mass.get(label, 0.0) + (scale * close_by(metric, query, key) + prior[j]).exp()
        own = int(query_labels[i])
        if own not in mass:
            continue
        log_share = {label: (each / sum(mass.values())).log() for label, each in mass.items()}
        loss = -(1 - smoothing) * log_share[own] - smoothing / classes * sum(log_share.values())
        losses.append(weight[i] * loss)
        weights.append(weight[i])
    return sum(losses) / sum(weights)


def some_case(seed, queries=5, keys=13, labels=3):
    draw = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(n, 3, generator=draw, dtype=torch.float64) + 2 for n in (queries, keys)]
    hidden = torch.rand(queries, keys, generator=draw) < 0.3
    return {
        "vectors": [each.requires_grad_() for each in vectors],
        # One label that no key has: its queries must not count.
        "query_labels": torch.randint(labels + 1, (queries,), generator=draw) * 3,
        "key_labels": torch.randint(labels, (keys,), generator=draw) * 3,
        "hidden": hidden,
        "scale": torch.tensor(1.7, dtype=torch.float64, requires_grad=True),
        "weight": torch.rand(queries, generator=draw, dtype=torch.float64),
        "prior": torch.randn(keys, generator=draw, dtype=torch.float64).requires_grad_(),
    }


@pytest.mark.parametrize("cells", [1, 50, 10**6])  # a query, a few and all at a time
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("metric", ops.METRICS)
def test_nca_and_its_gradients_equal_a_loop_over_pairs(metric, smoothing, cells, monkeypatch):
    monkeypatch.setattr(core, "_CPU_CELLS", cells)
    case = some_case(cells)
    leaves = [*case["vectors"], case["scale"], case["prior"]]
    labels = case["query_labels"], case["key_labels"]
    rest = metric, case["hidden"], smoothing, 4, case["weight"], case["prior"]
    wanted = slow_nca(*case["vectors"], *labels, case["scale"], *rest)
    for leave_out in (case["hidden"], case["hidden"].nonzero().flip(0)):
        got = nca(
            *case["vectors"],
            *labels,
            case["scale"],
            metric=metric,
            leave_out=leave_out,
            smoothing=smoothing,
            classes=4,
            sample_weight=case["weight"],
            key_prior=case["prior"],
        )
        torch.testing.assert_close(got, wanted)
        ours, theirs = (torch.autograd.grad(3 * loss, leaves, retain_graph=True) for loss in (got, wanted))
        for mine, true in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("metric", ops.METRICS)
def test_numeric_derivatives_of_nca_agree(metric):
    case = some_case(5, queries=3, keys=6)

    def loss(queries, keys, scale, prior):
        labels = case["query_labels"], case["key_labels"]
        return nca(queries, keys, *labels, scale, metric=metric, leave_out=case["hidden"], key_prior=prior)

    assert torch.autograd.gradcheck(loss, (*case["vectors"], case["scale"], case["prior"]))


def test_what_is_left_out_has_no_influence():
    case = some_case(1)
    hidden = torch.zeros_like(case["hidden"])
    hidden[:, 4] = True
    keys = case["vectors"][1].detach()
    moved = keys.clone()
    moved[4] = case["vectors"][0][0].detach()
    both = [
        nca(case["vectors"][0], each, case["query_labels"], case["key_labels"], 5.0, leave_out=hidden)
        for each in (keys, moved)
    ]
    torch.testing.assert_close(both[0], both[1], rtol=1e-12, atol=0)
    seen = nca(case["vectors"][0], moved, case["query_labels"], case["key_labels"], 5.0)
    assert abs(seen - both[1]) > 0.01


def test_queries_that_nothing_can_answer_do_not_count():
    keys, labels = torch.randn(6, 2, requires_grad=True), torch.tensor([0, 0, 0, 1, 1, 1])
    queries, own = torch.randn(4, 2), torch.tensor([0, 1, 9, 0])  # 9: no key has it
    hidden = torch.zeros(4, 6, dtype=torch.bool)
    hidden[3] = True  # sees nothing
    loss = nca(queries, keys, own, labels, 1.0, leave_out=hidden, smoothing=0.1, classes=3)
    torch.testing.assert_close(loss, nca(queries[:2], keys, own[:2], labels, 1.0, smoothing=0.1, classes=3))
    nobody = nca(queries[2:], keys, own[2:], labels, 1.0, leave_out=hidden[2:])
    assert nobody == 0
    assert not torch.autograd.grad(nobody, keys)[0].any()
    assert nca(queries, keys[:0], own, labels[:0], 1.0) == 0
    assert nca(queries[:0], keys, own[:0], labels, 1.0) == 0


def test_a_hopeless_query_has_its_exact_loss_and_gradient():
    """All of the mass is e^-2000 away: a share in float32 would be 0, its logarithm minus infinity."""
    queries = torch.tensor([[1.0, 0.0]], requires_grad=True)
    keys, labels = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    loss = nca(queries, keys, labels[:1], labels, 1000.0, metric="cosine")
    assert loss.item() == 2000
    far = nca(1e4 * queries, 1e4 * keys, labels[:1], labels, 1.0)
    assert far.item() == pytest.approx(20000, rel=1e-3)
    assert torch.autograd.grad(far, queries)[0].isfinite().all()


@pytest.mark.parametrize("offset", [0.0, 30.0])
@pytest.mark.parametrize("metric", ops.METRICS)
def test_gradients_are_finite_and_small_where_query_and_key_coincide(metric, offset):
    draw = torch.Generator().manual_seed(0)
    keys = (torch.randn(50, 8, generator=draw) + offset).requires_grad_()
    queries = keys.detach()[:20].clone().requires_grad_()
    labels = torch.arange(50) % 3
    slopes = torch.autograd.grad(nca(queries, keys, labels[:20], labels, 1.0, metric=metric), (queries, keys))
    for slope in slopes:
        assert slope.isfinite().all()
    if metric == "l2":  # of each query at most twice the scale, and a twentieth of the mean
        assert slopes[0].norm(dim=1).max() <= 2 / 20 + 1e-3


def test_euclidean_nca_does_not_depend_on_the_origin():
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(30, 16, generator=draw), torch.randn(200, 16, generator=draw)
    labels = torch.arange(200) % 4
    here, there = (nca(queries + far, keys + far, labels[:30], labels, 4.0).item() for far in (0.0, 300.0))
    assert there == pytest.approx(here, rel=1e-3)


def test_nca_computes_in_float32_under_autocast():
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(30, 16, generator=draw), torch.randn(90, 16, generator=draw)
    labels = torch.arange(90) % 4
    plain = nca(queries, keys, labels[:30], labels, 3.0)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = nca(queries, keys, labels[:30], labels, 3.0)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, plain)
    assert nca(queries.bfloat16(), keys.bfloat16(), labels[:30], labels, 3.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": torch.zeros(5, 3)}, r"got \(4, 2\) and \(5, 3\)"),
        ({"query_labels": torch.zeros(3, dtype=torch.long)}, r"4 queries and 5 keys, got \(3,\)"),
        ({"leave_out": torch.zeros(5, 4, dtype=torch.bool)}, r"torch.bool of shape \(5, 4\)"),
        ({"leave_out": torch.zeros(4, 5)}, "torch.float32 of shape"),
        ({"smoothing": 0.1}, "smoothing=0.1 .* classes=None"),
        ({"smoothing": 1.0, "classes": 2}, r"\[0, 1\), got 1.0"),
        ({"metric": "l1"}, "'l1'"),
        ({"scale": torch.ones(2)}, r"one number, got shape \(2,\)"),
    ],
)
def test_nca_says_what_it_cannot_use(change, message):
    zeros = torch.zeros(5, dtype=torch.long)
    given = {"queries": torch.zeros(4, 2), "keys": torch.zeros(5, 2), "scale": 1.0}
    given |= {"query_labels": zeros[:4], "key_labels": zeros}
    with pytest.raises(InvalidInput, match=message):
        nca(**(given | change))


def some_vote(seed, rows=12, k=6, classes=4):
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, k, generator=draw, dtype=torch.float64).softmax(dim=1)
    weights[0] = 0  # no neighbor: the prior alone
    neighbor_labels = torch.randint(-1, classes, (rows, k), generator=draw)
    prior = torch.randn(rows, classes, generator=draw, dtype=torch.float64).softmax(dim=1)
    return weights.requires_grad_(), neighbor_labels, torch.randint(classes, (rows,), generator=draw), prior


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("each_its_prior", [True, False])
def test_served_vote_is_the_cross_entropy_of_what_ops_serves(each_its_prior, smoothing):
    weights, neighbor_labels, labels, priors = some_vote(0)
    prior = priors if each_its_prior else priors[1]
    sample_weight = torch.rand(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = served_vote(
        weights, neighbor_labels, labels, prior, 0.3, smoothing=smoothing, sample_weight=sample_weight
    )
    served = ops.vote(ops.evidence(weights, neighbor_labels, 4), prior, 0.3)
    # The rows of a vote sum to 1, so its logarithms are their own log-softmax.
    each = functional.cross_entropy(served.log(), labels, reduction="none", label_smoothing=smoothing)
    wanted = (sample_weight * each).sum() / sample_weight.sum()
    torch.testing.assert_close(got, wanted)
    ours, theirs = (torch.autograd.grad(loss, weights)[0] for loss in (got, wanted))
    torch.testing.assert_close(ours, theirs)


def test_a_label_without_evidence_and_prior_does_not_count():
    weights, labels = torch.tensor([[1.0], [1.0]], requires_grad=True), torch.tensor([1, 0])
    neighbor_labels, prior = torch.tensor([[0], [0]]), torch.tensor([1.0, 0.0])
    loss = served_vote(weights, neighbor_labels, labels, prior, 1.0)
    assert loss == 0  # the second alone, which is certain
    assert torch.autograd.grad(loss, weights)[0].isfinite().all()
    with pytest.raises(InvalidInput, match=r"above 0.* got 0\.0"):
        served_vote(weights, neighbor_labels, labels, prior, 0.0)


def test_the_mass_of_the_prior_can_be_learned():
    weights, neighbor_labels, labels, prior = some_vote(3)
    mass = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: served_vote(weights, neighbor_labels, labels, prior, a), mass)


def slow_supcon(first, second, labels, temperature, margin):
    views, n = [*first, *second], len(first)

    def logit(i, j):
        alike = close_by("cosine", views[i], views[j])
        return (alike - margin * positive(i, j)) / temperature

    def positive(i, j):
        return i % n == j % n or (labels[i % n] == labels[j % n] and labels[i % n] >= 0)

    means = []
    for i in range(2 * n):
        others = [j for j in range(2 * n) if j != i]
        below = sum(logit(i, j).exp() for j in others)
        logs = [(logit(i, j).exp() / below).log() for j in others if positive(i, j)]
        means.append(-sum(logs) / len(logs))
    return sum(means) / len(means)


@pytest.mark.parametrize("margin", [0.0, 0.25])
@pytest.mark.parametrize("temperature", [0.1, 0.7])
def test_supcon_and_its_gradient_equal_a_loop(temperature, margin):
    draw = torch.Generator().manual_seed(2)
    views = [torch.randn(6, 3, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(2)]
    labels = torch.tensor([0, 1, 0, 2, -1, -1])
    wanted = slow_supcon(*views, labels, temperature, margin)
    got = supcon(*views, labels, temperature=temperature, margin=margin)
    torch.testing.assert_close(got, wanted)
    for ours, theirs in zip(torch.autograd.grad(got, views), torch.autograd.grad(wanted, views), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_supcon_needs_two_views_of_the_same_rows_and_a_temperature():
    with pytest.raises(InvalidInput, match=r"\(3, 2\), \(4, 2\)"):
        supcon(torch.ones(3, 2), torch.ones(4, 2), torch.zeros(3))
    with pytest.raises(InvalidInput, match="temperature must be above 0, got 0"):
        supcon(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3), temperature=0)


def test_weight_entropy_is_that_of_scipy_with_a_finite_gradient():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(9, 5, generator=draw, dtype=torch.float64).softmax(dim=1)
    weights[0] = torch.tensor([1.0, 0, 0, 0, 0])
    weights.requires_grad_()
    entropy = weight_entropy(weights)
    assert entropy.item() == pytest.approx(scipy.stats.entropy(weights.detach().numpy(), axis=1).mean())
    assert torch.autograd.grad(entropy, weights)[0].isfinite().all()
    assert torch.autograd.gradcheck(weight_entropy, weights[1:].detach().requires_grad_())
    assert weight_entropy(torch.full((3, 8), 1 / 8)).item() == pytest.approx(math.log(8))


def test_candidates_are_a_fair_share_of_distinct_rows():
    random = torch.Generator().manual_seed(0)
    drawn = [candidates(40, 0.3, random) for _ in range(2000)]
    for rows in drawn[:50]:
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(rows) == 12
    counts = np.bincount(torch.cat(drawn).numpy(), minlength=40)
    assert abs(counts - 600).max() < 5 * math.sqrt(2000 * 0.3 * 0.7)
    assert candidates(40, 1.0, random).tolist() == list(range(40))
    assert len(candidates(3, 0.01, random)) == 1
    again = candidates(40, 0.3, torch.Generator().manual_seed(0))
    assert again.equal(drawn[0])


@pytest.mark.parametrize(("count", "share"), [(0, 0.5), (5, 0.0), (5, 1.5), (5, math.nan)])
def test_candidates_refuse_shares_outside_0_to_1(count, share):
    with pytest.raises(InvalidInput, match=f"count={count}, share={share}"):
        candidates(count, share, torch.Generator())


@pytest.mark.parametrize("robust", [0.3, 0.7, 1.0])
def test_a_robust_loss_is_bounded_and_tends_to_nll(robust):
    chances = torch.tensor([1e-30, 0.2, 0.9, 1.0], dtype=torch.float64)
    torch.testing.assert_close(robust_loss(chances.log(), robust), (1 - chances**robust) / robust)
    assert robust_loss(chances.log(), robust).max() <= 1 / robust
    torch.testing.assert_close(robust_loss(chances[1:].log(), 1e-6), -chances[1:].log(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(robust_loss(chances.log(), 0.0), -chances.log())


def test_the_served_vote_can_be_robust():
    weights, labels = torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([[0, 1], [1, 1]])
    prior = torch.tensor([0.5, 0.5])
    got = served_vote(weights, labels, torch.tensor([0, 0]), prior, 1.0, robust=0.5)
    chances = torch.tensor([(0.75 + 0.5) / 2, 0.5 / 2])
    torch.testing.assert_close(got, ((1 - chances**0.5) / 0.5).mean())


@pytest.mark.parametrize("hidden", [False, True])
def test_class_shares_are_what_nca_makes_grow(hidden):
    random = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(count, 5, generator=random, dtype=torch.float64) for count in (6, 40))
    asked, held = (torch.randint(3, (count,), generator=random) for count in (6, 40))
    prior = torch.randn(40, generator=random, dtype=torch.float64)
    leave_out = torch.rand(6, 40, generator=random) < 0.3 if hidden else None
    shares = class_shares(queries, keys, torch.eye(3)[held], 7.0, leave_out=leave_out, key_prior=prior)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(6, dtype=torch.float64))
    mean = -shares.gather(1, asked[:, None]).log().mean()
    expected = nca(queries, keys, asked, held, 7.0, metric="cosine", leave_out=leave_out, key_prior=prior)
    torch.testing.assert_close(mean, expected)


def test_a_query_that_may_see_nothing_gives_nothing_a_share():
    leave_out = torch.tensor([[True, True], [False, True]])
    shares = class_shares(torch.eye(2), torch.eye(2), torch.eye(2), 1.0, leave_out=leave_out)
    assert shares.tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_a_class_that_is_far_away_still_pulls():
    query, keys = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.1], [-1.0, 0.5]])
    shares = class_shares(query, keys, torch.eye(2), 100.0)
    loss = -shares[0, 1].log()
    loss.backward()
    assert loss.item() == pytest.approx(
        nca(query, keys, torch.tensor([1]), torch.arange(2), 100.0, metric="cosine").item()
    )
    assert query.grad.abs().max() > 1


def test_a_key_without_weight_is_as_good_as_hidden():
    prior = torch.tensor([-torch.inf, -torch.inf])
    assert (
        class_shares(torch.eye(2), torch.eye(2), torch.eye(2), 1.0, key_prior=prior).tolist() == [[0.0, 0.0]] * 2
    )

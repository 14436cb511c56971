"""The learned attention against its formula, written down again neighbor by neighbor, and the laws it keeps."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnknn.attend.attention import MultiHeadNeighborAttention, logit_size
from attnknn.attend.biases import prototype_alignment
from attnknn.attend.options import PARTS, AttentionOptions
from attnknn.errors import InvalidInput
from attnknn.ops import METRICS, distances, similarity, softmax, unit

SCALES = {"l2": (1.0, 0.01, 100.0), "cosine": (10.0, 1.0, 100.0), "ip": (1.0, 0.01, 100.0)}  # start and bounds
EVERYTHING = AttentionOptions(distance_bias=True, prototypes=True, self_attention=True, neighbor_dropout=0.0)
COMBINATIONS = [
    dict(zip(PARTS, switches, strict=True))
    for switches in product([True, False], repeat=len(PARTS))
    if switches[0] or not switches[-1]  # self-attention needs the projections
]


pytestmark = pytest.mark.usefixtures("one_thread")


def task(seed, queries=6, k=5, dim=4, metric="l2", dtype=torch.float64):
    """Arguments of the attention: vectors, their distances, labels, and what else a part may ask for."""
    draw = torch.Generator().manual_seed(seed)
    query = unit(torch.randn(queries, dim, generator=draw, dtype=dtype))
    neighbors = unit(torch.randn(queries, k, dim, generator=draw, dtype=dtype))
    return {
        "query": query,
        "neighbors": neighbors,
        "dists": distances(query[:, None], neighbors, metric),
        "neigh_labels": torch.randint(0, 3, (queries, k), generator=draw),
        "reliability": torch.rand(queries, k, generator=draw, dtype=dtype) * 0.9 + 0.05,
        "alignment": torch.rand(queries, k, generator=draw, dtype=dtype) * 2 - 1,
    }


def made(options=EVERYTHING, dim=4, seed=0, **more):
    torch.manual_seed(seed)
    return MultiHeadNeighborAttention(dim, options, **more)


def stirred(attention, seed=1, size=0.5):
    """The same module with every parameter at random, as after training."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=draw))
    return attention


def trained(attention, steps, given, right, lr=0.05):
    """Steps of Adam towards neighbors that are ``right``; the gradients of the last step stay."""
    optimizer = torch.optim.Adam(attention.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -(attention(**given) * right).sum(dim=1).clamp(min=1e-12).log().mean()
        loss.backward()
        optimizer.step()
    return attention


# --- the start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switches", COMBINATIONS, ids=lambda each: "+".join(n for n in each if each[n]) or "none")
@pytest.mark.parametrize("metric", METRICS)
def test_starts_as_softmax_weighting_exactly(metric, switches):
    given = task(3, metric=metric)
    for heads in (None, 1, 3) if switches["projections"] else (None,):
        attention = made(AttentionOptions(heads=heads, **switches), metric=metric).eval()
        expected = softmax(similarity(given["dists"], metric), SCALES[metric][0])
        torch.testing.assert_close(attention(**given), expected, rtol=0, atol=1e-15)


@given(
    seed=st.integers(0, 2**32 - 1),
    metric=st.sampled_from(METRICS),
    where=st.floats(0, 1),
    unit_of=st.floats(0.01, 99),
)
def test_without_parts_it_is_softmax_of_the_scales_it_states(seed, metric, where, unit_of):
    _, low, high = SCALES[metric]
    begin = min(high, max(low, low * (high / low) ** where))
    size = 1.0 if metric == "cosine" else unit_of
    attention = made(AttentionOptions().without(*PARTS), metric=metric, scale=begin, unit=size)
    given = task(seed, metric=metric)
    scales = attention.scales
    assert scales.tolist() == pytest.approx([begin / size], rel=1e-6)
    expected = softmax(similarity(given["dists"], metric), scales.item())
    torch.testing.assert_close(attention(**given), expected, rtol=1e-12, atol=1e-12)


# --- the formula --------------------------------------------------------------------------------------------


def refined(module, vectors):
    """Self-attention among one query's neighbors, pair by pair."""
    k, heads = len(vectors), module.num_heads
    q, key, value = module.qkv.weight.view(3, heads, -1, vectors.shape[1])
    moved = []
    for i in range(k):
        mixed = []
        for h in range(heads):
            scores = [(q[h] @ vectors[i]) @ (key[h] @ vectors[j]) / math.sqrt(q.shape[1]) for j in range(k)]
            shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            mixed.append(sum(shares[j] * (value[h] @ vectors[j]) for j in range(k)))
        vector = vectors[i] + module.out_proj.weight @ torch.cat(mixed)
        moved.append(vector / vector.norm() if module.normalize else vector)
    return moved


def network(module, features, head):
    hidden = module.inner.weight @ features + module.inner.bias
    return module.outer.weight[head] @ (hidden * hidden.sigmoid())


def by_hand(attention, given, at, factors):
    """One query's weights, head by head and neighbor by neighbor."""
    query, vectors, gaps, labels = (given[n][at] for n in ("query", "neighbors", "dists", "neigh_labels"))
    k, width = len(vectors), attention.projections.head_dim
    size = attention.unit.item()
    center, length = attention.center, attention.length.item()
    near = refined(attention.self_attention, (vectors - center) / length)
    steps = size if attention.metric == "l2" else length
    w_q, w_k = (each.weight.view(attention.num_heads, width, -1) for each in attention.projections.children())
    weights = torch.zeros(k, dtype=torch.float64)
    for h in range(attention.num_heads):
        logits = []
        for i in range(k):
            key = vectors[i] / steps + near[i] - (vectors[i] - center) / length
            close = 1 - gaps[i] if attention.metric == "cosine" else -gaps[i]
            share = (labels == labels[i]).double().mean()
            logits.append(
                attention.scales[h] * close
                + (w_q[h] @ ((query - center) / length)) @ (w_k[h] @ key) / math.sqrt(width)
                + network(attention.distance_bias, gaps[i : i + 1] / size, h)
                + network(attention.label_bias, torch.stack([share, given["reliability"][at, i].log()]), h)
                + attention.prototypes.factor[h] * given["alignment"][at, i]
            )
        raw = torch.stack(logits).exp() * factors
        weights += raw / raw.sum() / attention.num_heads
    return weights


@pytest.mark.parametrize(
    ("metric", "size", "where"),
    [
        ("l2", 1.0, {}),
        ("l2", 2.5, {"center": torch.tensor([1.0, -2.0, 0.0, 5.0]), "length": 7.0}),
        ("cosine", 1.0, {}),
        ("ip", 0.25, {}),
        ("ip", 0.25, {"length": 3.0}),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_whole_formula_neighbor_by_neighbor(metric, size, where, seed):
    attention = stirred(made(metric=metric, unit=size, **where), seed).double().eval()
    given = task(seed, metric=metric)
    factors = torch.rand(6, 5, dtype=torch.float64) + 0.1
    weights = attention(**given, prior=factors)
    for at in range(6):
        torch.testing.assert_close(weights[at], by_hand(attention, given, at, factors[at]), rtol=1e-9, atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), metric=st.sampled_from(["l2", "ip"]), times=st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_the_units_of_the_data_do_not_matter(seed, metric, times):
    given = task(seed, metric=metric)
    usual = stirred(made(metric=metric), seed % 100).double().eval()(**given)
    power = times if metric == "l2" else times**2
    scaled = stirred(made(metric=metric, unit=power), seed % 100).double().eval()
    changed = {**given, **{n: given[n] * times for n in ("query", "neighbors")}, "dists": given["dists"] * power}
    torch.testing.assert_close(scaled(**changed), usual, rtol=1e-5, atol=1e-6)  # the unit is kept in float32


def test_float32_parts_serve_float64_distances():
    given = task(5)
    attention = stirred(made()).eval()
    served = attention(**given)
    assert served.dtype == torch.float64
    torch.testing.assert_close(served.sum(dim=1), torch.ones(6).double(), rtol=0, atol=1e-15)
    torch.testing.assert_close(served, attention.double()(**given), rtol=1e-4, atol=1e-6)


# --- laws ---------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 9))
@settings(max_examples=20)
def test_permuting_neighbors_permutes_weights(seed, k):
    given, attention = task(seed, k=k), stirred(made()).double().eval()
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    shuffled = {name: each if name == "query" else each[:, order] for name, each in given.items()}
    torch.testing.assert_close(attention(**shuffled), attention(**given)[:, order])


@pytest.mark.parametrize("by", ["found", "distance", "prior"])
def test_absent_neighbors_weigh_nothing_and_change_nothing(by):
    given, attention = task(7), stirred(made()).double().eval()
    alone = attention(**{name: each if name == "query" else each[:, :3] for name, each in given.items()})
    holes = dict.fromkeys(["neighbors", "dists", "reliability", "alignment"], math.nan)
    if by == "prior":  # these exist, but count for nothing
        holes = {"dists": 0.1}
    for name, hole in holes.items():
        given[name][:, 3:] = hole
    given["neighbors"].requires_grad_()
    given["neigh_labels"][:, 3:] = 0 if by == "prior" else -1
    there = (torch.arange(5) < 3).expand(6, 5)
    more = {"found": {"found": there}, "distance": {}, "prior": {"prior": there.double()}}[by]
    weights = attention(**given, **more)
    assert (weights[:, 3:] == 0).all()
    torch.testing.assert_close(weights[:, :3], alone)
    weights.square().sum().backward()
    assert given["neighbors"].grad.isfinite().all()
    assert all(each.grad.isfinite().all() for each in attention.parameters())


def test_a_query_without_neighbors_gets_weights_of_zero_and_finite_gradients():
    given, attention = task(7), stirred(made()).double()
    found = torch.ones(6, 5, dtype=torch.bool)
    found[2] = False
    weights = attention(**given, found=found)
    assert weights.sum(dim=1).tolist() == pytest.approx([1, 1, 0, 1, 1, 1])
    weights.square().sum().backward()
    assert all(each.grad.isfinite().all() for each in attention.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_no_queries_and_no_neighbors_are_no_error(training):
    attention = made(AttentionOptions(distance_bias=True, prototypes=True, self_attention=True)).train(training)
    for queries, k in ((0, 5), (3, 0)):
        assert attention(**task(0, queries=queries, k=k)).shape == (queries, k)


@pytest.mark.parametrize("change", ["labels", "reliability"])
def test_the_label_bias_is_not_canceled_by_softmax(change):
    given = task(2)
    given["neigh_labels"] = torch.tensor([[0, 0, 0, 1, 2]]).expand(6, 5).clone()
    attention = stirred(made(EVERYTHING.without("projections", "distance_bias", "prototypes"))).double()
    before = attention(**given)
    if change == "labels":
        given["neigh_labels"][:, 3] = 2  # now there are two of them
    else:
        given["reliability"] = given["reliability"] * torch.tensor([1.0, 1, 1, 0.1, 1])
    assert ((attention(**given) - before).abs() > 1e-4).any(dim=1).all()


def test_renaming_the_labels_changes_no_weight():
    given, attention = task(2), stirred(made()).eval()
    renamed = {**given, "neigh_labels": torch.tensor([7, 0, 4])[given["neigh_labels"]]}
    torch.testing.assert_close(attention(**renamed), attention(**given), rtol=0, atol=0)


# --- the parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_part_switched_off_has_no_parameters_and_says_nothing(part):
    on, off = made(), made(EVERYTHING.without(part))
    names = {name for name, _ in off.named_parameters()}
    assert not any(name.startswith(part + ".") for name in names)
    assert part in on.parts()
    assert part not in off.parts()
    assert set(off.logit_parts(**task(0))) == {"scale", *off.options.parts} == set(off.parts())
    also = {"self_attention"} if part == "projections" else set()
    assert set(on.parts()) - set(off.parts()) == {part} | also


def test_parts_hold_every_parameter_once():
    attention = made()
    listed = [id(each) for each_part in attention.parts().values() for each in each_part]
    assert sorted(listed) == sorted(id(each) for each in attention.parameters())


def test_the_logits_of_the_parts_add_up_to_the_weights():
    given, attention = task(8), stirred(made()).double().eval()
    total = sum(attention.logit_parts(**given).values())
    torch.testing.assert_close(attention(**given), total.softmax(dim=-1).mean(dim=1))


def test_every_part_gets_a_gradient_within_two_steps_and_then_says_something():
    given = task(4, queries=40, dtype=torch.float32)
    right = (torch.arange(5) == 2).float().expand(40, 5)
    attention = trained(made(), 2, given, right)
    for name, parameters in attention.parts().items():
        assert sum(each.grad.square().sum() for each in parameters) > 0, name
    sizes = {name: logit_size(each).item() for name, each in attention.logit_parts(**given).items()}
    assert all(size > 1e-6 for size in sizes.values()), sizes


def test_every_parameter_gets_a_gradient_after_a_few_steps():
    given = task(4, queries=40, dtype=torch.float32)
    attention = trained(made(), 4, given, (torch.arange(5) == 2).float().expand(40, 5))
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("part", [part for part in PARTS if part != "self_attention"])
def test_each_part_alone_learns_what_only_it_can_know(part):
    given = task(6, queries=300, k=6, dtype=torch.float32)
    given["neigh_labels"] = torch.tensor([0, 0, 0, 0, 1, 2]).expand(300, 6)
    signal = {
        "projections": -(given["neighbors"] * given["query"].roll(1, dims=1)[:, None]).sum(dim=-1),
        "distance_bias": (given["dists"] - 1.2).abs(),
        "label_bias": -given["reliability"],
        "prototypes": -given["alignment"],
    }[part]
    right = (signal == signal.amin(dim=1, keepdim=True)).float()
    off = made(EVERYTHING.without(*PARTS), seed=2)
    alone = made(EVERYTHING.without(*(set(PARTS) - {part})), seed=2)
    share = {
        name: (trained(each, 150, given, right)(**given) * right).sum(dim=1).mean().item()
        for name, each in (("off", off), ("alone", alone))
    }
    assert share["alone"] > share["off"] + 0.15, share


def test_the_size_of_logits_ignores_what_softmax_cancels():
    logits = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = torch.tensor([[True] * 4 + [False], [True] * 5, [False] * 5, [True] + [False] * 4])
    kept = [logits[q, h, found[q]] for q in range(4) for h in range(3)]
    squares = [((each - each.mean()) ** 2).sum() for each in kept if len(each)]
    expected = (sum(squares) / sum(map(len, kept))).sqrt()
    shifted = logits + torch.randn(4, 3, 1, dtype=torch.float64)
    torch.testing.assert_close(logit_size(shifted.masked_fill(~found[:, None], math.nan), found), expected)


# --- heads --------------------------------------------------------------------------------------------------


def two_ways(zero_queries):
    """Two heads, 100 steps on queries of which one half wants its nearest neighbor and the other its farthest."""
    given = task(9, queries=60, dtype=torch.float32)
    right = (torch.arange(5) == given["dists"].argmin(dim=1, keepdim=True)).float()
    right[::2] = (torch.arange(5) == given["dists"][::2].argmax(dim=1, keepdim=True)).float()
    attention = made(AttentionOptions(heads=2, neighbor_dropout=0.0))
    if zero_queries:
        torch.nn.init.zeros_(attention.projections.q_proj.weight)
    trained(attention, 100, given, right, lr=0.01)
    logits = sum(attention.logit_parts(**given).values()).detach()
    return (logits.softmax(dim=-1)[:, 0] - logits.softmax(dim=-1)[:, 1]).abs().max().item()


def test_two_heads_differ_after_100_steps():
    assert two_ways(zero_queries=False) > 0.05


def test_they_would_not_if_the_projection_of_the_query_started_at_zero_too():
    assert two_ways(zero_queries=True) < 1e-6


def test_with_equal_scales_and_all_parts_zero_every_head_gets_the_same_gradient():
    attention = made(EVERYTHING).double()
    torch.nn.init.zeros_(attention.projections.q_proj.weight)
    given = task(1)
    attention(**given)[:, 0].log().sum().backward()
    outer = [attention.distance_bias.outer, attention.label_bias.outer]
    per_head = [attention.log_scale.grad, attention.prototypes.factor.grad, *(each.weight.grad for each in outer)]
    for grad in per_head:
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, grad[:1].expand_as(grad))


def test_a_random_projection_of_the_query_gives_every_head_its_own_gradient():
    attention = made(EVERYTHING).double()
    attention(**task(1))[:, 0].log().sum().backward()
    grad = attention.projections.k_proj.weight.grad.view(4, -1)
    assert all((grad[a] - grad[b]).abs().max() > 1e-3 for a in range(4) for b in range(a))


# --- the scale ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("outward", [-1, 1])
def test_scales_stay_in_their_bounds_and_come_back(metric, outward):
    _, low, high = SCALES[metric]
    attention = made(AttentionOptions(heads=2), metric=metric)
    with torch.no_grad():
        attention.log_scale.fill_(50.0 * outward)
    given = task(0, metric=metric)
    assert attention.scales.tolist() == pytest.approx([high if outward > 0 else low] * 2)
    nearest = attention.eval()(**given).gather(1, given["dists"].argmin(dim=1, keepdim=True)).sum()
    # Steps that raise the share of the nearest raise the scale: beyond the upper bound they are stopped.
    (grad,) = torch.autograd.grad(-nearest, attention.log_scale, retain_graph=True)
    assert (grad == 0).all() if outward > 0 else (grad < 0).all()
    (grad,) = torch.autograd.grad(nearest, attention.log_scale)
    assert (grad == 0).all() if outward < 0 else (grad > 0).all()


def test_a_long_training_towards_the_nearest_ends_at_the_upper_bound():
    given = task(0, dtype=torch.float32)
    right = (given["dists"] == given["dists"].amin(dim=1, keepdim=True)).float()
    attention = made(AttentionOptions().without(*PARTS))
    trained(attention, 60, given, right, lr=0.3)
    assert 20 < attention.scales.item() <= 100 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 101.0}, "within 0.01 and 100, got 101.0"),
        ({"scale": 0.5, "metric": "cosine"}, "within 1 and 100, got 0.5"),
        ({"scale": math.nan}, "got nan"),
        ({"unit": 0.0}, "got 0.0"),
        ({"unit": math.inf}, "got inf"),
        ({"unit": 2.0, "metric": "cosine"}, "unit=2.0"),
        ({"length": 0.0}, "length must be a positive distance, got 0.0"),
        ({"length": 2.0, "metric": "cosine"}, "center and length must be None"),
        ({"center": torch.zeros(3)}, "center must be 4 finite numbers"),
        ({"center": torch.full((4,), math.nan)}, "center must be 4 finite numbers"),
        ({"metric": "manhattan"}, "'manhattan'"),
        ({"dim": 0}, "got 0"),
    ],
)
def test_impossible_settings_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        made(**given)


def test_what_a_part_needs_is_asked_for_by_name():
    for part, name in (("label_bias", "neigh_labels"), ("prototypes", "alignment")):
        with pytest.raises(InvalidInput, match=f"{part} is on and needs {name}"):
            made()(**{**task(0), name: None})
        made(EVERYTHING.without(part))(**{**task(0), name: None})
    with pytest.raises(InvalidInput, match=r"neighbors \(b, k, 4\).*\(6, 3\)"):
        made()(**{**task(0), "query": torch.zeros(6, 3)})


def test_a_saved_state_gives_the_same_weights():
    given, attention = task(0), stirred(made(unit=3.0, scale=2.0)).eval()
    copy = made(seed=5).eval()
    copy.load_state_dict(attention.state_dict())
    torch.testing.assert_close(copy(**given), attention(**given), rtol=0, atol=0)


# --- dropout ------------------------------------------------------------------------------------------------


def test_dropout_hides_neighbors_from_all_heads_and_never_the_last():
    attention = stirred(made(AttentionOptions(neighbor_dropout=0.6))).train()
    given = task(0, queries=2000, k=4, dtype=torch.float32)
    found = torch.ones(2000, 4, dtype=torch.bool)
    found[:, 1] = False
    found[0] = False
    weights = attention(**given, found=found)
    assert (weights[~found] == 0).all()
    torch.testing.assert_close(weights[1:].sum(dim=1), torch.ones(1999))
    kept = (weights[1:] > 0).sum(dim=1)
    # Three exist; each stays with .4, and one always does: 3 * .4 + .6 ** 3 on average.
    assert kept.float().mean().item() == pytest.approx(3 * 0.4 + 0.6**3, abs=0.06)
    full = attention.eval()(**given, found=found)[1:]
    ratio = (weights[1:] / full).where(weights[1:] > 0, math.nan)
    assert (ratio.nan_to_num(1e9) >= 1 - 1e-5).all()  # those that stay share what the hidden ones had


def test_no_neighbor_is_hidden_outside_training():
    attention = stirred(made(AttentionOptions(neighbor_dropout=0.9))).eval()
    given = task(0)
    torch.testing.assert_close(attention(**given), attention(**given), rtol=0, atol=0)
    assert (attention(**given) > 0).all()


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 0}, "heads .* got 0"),
        ({"heads": True}, "got True"),
        ({"head_dim": 2.5}, "got 2.5"),
        ({"hidden": -1}, "got -1"),
        ({"neighbor_dropout": 1.0}, "got 1.0"),
        ({"neighbor_dropout": math.nan}, "got nan"),
        ({"robust": 1.5}, "robust must lie within 0 and 1, got 1.5"),
        ({"robust": True}, "got True"),
        ({"robust": math.nan}, "got nan"),
        (dict.fromkeys(PARTS, False) | {"robust": 0.7}, "robust=0.7 is how parts are trained"),
        ({"label_bias": 1}, "label_bias .* got 1"),
        ({"projections": False, "self_attention": True}, "projections=False"),
        ({"projections": False, "heads": 2}, "heads=2"),
        ({"projections": False, "head_dim": 16}, "head_dim=16"),
        ({"distance_bias": False, "label_bias": False, "hidden": 16}, "hidden=16"),
        (dict.fromkeys(PARTS, False) | {"neighbor_dropout": 0.1}, "neighbor_dropout=0.1"),
    ],
)
def test_options_that_are_wrong_or_that_nothing_reads_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        AttentionOptions(**given)


@pytest.mark.parametrize("part", PARTS)
def test_options_without_a_part_drop_what_only_it_read(part):
    full = AttentionOptions(
        heads=2,
        head_dim=3,
        distance_bias=True,
        prototypes=True,
        self_attention=True,
        hidden=5,
        neighbor_dropout=0.3,
        robust=0.7,
    )
    less = full.without(part)
    assert part not in less.parts
    assert less.heads == (None if part == "projections" else 2)
    assert less.hidden == 5
    nothing = full.without(*PARTS)
    assert nothing == AttentionOptions(**dict.fromkeys(PARTS, False))
    assert (nothing.num_heads, nothing.dropout) == (1, 0.0)
    with pytest.raises(InvalidInput, match="no part values"):
        full.without("values")


def test_the_state_of_options_makes_them_again():
    for switches in COMBINATIONS:
        options = AttentionOptions(**switches)
        assert AttentionOptions(**options.state()) == options


# --- prototypes ---------------------------------------------------------------------------------------------


def test_alignment_is_the_cosine_to_the_mean_of_the_others():
    draw = torch.Generator().manual_seed(0)
    vectors, labels = torch.randn(30, 4, generator=draw).double(), torch.randint(0, 3, (30,), generator=draw)
    sums = torch.zeros(3, 4).double().index_add_(0, labels, vectors)
    rows = torch.stack([torch.randperm(29, generator=draw)[:6] for _ in range(30)])
    rows += rows >= torch.arange(30)[:, None]  # never itself
    own = labels.clone()
    own[::3] = -1  # these are no members
    found = prototype_alignment(vectors[rows], labels[rows], sums, own, vectors)
    for query in range(30):
        for at, row in enumerate(rows[query].tolist()):
            out = query if own[query] >= 0 else None
            members = [each for each in range(30) if labels[each] == labels[row] and each != out]
            expected = torch.cosine_similarity(vectors[row], vectors[members].mean(dim=0), dim=0)
            torch.testing.assert_close(found[query, at], expected)


@pytest.mark.parametrize("classes", [2, 40])
def test_alignment_is_the_cosine_for_few_classes_and_many_also_under_autocast(classes):
    draw = torch.Generator().manual_seed(0)
    neighbors, sums = torch.randn(6, 9, 16, generator=draw), torch.randn(classes, 16, generator=draw)
    labels = torch.randint(classes, (6, 9), generator=draw)
    want = torch.cosine_similarity(neighbors, sums[labels], dim=-1)
    torch.testing.assert_close(prototype_alignment(neighbors, labels, sums), want)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(prototype_alignment(neighbors, labels, sums), want)


def test_a_class_that_was_never_seen_aligns_with_nobody():
    sums, labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0, 1, -1]])
    neighbors = torch.tensor([[[2.0, 0.0], [1.0, 0.0], [math.nan, 0.0]]])
    assert prototype_alignment(neighbors, labels, sums).tolist() == [[1.0, 0.0, 0.0]]
    with pytest.raises(InvalidInput, match="label 2 has no prototype"):
        prototype_alignment(neighbors, labels + 1, sums)
    with pytest.raises(InvalidInput, match="go together"):
        prototype_alignment(neighbors, labels, sums, own=torch.tensor([0]))


def test_taking_the_query_out_of_its_prototype_takes_out_the_leak():
    def leak(seed, taken):
        """On labels of pure chance: how much more aligned the neighbors of the query's own class are."""
        draw = torch.Generator().manual_seed(seed)
        vectors, labels = torch.randn(300, 3, generator=draw), torch.randint(0, 30, (300,), generator=draw)
        rows = torch.cdist(vectors, vectors).fill_diagonal_(math.inf).topk(20, largest=False).indices
        sums = torch.zeros(30, 3).index_add_(0, labels, vectors)
        out = (labels, vectors) if taken else ()
        aligned = prototype_alignment(vectors[rows], labels[rows], sums, *out)
        same = labels[rows] == labels[:, None]
        return (aligned[same].mean() - aligned[~same].mean()).item()

    assert sum(leak(seed, taken=False) for seed in range(8)) / 8 > 0.12
    assert abs(sum(leak(seed, taken=True) for seed in range(8))) / 8 < 0.05


def test_with_the_query_taken_out_its_label_cannot_be_read_off():
    # Relabel one query and rebuild the sums: its neighbors must look to it as before.
    draw = torch.Generator().manual_seed(1)
    vectors, labels = torch.randn(40, 3, generator=draw).double(), torch.randint(0, 4, (40,), generator=draw)
    rows = torch.cdist(vectors, vectors).fill_diagonal_(math.inf).topk(8, largest=False).indices

    def aligned(labels, query, taken):
        sums = torch.zeros(4, 3).double().index_add_(0, labels, vectors)
        own = (labels[query : query + 1], vectors[query : query + 1]) if taken else ()
        return prototype_alignment(vectors[rows[query]][None], labels[rows[query]][None], sums, *own)

    for query in range(40):
        other = labels.clone()
        other[query] = (other[query] + 1) % 4
        torch.testing.assert_close(aligned(other, query, True), aligned(labels, query, True))
    assert not torch.allclose(aligned(other, 39, False), aligned(labels, 39, False))

"""What a model is said to cost, against torch's own counter and against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnknn.errors import InvalidInput
from attnknn.vit import LAYERS, MultiHeadConv1d, ViT, create_layer, create_vit
from attnknn.vit.summary import Flops, flops, layer_flops, summary

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"img_size": 32, "patch_size": 8, "num_layers": 2, "d_hidden": 24, "num_heads": 3, "d_mlp": 48, "K": 4}


def products(module, *given):
    """The matrix products and convolutions of a forward pass, as torch counts them."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*given)
    return counter.get_total_flops()


def small(layer="Attention", **options):
    torch.manual_seed(0)
    return ViT(layer, **{**SMALL, **options}).eval()


def cost(layer, tokens=5, dim=4, **options):
    return layer_flops(create_layer(layer, dim, 2, **options), tokens)


# --- against torch's counter --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pool": "mean", "final_norm": True},
        {"img_size": (30, 41), "patch_size": (8, 7), "in_channels": 1, "num_classes": 7},
        {"sampling_type": "random", "num_samples": 5},
        {"sampling_type": "random", "num_samples": 5, "eval_sampling": "all"},
        {"sampling_type": "spatial", "num_samples": 3, "sample_padding": 0},
    ],
)
def test_a_model_of_plain_attention_costs_the_products_that_torch_counts(options):
    model = small(**options)
    found = flops(model)
    rows, columns = model.grid_size
    patches, tokens = rows * columns, rows * columns + (model.pool == "cls")
    norms = 5 * 24 * (patches + 2 * 2 * tokens + tokens * ("final_norm" in options))
    means = 24 * patches * (model.pool == "mean")
    counted = products(model, torch.zeros(1, model.in_channels, *model.img_size))
    assert found.total - found.weights - norms - means == counted
    assert found.selection == found.convolution == 0


@pytest.mark.parametrize(
    ("layer", "options", "tokens"),
    [
        ("Attention", {"sampling_type": "random", "num_samples": 5}, 17),
        ("LocalAttention", {"window_size": 5, "rotary": False}, 17),
        ("LocalAttention", {"window_size": 5, "rotary": False, "causal": True, "dim_head": 10}, 17),
        ("LocalAttention", {"window_size": 99, "rotary": False, "gate_values_per_head": True}, 17),
        ("SparseAttention", {"sparse_mode": "all"}, 32),
        ("SparseAttention", {"sparse_mode": "local", "sparse_context_window": 4}, 39),
        ("SparseAttention", {"sparse_mode": "strided", "sparse_context_window": 7}, 39),
        ("NeighborhoodAttention", {"K": 5}, 39),
        ("NeighborhoodAttention", {"K": 5, "is_causal": True, "qkv_bias": True}, 39),
        ("NeighborhoodAttention2D", {"K": 2}, 37),
        ("NeighborhoodAttention2D", {"K": 2}, 25),
    ],
)
def test_layers_that_score_all_and_mask_cost_the_products_that_torch_counts(layer, options, tokens):
    made = create_layer(layer, 12, 2, **options)
    found = layer_flops(made, tokens)
    assert found.projections + found.scores + found.values == products(made, torch.zeros(1, tokens, 12))


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("SparseAttention", {"sparse_mode": "local", "sparse_context_window": 4}),
        ("SparseAttention", {"sparse_mode": "strided", "sparse_context_window": 8}),
        ("NeighborhoodAttention", {"K": 5}),
    ],
)
def test_layers_that_follow_links_multiply_no_more_matrices_than_projections(layer, options):
    made = create_layer(layer, 12, 2, **options)
    found = layer_flops(made, 40)  # the least number of which 5 are an eighth
    assert found.projections == products(made, torch.zeros(1, 40, 12))
    assert found.scores == found.values == 2 * 40 * 5 * 12


@pytest.mark.parametrize("convolution", ["depthwise", "standard", "depthwise-separable"])
@pytest.mark.parametrize("sampling", ["all", "random"])
@pytest.mark.parametrize("coordinates", [False, "grid", "sequence"])
def test_projections_search_and_convolution_of_convnn_attention_are_as_torch_counts(
    convolution, sampling, coordinates
):
    # Scores are formed sixteen keys at a time: with multiples of that none is formed in vain.
    options = {"sampling_type": sampling, "num_samples": 32, "coordinate_encoding": coordinates}
    made = create_layer("ConvNNAttention", 12, 2, K=5, convolution_type=convolution, **options, grid_size=8)
    found, wide = layer_flops(made, 64), 6 + {False: 0, "sequence": 1, "grid": 2}[coordinates]
    itself = 2 * 64 * 2 * wide if sampling == "random" else 0
    # Of the convolution torch counts the map of all channels; of so few tokens' all of it, where it is one.
    beside = {"depthwise-separable": 2 * 2 * 64 * wide * 6, "standard": found.convolution}.get(convolution, 0)
    counted = products(made, torch.zeros(1, 64, 12))
    assert found.projections + found.scores - itself + beside == counted
    channels = 6 if convolution == "depthwise" else wide
    assert found.convolution == products(made.conv, torch.zeros(2 * 64, channels, 5))


def test_the_other_layers_cost_their_products_too():
    kvt, conv = create_layer("KvtAttention", 12, 2, K=5), MultiHeadConv1d(12, 2, kernel_size=4)
    found = layer_flops(kvt, 32)
    assert found.projections + found.scores == products(kvt, torch.zeros(1, 32, 12))
    assert layer_flops(conv, 17).total == products(conv, torch.zeros(1, 17, 12))


def test_the_tiny_model_costs_what_was_published():
    with torch.device("meta"):
        found = flops(create_vit("tiny", layer="Attention"))
    norms, sums = 5 * 192 * (196 + 24 * 197), 25 * 197 * 192  # the profiler leaves out those, but counts these
    assert (found.total - found.weights - norms + sums) / 1e9 == pytest.approx(2.508, abs=5e-4)


# --- by hand ------------------------------------------------------------------------------------------------

FIVE = {"projections": 4 * 2 * 5 * 4 * 4}  # four maps of five tokens of width 4
DENSE = {"scores": 2 * 25 * 4, "weights": 5 * 2 * 25, "values": 2 * 25 * 4}
NEAR = {"scores": 200, "selection": 2 * 25 * 2, "weights": 5 * 20, "values": 20 * 2, "convolution": 2 * 20 * 2}
AROUND = {"projections": 4 * 2 * 24 * 16, "scores": 2 * 72 * 4, "weights": 5 * 2 * 72, "values": 2 * 72 * 4}


@pytest.mark.parametrize(
    ("layer", "options", "expected"),
    [
        ("Attention", {}, {**FIVE, **DENSE}),
        (
            "Attention",
            {"sampling_type": "spatial", "num_samples": 1},  # one patch and the class token
            {"projections": 2 * 160 + 2 * 64, "scores": 2 * 10 * 4, "weights": 5 * 2 * 10, "values": 80},
        ),
        ("ConvNNAttention", {"K": 2}, {**FIVE, **NEAR}),
        ("ConvNNAttention", {"K": 2, "softmax_topk_val": False}, {**FIVE, **NEAR, "weights": 0}),
        ("ConvNNAttention", {"K": 2, "convolution_type": "standard"}, {**FIVE, **NEAR, "convolution": 2 * 20 * 4}),
        (
            "ConvNNAttention",
            {"K": 2, "convolution_type": "depthwise-separable"},
            {**FIVE, **NEAR, "convolution": 2 * 20 * 2 + 2 * 10 * 4},
        ),
        (
            "ConvNNAttention",
            {"K": 2, "convolution_type": "standard", "coordinate_encoding": True},
            {**FIVE, **NEAR, "scores": 400, "values": 20 * 4, "convolution": 2 * 20 * 4 * 2},
        ),
        ("ConvNNAttention", {"K": 2, "coordinate_encoding": "sequence"}, {**FIVE, **NEAR, "scores": 300}),
        ("ConvNNAttention", {"K": 2, "magnitude_type": "cosine"}, {**FIVE, **NEAR, "scores": 200 + 3 * 10 * 4}),
        (
            "ConvNNAttention",
            {"K": 2, "magnitude_type": "euclidean"},
            {**FIVE, **NEAR, "scores": 200 + 4 * (3 * 5 + 2 * 5 + 3 * 10)},
        ),
        (
            "ConvNNAttention",
            {"K": 3, "sampling_type": "random", "num_samples": 3},
            {
                **FIVE,
                "scores": 2 * 15 * 4 + 2 * 5 * 4,
                "selection": 2 * 15 * 2,
                "weights": 5 * 30,
                "values": 30 * 2,
                "convolution": 2 * 30 * 2,
            },
        ),
        (
            "ConvNNAttention",
            {"K": 1, "sampling_type": "random", "num_samples": 3},  # a token itself: nothing is looked for
            {**FIVE, "scores": 2 * 5 * 4, "weights": 50, "values": 20, "convolution": 40},
        ),
        (
            "KvtAttention",
            {"K": 2},
            {**FIVE, "scores": 200, "selection": 100, "weights": 100, "values": 2 * 20 * 2},
        ),
        (
            "LocalAttention",
            {"window_size": 2},  # three windows of two, each sees six keys; queries and keys are turned
            {**FIVE, "scores": 2 * 36 * 4 + 3 * (6 + 18) * 4, "weights": 5 * 2 * 36, "values": 2 * 36 * 4},
        ),
        (
            "LocalAttention",
            {"window_size": 2, "rotary": False, "prenorm": True, "qk_rmsnorm": True},
            {**FIVE, "scores": 288 + 3 * 10 * 4, "weights": 360, "values": 288, "other": 5 * 5 * 4},
        ),
        ("SparseAttention", {}, {**FIVE, **DENSE}),
    ],
)
def test_five_tokens_in_two_heads_of_two_channels(layer, options, expected):
    assert cost(layer, **options) == Flops(**expected)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ("SparseAttention", {"sparse_mode": "local", "sparse_context_window": 2}),
        ("SparseAttention", {"sparse_mode": "strided", "sparse_context_window": 8}),
        ("NeighborhoodAttention", {"K": 3}),
        ("NeighborhoodAttention", {"K": 4, "dilation": 8}),
        ("NeighborhoodAttention", {"K": 3, "is_causal": True}),
    ],
)
def test_three_of_twenty_four_tokens_are_seen(layer, options):
    assert cost(layer, 24, **options) == Flops(**AROUND)


def test_patches_see_their_window_and_the_class_token_sees_all():
    pairs = 25 * 2 + 26
    expected = Flops(
        projections=4 * 2 * 26 * 16, scores=2 * pairs * 4, weights=5 * 2 * pairs, values=2 * pairs * 4
    )
    assert cost("NeighborhoodAttention2D", 26, K=1) == expected


def test_branches_cost_what_they_cost_alone_and_the_map_of_both():
    near, dense = cost("ConvNNAttention", K=2), cost("Attention")
    mixing = 2 * 5 * 8 * 8
    found = cost("BranchConv", dim=8, K=2, kernel_size=3)
    assert found == near._replace(
        projections=near.projections + 2 * 2 * 5 * 4 * 4 + mixing,
        convolution=near.convolution + 2 * 2 * 5 * 3 * 2 * 2,
    )
    assert cost("BranchAttention", dim=8, K=2).total == near.total + dense.total + mixing
    for layer in ("BranchConv", "BranchAttention"):
        assert cost(layer, branch_ratio=1.0, K=2) == near
    assert cost("BranchAttention", branch_ratio=0.0) == dense


@pytest.mark.parametrize(("kept", "comparisons"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (99, 5)])
def test_a_score_finds_its_place_by_halving(kept, comparisons):
    assert cost("KvtAttention", 16, K=kept).selection == 2 * 16 * 16 * comparisons


# --- what changes the count ---------------------------------------------------------------------------------


def test_k_and_the_kind_of_convolution_change_the_count():
    counts = [flops(small("ConvNNAttention", K=kept)).total for kept in (1, 2, 3, 4, 9, 17)]
    assert sorted(set(counts)) == counts
    kinds = ("depthwise", "depthwise-separable", "standard")
    counts = [flops(small("ConvNNAttention", convolution_type=kind)).total for kind in kinds]
    assert sorted(set(counts)) == counts


@pytest.mark.parametrize("layer", ["Attention", "ConvNNAttention", "BranchConv", "BranchAttention"])
@pytest.mark.parametrize("sampling", ["random", "spatial"])
def test_fewer_candidates_cost_less(layer, sampling):
    options = {"layer": layer, "sampling_type": sampling, "num_heads": 2, "K": 2}
    counts = [flops(small(num_samples=number, **options)).total for number in (2, 3, 4, -1)]
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] <= counts[3]


def test_the_mode_counts_where_evaluation_takes_all_tokens_and_nothing_is_drawn():
    model = small("ConvNNAttention", sampling_type="random", num_samples=5, eval_sampling="all")
    states = {name: value.clone() for name, value in model.state_dict().items()}
    assert flops(model.train()).total < flops(model.eval()).total
    assert flops(model.train()) == flops(small("ConvNNAttention", sampling_type="random", num_samples=5))
    assert all(torch.equal(value, states[name]) for name, value in model.state_dict().items())


def test_a_block_counts_once_for_each_time_it_is_there():
    once, mixed = flops(small(num_layers=1)), flops(small(["Attention", "KvtAttention"]))
    twice = flops(small(num_layers=2))
    ends = 2 * once.total - twice.total
    assert ends == 2 * 16 * 3 * 64 * 24 + 5 * 16 * 24 + 2 * 24 * 10
    assert mixed.total == once.total + flops(small("KvtAttention", num_layers=1)).total - ends


def test_a_strange_layer_is_refused():
    with pytest.raises(InvalidInput, match="no formula for a layer Linear"):
        layer_flops(nn.Linear(4, 4), 5)


# --- the text -----------------------------------------------------------------------------------------------


def tables(text):
    """The lines of the table of parameters and of that of operations, as words."""
    _, parameters, costs = text.split("\n\n")
    return [each.split() for each in parameters.splitlines()], [each.split() for each in costs.splitlines()]


def number(word):
    return int(word.replace(",", ""))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_summary_tells_the_architecture_the_parameters_and_the_cost(layer):
    with torch.device("meta"):
        model = create_vit("tiny", layer=layer, sampling_type="random", num_samples=32)
    text = summary(model)
    assert text.startswith(str(model))
    parameters, costs = tables(text)
    rows = {row[0]: number(row[-2]) for row in parameters[1:]}
    assert sum(rows.values()) == 2 * rows["all"] == 2 * sum(each.numel() for each in model.parameters())
    assert parameters[1] == ["patch_embedding.linear_projection", "Conv2d", "147,648", "147,648"]
    cost = flops(model)
    assert {row[0]: number(row[1]) for row in costs[1:]} == {**cost._asdict(), "total": cost.total}
    assert "3 x 224 x 224" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_parameters_that_are_held_fast_are_not_trainable():
    model = small("ConvNNAttention", magnitude_type="cosine", positions="learned")
    model.patch_embedding.requires_grad_(False)
    parameters, _ = tables(summary(model))
    rows = {row[0]: [number(each) for each in row[-2:]] for row in parameters[1:]}
    frozen = sum(each.numel() for each in model.patch_embedding.parameters())
    assert rows["patch_embedding.norm"] == [48, 0]
    assert rows["all"][0] - rows["all"][1] == frozen
    assert rows["transformer_encoder.0.attention"] == [3, 3]  # a temperature for each head
    assert rows["positional_encoding"] == [24 * 18] * 2

"""ConvNN attention in place of timm's: the same arguments, names and weights, and the same results with a large K.

Most of it needs no timm: its attention is written out below. The tests at the end run where timm can be imported.
"""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from attnknn.errors import InvalidInput
from attnknn.vit import MultiHeadConvNNAttention
from attnknn.vit.drop_in import convnn_attn, replace_attention

pytestmark = pytest.mark.usefixtures("one_thread")


def told(given):
    """A name for a case that is the same in every process: objects are named by their type."""
    if isinstance(given, dict):
        return "-".join(f"{name}={told(each)}" for name, each in given.items())
    return type(given).__name__ if isinstance(given, torch.Generator) else str(given)


class PlainAttention(nn.Module):
    """Attention as timm's Vision Transformers have it."""

    def __init__(
        self,
        dim=12,
        num_heads=3,
        qkv_bias=True,
        qk_norm=False,
        scale_norm=False,
        proj_bias=True,
        attn_drop=0.0,
        proj_drop=0.0,
        norm_layer=nn.LayerNorm,
    ):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.q_norm = norm_layer(dim // num_heads) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(dim // num_heads) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(dim) if scale_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x, attn_mask=None, is_causal=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        rate = self.attn_drop.p if self.training else 0.0
        q, k = self.q_norm(q), self.k_norm(k)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask, rate, is_causal, scale=self.scale)
        return self.proj_drop(self.proj(self.norm(mixed.transpose(1, 2).flatten(2))))


class Block(nn.Module):
    def __init__(self, attn, dim=12):
        super().__init__()
        self.norm1, self.attn, self.mlp = nn.LayerNorm(dim), attn, nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(x).relu()


def plain(seed=0, **options):
    """Plain attention with every parameter, biases and norms too, drawn at random."""
    torch.manual_seed(seed)
    layer = PlainAttention(**options).double()
    for each in layer.parameters():
        nn.init.normal_(each, std=0.5)
    return layer.eval()


def network(depth=3, **options):
    return nn.Sequential(*(Block(plain(seed, **options)) for seed in range(depth))).double().eval()


def tokens(seed, count=17, dim=12, batch=2):
    return torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(K=9, given=None, **options):
    torch.manual_seed(0)
    return convnn_attn(K, **options)(12, **{"num_heads": 3, **(given or {})}).double().eval()


PARTS = [
    {},
    {"qkv_bias": False, "proj_bias": False},
    {"qk_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-6)},
    {"qk_norm": True, "scale_norm": True, "norm_layer": nn.RMSNorm},
    {"num_heads": 1},
]


# --- the class ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("k", [17, 18, 40])
def test_equals_attention_with_the_same_weights_once_k_covers_every_token(parts, k):
    attention, x = plain(**parts), tokens(1)
    layer = made(k, given={"qkv_bias": True, **parts})
    missing, strange = layer.load_state_dict(attention.state_dict(), strict=False)
    assert (missing, strange) == (["conv.weight"], [])
    assert torch.equal(layer.conv.weight, torch.ones(12 // layer.num_heads, 1, k, dtype=torch.float64))
    torch.testing.assert_close(layer(x), attention(x))


def test_masks_are_those_of_attention():
    attention, x = plain(), tokens(2)
    layer = made(17, given={"qkv_bias": True})
    layer.load_state_dict(attention.state_dict(), strict=False)
    torch.testing.assert_close(layer(x, is_causal=True), attention(x, is_causal=True))
    draws = torch.Generator().manual_seed(0)
    for shape in [(17, 17), (2, 1, 1, 17), (2, 3, 17, 17)]:
        bias = torch.randn(shape, generator=draws, dtype=torch.float64)
        torch.testing.assert_close(layer(x, attn_mask=bias), attention(x, attn_mask=bias))
        seen = bias > -0.5
        torch.testing.assert_close(layer(x, attn_mask=seen), attention(x, attn_mask=seen))


@pytest.mark.parametrize("k", [1, 4])
def test_below_that_only_the_best_tokens_count_each_by_its_rank(k):
    layer, x = made(k, given={"qkv_bias": True}), tokens(3)
    nn.init.normal_(layer.conv.weight)
    q, k_, v = layer.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    best, at = (q @ k_.mT / 2).sort(dim=-1, descending=True, stable=True)
    weights = best[..., :k].softmax(dim=-1)
    mixed = torch.zeros_like(v)
    for rank in range(k):
        value = v.gather(2, at[..., rank, None].expand_as(v))
        mixed += weights[..., rank, None] * value * layer.conv.weight[:, 0, rank]
    out, kept = layer(x, return_indices=True)
    torch.testing.assert_close(out, layer.proj(mixed.transpose(1, 2).flatten(2)))
    assert torch.equal(kept, at[..., :k])


@pytest.mark.parametrize(
    "options",
    [
        {"magnitude_type": "cosine"},
        {"magnitude_type": "euclidean", "softmax_topk_val": False},
        {"convolution_type": "standard", "coordinate_encoding": True},
        {"convolution_type": "depthwise-separable"},
        {"sampling_type": "spatial", "num_samples": 3, "sample_padding": 1},
        {"sampling_type": "random", "num_samples": 8, "generator": torch.Generator().manual_seed(3)},
    ],
    ids=told,
)
def test_every_option_does_what_it_does_in_the_layer_of_its_own(options):
    layer, x = made(4, given={"proj_bias": False}, **options), tokens(4)
    same = MultiHeadConvNNAttention(12, 3, K=4, **options).double().eval()
    state = layer.state_dict()
    for name, each in zip("qkv", state.pop("qkv.weight").chunk(3), strict=True):
        state[f"W_{name}.weight"] = each
    state["W_o.weight"] = state.pop("proj.weight")
    same.load_state_dict(state)
    torch.testing.assert_close(layer(x), same(x))


def test_gradients_are_those_of_attention_and_reach_the_rank_weights():
    attention, x = plain(qk_norm=True), tokens(5)
    layer = made(17, given={"qkv_bias": True, "qk_norm": True, "norm_layer": nn.LayerNorm})
    layer.load_state_dict(attention.state_dict(), strict=False)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(ours).sin().sum().backward()
    attention(theirs).sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for name, each in attention.named_parameters():
        torch.testing.assert_close(layer.get_parameter(name).grad, each.grad)
    assert (layer.conv.weight.grad != 0).all()


def test_dropout_is_on_the_weights_of_tokens_and_only_in_training():
    layer, x = made(17, given={"attn_drop": 0.5, "proj_bias": False}), tokens(6)
    nn.init.eye_(layer.proj.weight)
    with torch.no_grad():
        layer.qkv.weight[:24] = 0  # every token counts 1 / 17
        layer.qkv.weight[24:] = torch.eye(12)
    torch.testing.assert_close(layer(x), x.mean(dim=1, keepdim=True).expand_as(x))
    layer.train()
    mixed = layer(torch.eye(17, 12, dtype=torch.float64)[None])
    survived = mixed[0] * 17 / 2  # the share of each of the first 12 tokens, in one head each
    torch.testing.assert_close(survived, survived.round())
    assert set(survived.round().unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("count", [1, 5, 9, 30])
def test_takes_any_number_of_tokens(count):
    layer, attention, x = made(9, given={"qkv_bias": True}), plain(), tokens(7, count)
    layer.load_state_dict(attention.state_dict(), strict=False)
    out, kept = layer(x, return_indices=True)
    assert kept.shape == (2, 3, count, min(count, 9))
    assert torch.allclose(out, attention(x)) == (count <= 9)


def test_parameters_are_made_where_and_as_they_are_asked_for():
    kind = convnn_attn(4, magnitude_type="cosine")
    layer = kind(12, 3, qk_norm=True, norm_layer=nn.LayerNorm, device="meta", dtype=torch.bfloat16)
    assert {(each.device.type, each.dtype) for each in layer.parameters()} == {("meta", torch.bfloat16)}
    assert issubclass(kind, nn.Module)
    assert isinstance(copy.deepcopy(layer), kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_full(dtype):
    layer, x = made(17, given={"qkv_bias": True, "qk_norm": True, "norm_layer": nn.LayerNorm}), tokens(8)
    expected = layer(x).float()
    layer.to(dtype)
    out = layer(x.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert all(each.grad.isfinite().all() for each in layer.parameters())


def test_autocast_may_leave_norms_in_full_precision():
    layer = made(17, given={"qkv_bias": True, "qk_norm": True, "norm_layer": nn.LayerNorm}).float()
    x = tokens(9).float()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x), rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert all(each.grad.isfinite().all() for each in layer.parameters())


# Raised within torch's own tracing of any autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_without_a_graph_break():
    torch.compiler.reset()
    layer, x = made(4, given={"qkv_bias": True}).float(), tokens(10).float()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))


def test_resetting_a_layer_gives_rank_weights_of_1_again():
    layer = made(4, magnitude_type="cosine")
    for each in layer.parameters():
        nn.init.normal_(each)
    layer.conv.reset_parameters()
    layer.reset_parameters()
    assert (layer.conv.weight == 1).all()
    assert (layer.temperature == 1).all()


# --- the swap -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_a_model_computes_what_it_did_once_k_covers_every_token(parts):
    model, x = network(**parts), tokens(11)
    expected = model(x)
    assert replace_attention(model, K=17) is model
    torch.testing.assert_close(model(x), expected)
    assert not torch.allclose(replace_attention(network(**parts), K=3)(x), expected)


def test_what_was_learned_is_handed_over_not_copied():
    model = network(qk_norm=True, attn_drop=0.1, proj_drop=0.2)
    before, state = dict(model.named_parameters()), model.state_dict()
    replace_attention(model, K=5)
    after = dict(model.named_parameters())
    assert all(after[name] is each for name, each in before.items())
    assert after.keys() - before.keys() == {f"{at}.attn.conv.weight" for at in range(3)}
    assert [(each.attn.attn_drop.p, each.attn.proj_drop.p) for each in model] == [(0.1, 0.2)] * 3
    missing, strange = model.load_state_dict(state, strict=False)
    assert (set(missing), strange) == (after.keys() - before.keys(), [])


def test_only_the_chosen_blocks_are_swapped_and_others_may_follow_with_other_options():
    model = network(4)
    kinds = [type(each.attn) for each in model]
    replace_attention(model, [3, 1], K=5)
    assert [type(each.attn) is kind for each, kind in zip(model, kinds, strict=True)] == [True, False, True, False]
    replace_attention(model, blocks=range(0, 4, 2), K=2, magnitude_type="cosine")
    assert [each.attn.K for each in model] == [2, 5, 2, 5]
    assert model(tokens(12)).isfinite().all()


def test_attention_that_stands_in_two_places_still_does():
    attention, x = plain(), tokens(13)
    model = nn.ModuleDict({"first": Block(attention), "rest": nn.Sequential(attention, attention)})
    replace_attention(model, K=4)
    assert model["first"].attn is model["rest"][0] is model["rest"][1] is not attention
    assert isinstance(model["first"].attn, MultiHeadConvNNAttention)
    assert model["rest"](x).shape == x.shape


def test_precision_mode_and_what_is_frozen_stay():
    model = network(2).to(torch.bfloat16).train()
    model[0].requires_grad_(False).eval()
    model[1].attn.proj.eval()
    model[1].attn.qkv.requires_grad_(False)
    modes = {name: each.training for name, each in model.named_modules()}
    learns = {name: each.requires_grad for name, each in model.named_parameters()}
    replace_attention(model, K=5, magnitude_type="cosine")
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert {name: each.training for name, each in model.named_modules()}.items() >= modes.items()
    learned = {name: each.requires_grad for name, each in model.named_parameters()}
    new = {f"{at}.attn.{part}": at == 1 for at in (0, 1) for part in ("conv.weight", "log_temperature")}
    assert learned == learns | new
    assert (model[0].attn.conv.training, model[1].attn.conv.training) == (False, True)
    assert {each.device.type for each in replace_attention(network().to("meta")).parameters()} == {"meta"}


def test_another_scale_is_kept():
    model, x = network(1), tokens(14)
    model[0].attn.scale = 0.1
    expected = model(x)
    torch.testing.assert_close(replace_attention(model, K=17)(x), expected)


def test_random_samples_differ_from_block_to_block():
    torch.manual_seed(0)
    model = replace_attention(network(5), K=3, sampling_type="random", num_samples=5)
    draws = {tuple(each.attn.sampler(17, torch.device("cpu")).tolist()) for each in model}
    assert len(draws) > 1


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"K": 0}, "K must be .* at least 1, got 0"),
        ({"k": 9}, "no option 'k'; there are K, convolution_type, "),
        ({"attention_dropout": 0.1}, "no option 'attention_dropout'"),
        ({"magnitude_type": "dot"}, "'dot'"),
        ({"K": 9, "sampling_type": "random", "num_samples": 4}, "K=9 is more than the 5 tokens"),
        ({"K": 18, "grid_size": 4}, "K=18 is more than the 17 tokens"),
        ({"num_samples": 16}, "num_samples=16 needs sampling_type random or spatial, got 'all'"),
        ({"sampling_type": "random", "sample_padding": 1}, "sample_padding=1 needs sampling_type spatial"),
        ({"sampling_type": "spatial", "eval_sampling": "all"}, "eval_sampling='all' needs sampling_type random"),
        ({"generator": torch.Generator()}, "generator=.* needs sampling_type random"),
    ],
    ids=told,
)
def test_wrong_options_are_refused_when_the_class_is_made(options, message):
    with pytest.raises(InvalidInput, match=message):
        convnn_attn(**options)
    model = network(1)
    with pytest.raises(InvalidInput, match=message):
        replace_attention(model, **options)
    assert type(model[0].attn) is PlainAttention


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_heads": 5}, "num_heads must divide dim"),
        ({"qk_norm": True}, "norm_layer"),
        ({"scale_norm": True}, "norm_layer"),
        ({"attn_drop": 1.0}, "attn_drop .* got 1.0"),
        *(
            ({name: "no"}, f"{name} must be .* got 'no'")
            for name in ("qkv_bias", "qk_norm", "scale_norm", "proj_bias")
        ),
        ({"proj_drop": -0.1}, "proj_drop .* got -0.1"),
    ],
)
def test_wrong_arguments_are_refused_when_the_layer_is_made(given, message):
    with pytest.raises(InvalidInput, match=message):
        convnn_attn()(12, **{"num_heads": 3, **given})


def test_a_model_without_attention_is_refused():
    covariance = network(1)  # across channels: no scale
    del covariance[0].attn.scale
    for model in (nn.Sequential(nn.Linear(3, 3)), MultiHeadConvNNAttention(12), plain(), covariance):
        with pytest.raises(InvalidInput, match=f"{type(model).__name__} holds no attention like timm's: .*qkv"):
            replace_attention(model)


@pytest.mark.parametrize("blocks", [[3], [0, -1], ["0"]], ids=str)
def test_blocks_that_are_not_there_are_refused(blocks):
    with pytest.raises(InvalidInput, match=f"blocks must be among 0 to 2, got {blocks[-1]!r}"):
        replace_attention(network(), blocks)


class WithBias(PlainAttention):
    def __init__(self):
        super().__init__()
        self.relative_position_bias = nn.Parameter(torch.zeros(3, 17, 17))


class WithTable(PlainAttention):
    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.zeros(17))


class Rotary(PlainAttention):
    def forward(self, x, rope=None, attn_mask=None):
        return super().forward(x, attn_mask)


class Wider(PlainAttention):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(12, 72), nn.Linear(24, 12)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WithBias, r"1\.attn \(WithBias\): it also has relative_position_bias"),
        (WithTable, r"\(WithTable\): it also has places"),
        (Rotary, r"\(Rotary\): its forward also takes rope"),
        (Wider, r"\(Wider\): qkv gives 72 channels, proj takes 24 and gives 12, where dim is 12"),
        (partial(convnn_attn(4), 12, 3), r"\(ConvNNAttn\): it also has conv"),
        (partial(PlainAttention, num_heads=5), "num_heads must divide dim"),
    ],
)
def test_attention_that_does_more_is_refused_and_the_model_stays_as_it_was(kind, message):
    model = nn.Sequential(Block(plain()), Block(kind()))
    with pytest.raises(InvalidInput, match=message):
        replace_attention(model, K=4)
    assert type(model[0].attn) is PlainAttention
    replace_attention(model, [0], K=4)
    assert model[0].attn.K == 4


# --- timm itself ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timm():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import timm
    except Exception as problem:
        pytest.skip(f"timm is optional and cannot be imported here: {problem}")
    return timm


def vit(timm, name="vit_tiny_patch16_224", seed=0, **options):
    torch.manual_seed(seed)
    options = {"img_size": 32, "patch_size": 8, "num_classes": 10, "depth": 3, **options}
    return timm.create_model(name, **options).eval()


def images(seed):
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "scale_attn_norm": True}, {"qkv_bias": False}], ids=str)
def test_timm_makes_models_of_the_class(timm, options):
    model, usual = vit(timm, attn_layer=convnn_attn(K=9), **options), vit(timm, **options)
    assert all(isinstance(each.attn, MultiHeadConvNNAttention) and each.attn.K == 9 for each in model.blocks)
    assert all((each.attn.conv.weight == 1).all() for each in model.blocks)
    assert not torch.allclose(model(images(0)), usual(images(0)), atol=1e-5)
    model.train()(images(0)).sum().backward()
    assert all(each.grad.isfinite().all() for each in model.parameters())


def test_timm_starts_weights_anew_with_rank_weights_of_1(timm):
    model = vit(timm, attn_layer=convnn_attn(K=9))
    for each in model.parameters():
        nn.init.normal_(each)
    for mode in ("", "jax", "moco", "reset"):
        model.init_weights(mode)
        assert all((each.attn.conv.weight == 1).all() for each in model.blocks)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"qk_norm": True, "scale_attn_norm": True, "reg_tokens": 4}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False, "init_values": 0.5}),
        ("deit_tiny_distilled_patch16_224", {}),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_timm_model_computes_what_it_did_once_k_covers_every_token(timm, name, options):
    model = vit(timm, name, **options)
    expected, state = model(images(1)), model.state_dict()
    replace_attention(model, K=21)
    torch.testing.assert_close(model(images(1)), expected, rtol=0, atol=1e-5)
    other = replace_attention(vit(timm, name, seed=1, **options), K=21)
    assert not torch.allclose(other(images(1)), expected, atol=1e-3)
    missing, strange = other.load_state_dict(state, strict=False)
    assert (missing, strange) == ([f"blocks.{at}.attn.conv.weight" for at in range(3)], [])
    torch.testing.assert_close(other(images(1)), expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_swapped_timm_model_takes_masks(timm):
    model, mask = vit(timm), torch.ones(17, 17, dtype=torch.bool).tril()
    expected = model.forward_features(images(2), attn_mask=mask)
    replace_attention(model, K=17)
    torch.testing.assert_close(model.forward_features(images(2), attn_mask=mask), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.forward_features(images(2), is_causal=True), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit_srelpos_small_patch16_224", {"img_size": 32}, "RelPosAttention.*shared_rel_pos"),
        (
            "eva02_tiny_patch14_224",
            {"img_size": 28, "depth": 1, "qkv_fused": True},
            "EvaAttention.*it also has q_bias",
        ),
        ("swin_tiny_patch4_window7_224", {}, "WindowAttention.*relative_position_bias_table"),
        ("davit_tiny", {}, "no attention like timm's"),
        ("resnet10t", {}, "no attention like timm's"),
    ],
    ids=str,
)
def test_timm_models_with_other_attention_are_refused(timm, name, options, message):
    with pytest.raises(InvalidInput, match=message):
        replace_attention(timm.create_model(name, **options), K=9)

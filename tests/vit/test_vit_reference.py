"""Weights of the reference in our layers: every recorded output, gradient and choice is reproduced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.vit import create_layer, from_reference

GOLDEN = Path(__file__).parents[1] / "golden" / "convnn"
FILES = sorted(GOLDEN.glob("*.npz"))

pytestmark = pytest.mark.usefixtures("one_thread")


def recorded(path, dtype=torch.float32):
    """A recording: its configuration, its arrays, and our module with its weights."""
    with np.load(path) as arrays:
        data = {name: arrays[name] for name in arrays.files}
    config = json.loads(str(data.pop("config_json")))
    state = {
        name.removeprefix("param/"): torch.from_numpy(value).to(dtype)
        for name, value in data.items()
        if name.startswith("param/")
    }
    module = from_reference(config["layer"], config["kwargs"], state).eval()
    return config, data, module


def input_of(data, dtype=torch.float32):
    return torch.from_numpy(data["input"]).to(dtype)


def theirs(name, config):
    """The reference's name of one of our parameters: in its ConvNN layers queries and keys are exchanged."""
    convnn = "convnn." in name or config["layer"] == "MultiHeadConvNNAttention"
    if not convnn:
        return name
    swap = {"W_q": "W_k", "W_k": "W_q"}
    return ".".join(swap.get(part, part) for part in name.split("."))


def test_all_kinds_of_recordings_are_there():
    kinds = {path.stem.split("_")[0] for path in FILES}
    assert kinds == {"attn", "branchattn", "convnn", "kvt", "natten1d", "vit"}
    assert len(FILES) == 39


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reproduces_the_recorded_output(path):
    _, data, module = recorded(path)
    with torch.no_grad():
        np.testing.assert_allclose(module(input_of(data)), data["output"], rtol=0, atol=2e-5)
    if "output_f64" in data:
        _, data, module = recorded(path, torch.float64)
        with torch.no_grad():
            output = module(input_of(data, torch.float64))
        assert output.dtype == torch.float64
        np.testing.assert_allclose(output, data["output_f64"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reproduces_the_recorded_gradients(path):
    config, data, module = recorded(path)
    if not config.get("has_grad"):
        assert not any(name.startswith("grad/") for name in data)
        return
    x = input_of(data).requires_grad_()
    (module(x) * torch.from_numpy(data["cotangent"])).sum().backward()
    np.testing.assert_allclose(x.grad, data["grad/input"], rtol=1e-4, atol=1e-4)
    ours = {theirs(name, config): each for name, each in module.named_parameters() if "temperature" not in name}
    expected = {name.removeprefix("grad/param/"): value for name, value in data.items() if "grad/param/" in name}
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name].grad, value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("path", [p for p in FILES if p.stem[:3] in ("con", "kvt")], ids=lambda path: path.stem)
def test_keeps_the_recorded_neighbors(path):
    _, data, module = recorded(path)
    with torch.no_grad():
        _, kept = module(input_of(data), return_indices=True)
    np.testing.assert_array_equal(kept, data["mid/topk_idx"].reshape(kept.shape))


@pytest.mark.parametrize("path", [p for p in FILES if p.stem[:3] == "vit"], ids=lambda path: path.stem)
def test_reproduces_every_step_of_a_vit(path):
    _, data, module = recorded(path)
    seen = {}
    for name, part in module.named_modules():
        part.register_forward_hook(lambda part, given, out, name=name: seen.update({name: out}))
    with torch.no_grad():
        module(input_of(data))
    steps = [name.removeprefix("mid/") for name in data if name.startswith("mid/")]
    assert "transformer_encoder.0.attention" in steps
    for step in steps:
        np.testing.assert_allclose(seen[step], data[f"mid/{step}"], rtol=0, atol=2e-5, err_msg=step)


CONVNN = {"d_hidden": 24, "num_heads": 1, "attention_dropout": 0.0, "K": 4}
VIT = {
    "img_size": [3, 32, 32],
    "patch_size": 8,
    "num_layers": 1,
    "num_heads": 1,
    "d_hidden": 24,
    "d_mlp": 48,
    "num_classes": 10,
    "K": 4,
}
REFUSED = [
    ("MultiHeadConvNNAttention", {**CONVNN, "num_heads": 3}, "several heads, got 3"),
    ("MultiHeadConvNNAttention", {**CONVNN, "sampling_type": "random", "num_samples": 8}, "'random'"),
    ("MultiHeadConvNNAttention", {**CONVNN, "sampling_type": "spatial", "num_samples": 8}, "'spatial'"),
    ("MultiHeadConvNNAttention", {**CONVNN, "similarity_type": "Col"}, "'similarity_type'"),
    ("MultiHeadBranchingConv", {**CONVNN, "kernel_size": 3, "branch_ratio": 0.5}, "Conv1d branch"),
    ("MultiHeadBranchingConv", {**CONVNN, "kernel_size": 3, "branch_ratio": 0.0}, "Conv1d branch"),
    ("MultiHeadConv1dAttention", {"d_hidden": 24, "num_heads": 1, "kernel_size": 3}, "Conv1d branch"),
    ("MultiHeadBranchingAttention", {**CONVNN, "num_heads": 2, "branch_ratio": 0.5}, "several heads, got 2"),
    ("MultiHeadBranchingAttention", {**CONVNN, "branch_ratio": 1.0}, "branch_ratio=1.0"),
    ("natten.NeighborhoodAttention1D", {"embed_dim": 24, "num_heads": 3, "kernel_size": 3, "stride": 2}, "stride"),
    ("MultiHeadAttention", {"num_heads": 3}, "its width"),
    ("MultiHeadMystery", CONVNN, "'MultiHeadMystery'"),
    ("ViT", {**VIT, "layer": "ConvNNAttention", "num_heads": 3}, "several heads, got 3"),
    ("ViT", {**VIT, "layer": "ConvNNAttention", "sampling_type": "random", "num_samples": 8}, "'random'"),
    ("ViT", {**VIT, "layer": "BranchConv"}, "Conv1d branch"),
    ("ViT", {**VIT, "layer": "LocalAttention"}, "windows of 128 do not divide 17 tokens"),
    ("ViT", {**VIT, "layer": "Mystery"}, "'Mystery'"),
    ("ViT", {"layer": "Attention"}, "img_size"),
]


@pytest.mark.parametrize(("layer", "kwargs", "reason"), REFUSED)
def test_refuses_with_a_reason_what_was_defective(layer, kwargs, reason):
    with pytest.raises(InvalidInput, match=reason):
        from_reference(layer, kwargs, {})


def test_weights_that_do_not_fit_are_refused():
    kwargs = {"d_hidden": 24, "num_heads": 3, "attention_dropout": 0.0}
    state = {f"W_{name}.weight": torch.zeros(24, 24) for name in "qkv"}
    with pytest.raises(InvalidInput, match=r"W_o\.weight"):
        from_reference("MultiHeadAttention", kwargs, state)


ONE_AXIS = {"kernel_size": 5, "stride": 1, "dilation": 2, "is_causal": True}


def test_flags_of_the_reference_may_be_numbers():
    made = create_layer("KvtAttention", dim=12, num_heads=3, K=2, qkv_bias=True)
    kwargs = {"dim": 12, "num_heads": 3, "topk": 2, "qkv_bias": 1}
    ours = from_reference("MultiHeadKvtAttention", kwargs, made.state_dict())
    assert ours.qkv.bias is not None


@pytest.mark.parametrize("form", [list, tuple])
def test_a_number_for_each_of_one_axis_is_that_number(form):
    draw = torch.Generator().manual_seed(0)
    shapes = {"qkv.weight": (72, 24), "proj.weight": (24, 24), "proj.bias": (24,)}
    state = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    plain = {"embed_dim": 24, "num_heads": 3, **ONE_AXIS}
    lists = {**plain, **{name: form([value]) for name, value in ONE_AXIS.items()}}
    one, other = (from_reference("natten.NeighborhoodAttention1D", each, state) for each in (plain, lists))
    x = torch.randn(2, 17, 24, generator=draw)
    assert torch.equal(one(x), other(x))
    with pytest.raises(InvalidInput, match=r"stride=2"):
        from_reference("natten.NeighborhoodAttention1D", {**lists, "stride": form([2])}, state)


@pytest.mark.parametrize("bias", [False, True])
def test_a_scale_below_0_keeps_the_least_similar_as_in_the_reference(bias):
    draw = torch.Generator().manual_seed(1)
    shapes = {"qkv.weight": (36, 12), "proj.weight": (12, 12)} | ({"qkv.bias": (36,)} if bias else {})
    state = {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}
    kwargs = {"dim": 12, "num_heads": 2, "topk": 4, "qk_scale": -0.3, "qkv_bias": bias}
    module = from_reference("MultiHeadKvtAttention", kwargs, state).eval()
    x = torch.randn(2, 9, 12, generator=draw, dtype=torch.float64)
    rows = x @ state["qkv.weight"].T + state.get("qkv.bias", 0)
    q, k, v = (each.view(2, 9, 2, 6).transpose(1, 2) for each in rows.chunk(3, dim=-1))
    scores = q @ k.transpose(-2, -1) * -0.3
    least = scores.topk(4).values[..., -1:]
    weights = scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)
    expected = (weights @ v).transpose(1, 2).reshape(2, 9, 12) @ state["proj.weight"].T
    torch.testing.assert_close(module(x), expected)


def test_arrays_that_nobody_may_write_to_give_no_warning():
    weight = np.eye(12, dtype=np.float32)
    weight.flags.writeable = False
    state = {f"W_{name}.weight": weight for name in "qkvo"}
    kwargs = {"d_hidden": 12, "num_heads": 3, "attention_dropout": 0.0}
    module = from_reference("MultiHeadAttention", kwargs, state)  # warnings are errors
    with torch.no_grad():
        module.W_q.weight.zero_()
    assert np.array_equal(weight, np.eye(12))


# --- local and sparse attention: no recordings, so the reference's description again, token by token -------------


def local_state(seed, dim, inner, heads, head_dim):
    draw = torch.Generator().manual_seed(seed)
    shapes = {
        "to_qkv.weight": (3 * inner, dim),
        "to_out.weight": (dim, inner),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
        "q_scale": (head_dim,),
        "k_scale": (head_dim,),
        "to_v_gate.0.weight": (heads, dim),
        "to_v_gate.0.bias": (heads,),
    }
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}


def rotated(vector, position, power):
    """One vector turned by rotary positions, pair by pair, and scaled as xpos does."""
    half = len(vector) // 2
    out = torch.zeros_like(vector)
    for pair in range(half):
        angle = position * 10000.0 ** (-2 * pair / (2 * half))
        cos, sin = np.cos(angle), np.sin(angle)
        out[pair] = vector[pair] * cos - vector[pair + half] * sin
        out[pair + half] = vector[pair + half] * cos + vector[pair] * sin
        if power is not None:
            length = ((2 * pair + 0.4 * 2 * half) / (1.4 * 2 * half)) ** power
            out[pair], out[pair + half] = out[pair] * length, out[pair + half] * length
    return out


def local_by_token(x, state, heads, head_dim, window, causal, qk_rmsnorm, use_xpos, exact):
    """Windows that look around, for tokens that they divide, with the table of positions of the reference."""
    if "norm.weight" in state:
        x = torch.nn.functional.layer_norm(x, x.shape[-1:], state["norm.weight"], state["norm.bias"])
    q, k, v = (x @ state["to_qkv.weight"].T).chunk(3, dim=-1)
    out = torch.zeros(*x.shape[:2], heads * head_dim, dtype=x.dtype)
    around = 2 if causal else 3
    for b in range(len(x)):
        for h in range(heads):
            part = slice(h * head_dim, (h + 1) * head_dim)
            for i in range(x.shape[1]):
                scores, seen = [], []
                for place in range(around * window):
                    j = (i // window - 1) * window + place
                    far = exact and abs(i - j) > window
                    if not 0 <= j < x.shape[1] or far or (causal and j > i):
                        continue
                    own, other = q[b, i, part], k[b, j, part]
                    if qk_rmsnorm:
                        own, other = own / own.norm() * state["q_scale"], other / other.norm() * state["k_scale"]
                    row = (around - 1) * window + i % window
                    middle, base = around * window // 2, window // 2
                    own = rotated(own, row, (row - middle) / base if use_xpos else None)
                    other = rotated(other, place, -(place - middle) / base if use_xpos else None)
                    scores.append(own @ other * (8.0 if qk_rmsnorm else head_dim**-0.5))
                    seen.append(j)
                weights = torch.stack(scores).softmax(dim=0)
                out[b, i, part] = sum(w * v[b, j, part] for w, j in zip(weights, seen, strict=True))
            if "to_v_gate.0.weight" in state:
                gate = x[b] @ state["to_v_gate.0.weight"][h] + state["to_v_gate.0.bias"][h]
                out[b, :, part] *= gate.sigmoid()[:, None]
    return out @ state["to_out.weight"].T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"qk_rmsnorm": True},
        {"use_xpos": True},
        {"prenorm": True, "gate_values_per_head": True},
        {"exact_windowsize": False, "qk_scale": 3},
    ],
    ids=lambda more: "+".join(more) or "plain",
)
def test_local_attention_of_whole_windows_is_that_of_the_reference(causal, more):
    kwargs = {"dim": 6, "window_size": 4, "dim_head": 4, "heads": 2, "dropout": 0.0, "causal": causal, **more}
    state = local_state(3, 6, 8, 2, 4)
    wanted = {"to_qkv", "to_out"} | ({"norm"} if "prenorm" in more else set())
    wanted |= ({"q_scale", "k_scale"} if "qk_rmsnorm" in more else set()) | (
        {"to_v_gate"} if "gate_values_per_head" in more else set()
    )
    state = {name: value for name, value in state.items() if name.split(".")[0] in wanted}
    frequencies = {"attn_fn.rel_pos.inv_freq": torch.tensor([1.0, 0.01])}
    module = from_reference("MultiHeadLocalAttention", kwargs, state | frequencies).eval().double()
    x = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = local_by_token(
        x, state, 2, 4, 4, causal, "qk_rmsnorm" in more, "use_xpos" in more, more.get("exact_windowsize", True)
    )
    module.load_state_dict(state)
    torch.testing.assert_close(module(x), expected)
    with pytest.raises(InvalidInput, match="windows of 4 do not divide"):
        module(x[:, :11])


@pytest.mark.parametrize(("mode", "context"), [("all", 5), ("local", 5), ("local", 4), ("strided", 3)])
def test_sparse_attention_is_that_of_the_reference(mode, context):
    draw = torch.Generator().manual_seed(5)
    names = [f"{name}_proj.weight" for name in ("q", "k", "v", "out")]
    state = {name: torch.randn(6, 6, generator=draw, dtype=torch.float64) for name in names}
    kwargs = {
        "d_hidden": 6,
        "num_heads": 2,
        "attention_dropout": 0.0,
        "attn_mode": mode,
        "local_attn_ctx": context,
    }
    module = from_reference("MultiHeadSparseAttention", kwargs, state).eval()
    x = torch.randn(2, 11, 6, generator=draw, dtype=torch.float64)
    gap = (torch.arange(11)[:, None] - torch.arange(11)).abs()
    seen = {"all": gap >= 0, "local": gap <= context // 2, "strided": gap % context == 0}[mode]
    q, k, v = ((x @ state[name].T).view(2, 11, 2, 3).transpose(1, 2) for name in names[:3])
    weights = (q @ k.transpose(-2, -1) / 3**0.5).masked_fill(~seen, -1e9).softmax(dim=-1)
    expected = (weights @ v).transpose(1, 2).reshape(2, 11, 6) @ state[names[3]].T
    torch.testing.assert_close(module(x), expected)

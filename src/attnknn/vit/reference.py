"""Weights of the reference, mingikang31/Convolutional-Nearest-Neighbor-Attention, in our layers.

Its names of parameters are ours. What differs is set right on the way: in its ConvNN layers the queries and keys
have each other's names. Where its results were defective there is nothing to be faithful to, and we say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from attnknn.errors import InvalidInput
from attnknn.vit.factory import create_layer
from attnknn.vit.local import MultiHeadLocalAttention
from attnknn.vit.model import ViT

_IGNORED = frozenset({"seq_length", "device"})  # they changed nothing, or only where results were defective

_CONVNN = ["attention_dropout", "K", "sampling_type", "num_samples", "sample_padding", "magnitude_type"]
_CONVNN += ["coordinate_encoding", "convolution_type", "softmax_topk_val"]
_LOCAL = ["window_size", "dim_head", "causal", "prenorm", "qk_rmsnorm", "qk_scale", "use_xpos", "xpos_scale_base"]
_LOCAL += ["exact_windowsize", "gate_values_per_head"]
_PROJECTED = ["qkv_bias", "qk_scale", "proj_drop"]
_FLAGS = {"softmax_topk_val", "qkv_bias", "is_causal", "causal", "prenorm", "qk_rmsnorm", "use_xpos"}
_FLAGS |= {"exact_windowsize", "gate_values_per_head"}


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


_NAMES: Final[dict[str, dict[str, str]]] = {
    "Attention": _same("attention_dropout"),
    "ConvNNAttention": _same(*_CONVNN),
    "KvtAttention": {"attn_drop": "attention_dropout", "topk": "K", **_same(*_PROJECTED)},
    "LocalAttention": {"dropout": "attention_dropout", **_same(*_LOCAL)},
    "SparseAttention": {
        "attention_dropout": "attention_dropout",
        "attn_mode": "sparse_mode",
        "local_attn_ctx": "sparse_context_window",
    },
    "NeighborhoodAttention": {"kernel_size": "K", **_same("stride", "dilation", "is_causal", *_PROJECTED)},
    "BranchAttention": _same(*_CONVNN, "branch_ratio"),
    "BranchConv": _same(*_CONVNN, "branch_ratio", "kernel_size"),
}
"""Names of our options by those of the reference, layer by layer."""

_CLASSES: Final[dict[str, str]] = {
    "MultiHeadAttention": "Attention",
    "MultiHeadConvNNAttention": "ConvNNAttention",
    "MultiHeadKvtAttention": "KvtAttention",
    "MultiHeadLocalAttention": "LocalAttention",
    "MultiHeadSparseAttention": "SparseAttention",
    "NeighborhoodAttention1D": "NeighborhoodAttention",
    "MultiHeadBranchingConv": "BranchConv",
    "MultiHeadBranchingAttention": "BranchAttention",
}

_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "KvtAttention": {"num_heads": 8, "topk": 100},
    "LocalAttention": {"heads": 8, "dim_head": 64},
}


def from_reference(layer: str, kwargs: Mapping[str, Any], state_dict: Mapping[str, Any]) -> nn.Module:
    """Our module with the weights of a layer or of a whole ViT of the reference.

    Args:
        layer: Its class, such as ``MultiHeadConvNNAttention``, ``natten.NeighborhoodAttention1D`` or ``ViT``.
        kwargs: The arguments it was made with.
        state_dict: Its parameters, tensors or arrays, by its names.

    Returns:
        The module, in the precision of the parameters, which computes what the reference computed.

    Raises:
        InvalidInput: Where what the reference computed was defective, or the weights do not fit.
    """
    given = {name.removeprefix("_orig_mod."): _tensor(value) for name, value in state_dict.items()}
    if layer == "ViT":
        module, given = _vit(dict(kwargs), given)
    else:
        module, given = _layer(layer.rpartition(".")[2], kwargs, given)
    kinds = {value.dtype for value in given.values() if value.is_floating_point()}
    if len(kinds) == 1:
        module.to(kinds.pop())
    own = {name: value for name, value in module.state_dict().items() if name.endswith("log_temperature")}
    try:
        module.load_state_dict({**own, **given})
    except RuntimeError as error:
        raise InvalidInput(f"these weights are not those of a {layer} with {dict(kwargs)}: {error}") from error
    return module


def _tensor(value: Any) -> Tensor:
    """A tensor; of an array a copy: torch warns of one that it could write to although nobody may."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _layer(layer: str, kwargs: Mapping[str, Any], given: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    if layer == "MultiHeadConv1dAttention":
        raise InvalidInput(_CONV1D)
    if layer not in _CLASSES:
        raise InvalidInput(f"layer must be ViT or one of {', '.join(_CLASSES)}, got {layer!r}")
    name = _CLASSES[layer]
    wanted = {**_DEFAULTS.get(name, {}), **kwargs}
    dim = next((wanted.pop(each) for each in ("d_hidden", "dim", "embed_dim") if each in wanted), None)
    heads = next((wanted.pop(each) for each in ("num_heads", "heads") if each in kwargs), None)
    heads = wanted.pop("num_heads", wanted.pop("heads", None)) if heads is None else heads
    wanted.pop("heads", None)
    if dim is None or heads is None:
        raise InvalidInput(f"{layer} needs its width and its number of heads, got {dict(kwargs)}")
    options = _options(name, wanted)
    _refuse_defects(name, heads, options)
    if name in ("KvtAttention", "NeighborhoodAttention") and options.get("qk_scale", 1) < 0:
        options["qk_scale"], given = -options["qk_scale"], _turned(given, dim)
    module = create_layer(name, dim, heads, **options)
    if isinstance(module, MultiHeadLocalAttention):
        module.whole_windows_only = True
    return module, _TRANSLATED.get(name, dict)(given)


def _options(name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Our options from those of the reference; what it leaves to its default, None, is left to ours."""
    names = _NAMES[name]
    if strange := sorted(wanted.keys() - names.keys() - _IGNORED):
        raise InvalidInput(f"the reference's {name} has no argument {strange[0]!r}; it has {', '.join(names)}")
    options = {names[each]: value for each, value in wanted.items() if each in names and value is not None}
    if name == "NeighborhoodAttention":  # natten also takes a number for each of its one axis
        options = {each: value[0] if _single(value) else value for each, value in options.items()}
    options = {each: bool(value) if each in _FLAGS else value for each, value in options.items()}  # 1 is on there
    if (stride := options.pop("stride", 1)) != 1:  # then queries would share windows
        raise InvalidInput(f"our neighborhoods have stride 1, got {stride=}")
    if options.get("coordinate_encoding"):
        options["coordinate_encoding"] = "sequence"
    if not options.get("qk_scale", True):  # 0 means the default there
        del options["qk_scale"]
    return options


def _single(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 1


def _turned(given: Mapping[str, Tensor], dim: int) -> dict[str, Tensor]:
    """Queries with the other sign: a scale below 0 times a query is one above 0 times its opposite."""
    turned = dict(given)
    for name in turned.keys() & {"qkv.weight", "qkv.bias"}:
        turned[name] = torch.cat([-given[name][:dim], given[name][dim:]])
    return turned


_CONV1D = (
    "the reference mixes up tokens and channels in its Conv1d branch, with any number of heads: "
    "its weights were trained with that defect and mean nothing in a correct layer"
)


def _refuse_defects(name: str, heads: int, options: Mapping[str, Any]) -> None:
    if name not in ("ConvNNAttention", "BranchConv", "BranchAttention"):
        return
    ratio = options.get("branch_ratio", 0.5)
    if name == "BranchConv" and ratio != 1:
        raise InvalidInput(_CONV1D)
    if name == "BranchAttention" and ratio in (0, 1):
        raise InvalidInput(f"the reference's branching attention does not run with branch_ratio={ratio}")
    if heads != 1:
        raise InvalidInput(
            f"the reference mixes up tokens and channels of ConvNN attention with several heads, got {heads}: "
            "its weights were trained with that defect; only one head carries over"
        )
    if options.get("sampling_type", "all") != "all":
        raise InvalidInput(
            f"the reference does not mask a token's own copy among samples, got sampling_type="
            f"{options['sampling_type']!r}: its sampled results are defective; only 'all' carries over"
        )


def _exchanged(given: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The reference scores a token by its ``W_k`` against the ``W_q`` of candidates; ours by their roles."""
    there = {f"{prefix}W_q.weight": f"{prefix}W_k.weight", f"{prefix}W_k.weight": f"{prefix}W_q.weight"}
    return {there.get(name, name): value for name, value in given.items()}


_TRANSLATED: Final[dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]]] = {
    "ConvNNAttention": _exchanged,
    "BranchAttention": lambda given: _exchanged(given, "convnn."),
    # With one branch only, the reference has a linear map that it never uses.
    "BranchConv": lambda given: _exchanged(
        {name: value for name, value in given.items() if name.startswith("convnn.")}, "convnn."
    ),
    # The frequencies of rotary positions are constants.
    "LocalAttention": lambda given: {
        name: value for name, value in given.items() if not name.startswith("attn_fn.")
    },
}


def _vit(kwargs: dict[str, Any], given: dict[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
    try:
        channels, height, width = kwargs["img_size"]
        name, heads = kwargs["layer"], kwargs["num_heads"]
        sizes = {each: kwargs[each] for each in ("patch_size", "num_layers", "d_hidden", "d_mlp", "num_classes")}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            "a ViT of the reference has img_size (channels, height, width), layer, num_heads, patch_size, "
            f"num_layers, d_hidden, d_mlp and num_classes, got {kwargs}"
        ) from error
    if name not in _NAMES:
        raise InvalidInput(f"layer must be one of {', '.join(_NAMES)}, got {name!r}")
    rates = {each: kwargs.get(each, 0.0) for each in ("dropout", "attention_dropout")}
    options = _vit_options(name, kwargs)
    _refuse_defects(name, heads, options)
    module = ViT(
        name, img_size=(height, width), in_channels=channels, num_heads=heads, **{**sizes, **rates, **options}
    )
    _refuse_windows(module)
    return module, _translated_blocks(name, given)


def _vit_options(name: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the reference's ViT passes on to its layers."""
    shared = {each: kwargs[each] for each in kwargs if each in _NAMES[name].values()}
    if name in ("ConvNNAttention", "BranchConv", "BranchAttention"):
        return _options(name, shared)
    if name == "LocalAttention":
        return {"window_size": 128, "dim_head": 64}
    if name in ("KvtAttention", "NeighborhoodAttention"):
        return {"K": kwargs["K"]} if "K" in kwargs else {}
    return {each: kwargs[each] for each in ("sparse_mode", "sparse_context_window") if each in kwargs}


def _translated_blocks(name: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of a ViT, that of every layer translated."""
    whole: dict[str, Tensor] = {}
    layers: dict[str, dict[str, Tensor]] = {}
    for each, value in given.items():
        before, found, after = each.partition(".attention.")
        if found and before.startswith("transformer_encoder."):
            layers.setdefault(before + found, {})[after] = value
        else:
            whole[each] = value
    for before, state in layers.items():
        whole |= {before + each: value for each, value in _TRANSLATED.get(name, dict)(state).items()}
    return whole


def _refuse_windows(module: ViT) -> None:
    tokens = module.grid_size[0] * module.grid_size[1] + 1
    for block in module.transformer_encoder:
        layer = block.attention
        if isinstance(layer, MultiHeadLocalAttention) and tokens % layer.window_size:
            raise InvalidInput(
                f"the reference looks at padding where windows of {layer.window_size} do not divide "
                f"{tokens} tokens: its weights were trained with that defect"
            )

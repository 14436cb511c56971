"""ConvNN attention for the Vision Transformers of timm: a class for its ``attn_layer``, and a swap in a model.

Nothing here imports timm. Its attention is known by its parts, and those of ours have the same names, so that
weights go from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from attnknn.errors import InvalidInput
from attnknn.vit.convnn import MultiHeadConvNNAttention
from attnknn.vit.factory import layer_options
from attnknn.vit.heads import checked_flag, checked_rate, checked_tokens, merge_heads, split_heads

_PARTS: Final = ("qkv", "q_norm", "k_norm", "attn_drop", "norm", "proj", "proj_drop")

_OPTIONS: Final = layer_options("ConvNNAttention") - {"attention_dropout"}  # timm has its own, attn_drop

_SAMPLING: Final = {
    "num_samples": ("random", "spatial"),
    "sample_padding": ("spatial",),
    "eval_sampling": ("random",),
    "generator": ("random",),
}
"""Options that change nothing unless tokens are sampled in one of these ways."""

Model = TypeVar("Model", bound=nn.Module)


class DropInConvNNAttention(MultiHeadConvNNAttention):
    """ConvNN attention with the arguments, the calls and the names of parameters that timm's attention has.

    Args:
        dim: Width of the tokens.
        num_heads: Heads; must divide ``dim``. They share the weights of the convolution.
        qkv_bias: Whether queries, keys and values have a bias.
        qk_norm: Whether queries and keys are normalized in every head.
        scale_norm: Whether what the heads give is normalized before the output projection.
        proj_bias: Whether the output projection has a bias.
        attn_drop: Dropout on the weights of the kept tokens.
        proj_drop: Dropout on the output.
        norm_layer: What makes a norm from a width; needed for ``qk_norm`` and ``scale_norm``.
        device: Of the parameters.
        dtype: Of the parameters.
        options: Those of :func:`convnn_attn`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[[int], nn.Module] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, **options)
        del self.W_q, self.W_k, self.W_v, self.W_o, self.dropout  # timm's parts take their place
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=checked_flag(qkv_bias, "qkv_bias"))
        normed = checked_flag(qk_norm, "qk_norm")
        self.q_norm, self.k_norm = (_norm(norm_layer, normed, self.head_dim) for _ in range(2))
        self.attn_drop = nn.Dropout(checked_rate(attn_drop, "attn_drop"))
        self.norm = _norm(norm_layer, checked_flag(scale_norm, "scale_norm"), dim)
        self.proj = nn.Linear(dim, dim, bias=checked_flag(proj_bias, "proj_bias"))
        self.proj_drop = nn.Dropout(checked_rate(proj_drop, "proj_drop"))
        self.to(device=device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        key_padding_mask: Tensor | None = None,
        return_indices: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """(batch, tokens, dim) to the same; masks as in :func:`attnknn.vit.knn_attention`.

        With ``return_indices`` also the kept tokens (batch, heads, tokens, K), by rank, -1 where it sees fewer;
        of fewer tokens than K, as many columns as there are to keep.
        """
        checked_tokens(x, self.dim)
        q, k, v = (split_heads(each, self.num_heads) for each in self.qkv(x).chunk(3, dim=-1))
        mixed, indices = self._mixed(
            *(self.q_norm(q), self.k_norm(k), v),
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            dropout_p=self.attn_drop.p if self.training else 0.0,
        )
        out: Tensor = self.proj_drop(self.proj(self.norm(merge_heads(mixed))))
        return (out, indices) if return_indices else out

    def reset_parameters(self) -> None:
        """Rank weights and temperature of 1, as when it was made; timm calls this after it has reset the parts."""
        if self.convolution_type == "depthwise":
            nn.init.ones_(self.conv.get_parameter("weight"))
        if self.log_temperature is not None:
            nn.init.zeros_(self.log_temperature)


def convnn_attn(K: int = 9, **options: Any) -> type[DropInConvNNAttention]:
    """A class for the ``attn_layer`` of timm's Vision Transformers.

    Args:
        K: Tokens that each token keeps; all, where there are fewer.
        options: Those of :class:`MultiHeadConvNNAttention`, but for ``attention_dropout``: timm gives the rates.

    Raises:
        InvalidInput: No layer can be made of these options, or one of them would change nothing.

    >>> convnn_attn(K=9)(192, num_heads=3, qkv_bias=True)(torch.randn(2, 17, 192)).shape
    torch.Size([2, 17, 192])
    """
    chosen = _checked({"K": K, **options})

    class ConvNNAttn(DropInConvNNAttention):
        __doc__ = DropInConvNNAttention.__doc__

        def __init__(self, dim: int, num_heads: int = 8, **given: Any) -> None:
            super().__init__(dim, num_heads, **chosen, **given)

    return ConvNNAttn


def replace_attention(model: Model, blocks: Iterable[int] | None = None, *, K: int = 9, **options: Any) -> Model:
    """Swap the attention of a timm model for ConvNN attention, in place, keeping what it has learned.

    The projections, norms and rates of dropout are not copied but handed over, as they are; an optimizer that has
    them goes on with them. What is new, the rank weights of 1 among it, follows their device and precision, and
    learns if any of them does. With ``K`` of at least the number of tokens, and no further options, the model
    computes what it did before.

    Args:
        model: Whatever has attention like timm's in it: ``qkv`` and ``proj``, both ``nn.Linear``, a dropout
            ``attn_drop``, ``num_heads`` and ``scale``.
        blocks: Which attentions to swap, counted from 0 in the order of the model; by default all.
        K: Tokens that each token keeps; all, where there are fewer.
        options: Those of :func:`convnn_attn`.

    Returns:
        The model that was given.

    Raises:
        InvalidInput: There is no such attention, or one does more than timm's; the model is then as it was.
    """
    layer = convnn_attn(K, **options)
    found = {name: each for name, each in model.named_modules() if name and _is_attention(each)}
    if not found:
        raise InvalidInput(
            f"{type(model).__name__} holds no attention like timm's: "
            "nn.Linear qkv and proj, nn.Dropout attn_drop, num_heads and scale"
        )
    chosen = [list(found)[at] for at in _checked_blocks(blocks, len(found))]
    for name in chosen:
        if obstacle := _obstacle(found[name]):
            raise InvalidInput(f"cannot replace {name} ({type(found[name]).__name__}): {obstacle}")
    swaps = {found[name]: _swapped(found[name], layer) for name in chosen}
    for path, each in list(model.named_modules(remove_duplicate=False)):  # one may stand in several places
        if each in swaps:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, swaps[each])
    return model


def _swapped(old: Any, layer: type[DropInConvNNAttention]) -> DropInConvNNAttention:
    weight = old.qkv.weight
    new = layer(weight.shape[1], old.num_heads, device=weight.device, dtype=weight.dtype)
    new.requires_grad_(any(each.requires_grad for each in old.parameters())).train(old.training)
    for name in _PARTS:  # last, so that nothing above touches what was there
        setattr(new, name, getattr(old, name, None) or nn.Identity())
    new.scale = float(old.scale)
    return new


def _is_attention(module: nn.Module) -> bool:
    known = {"qkv": nn.Linear, "proj": nn.Linear, "attn_drop": nn.Dropout, "num_heads": int, "scale": float}
    return all(isinstance(getattr(module, name, None), kind) for name, kind in known.items())


def _obstacle(layer: Any) -> str | None:
    """What timm's attention does not have or do, and would be lost."""
    parts = [*layer.named_children(), *layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    if more := [name for name, _ in parts if name not in _PARTS]:
        return f"it also has {', '.join(more)}"
    takes = list(signature(layer.forward).parameters)[1:]
    if more := [name for name in takes if name not in ("attn_mask", "is_causal")]:
        return f"its forward also takes {', '.join(more)}"
    dim = layer.qkv.in_features
    widths = layer.qkv.out_features, layer.proj.in_features, layer.proj.out_features
    if widths != (3 * dim, dim, dim):
        return f"qkv gives {widths[0]} channels, proj takes {widths[1]} and gives {widths[2]}, where dim is {dim}"
    return None


def _checked_blocks(blocks: Iterable[int] | None, count: int) -> list[int]:
    chosen = range(count) if blocks is None else dict.fromkeys(blocks)
    for each in chosen:
        if each not in range(count):
            raise InvalidInput(f"blocks must be among 0 to {count - 1}, got {each!r}")
    return list(chosen)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    if strange := sorted(options.keys() - _OPTIONS):
        raise InvalidInput(f"there is no option {strange[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    MultiHeadConvNNAttention(1, 1, **options)  # refuses what no layer can be made of
    sampling = options.get("sampling_type", "all")
    for name, kinds in _SAMPLING.items():
        default = signature(MultiHeadConvNNAttention).parameters[name].default
        if sampling not in kinds and options.get(name, default) != default:
            raise InvalidInput(
                f"{name}={options[name]!r} needs sampling_type {' or '.join(kinds)}, got {sampling!r}"
            )
    return options


def _norm(make: Callable[[int], nn.Module] | None, wanted: bool, width: int) -> nn.Module:
    if not wanted:
        return nn.Identity()
    if make is None:
        raise InvalidInput("qk_norm and scale_norm need a norm_layer, got None")
    return make(width)

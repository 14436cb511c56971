"""The Vision Transformer, with any layer in any block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from attnknn.errors import InvalidInput
from attnknn.vit.factory import SELECTING, create_layer
from attnknn.vit.heads import Whole, checked_count, checked_flag, checked_rate

Pool = Literal["cls", "mean"]
Positions = Literal["sinusoidal", "learned"]
Block = Callable[[Tensor], Tensor]
"""(batch, tokens, dim) to the same."""


class Size(NamedTuple):
    """The dimensions of a model."""

    num_layers: int
    d_hidden: int
    num_heads: int
    d_mlp: int


SIZES: Final[dict[str, Size]] = {
    "tiny": Size(12, 192, 3, 768),
    "small": Size(12, 384, 6, 1536),
    "base": Size(12, 768, 12, 3072),
}
"""The usual models by name."""


class PatchEmbedding(nn.Module):
    """Images (batch, channels, height, width) to tokens (batch, patches, dim), row by row.

    An image that patches do not divide is continued with zeros at its right and lower edge.
    """

    def __init__(self, dim: int, patch_size: tuple[int, int], in_channels: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.linear_projection = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        """The tokens, normalized."""
        missing = (-images.shape[-1] % self.patch_size[1], -images.shape[-2] % self.patch_size[0])
        if any(missing):
            images = pad(images, (0, missing[0], 0, missing[1]))
        tokens: Tensor = self.norm(self.linear_projection(images).flatten(2).transpose(1, 2))
        return tokens


class PositionalEncoding(nn.Module):
    """Tokens (batch, patches, dim) behind a class token, if there is one, with their positions added."""

    pe: Tensor

    def __init__(self, dim: int, patches: int, positions: Positions, class_token: bool) -> None:
        super().__init__()
        self.cls_tokens = nn.Parameter(torch.randn(1, 1, dim)) if class_token else None
        tokens = patches + class_token
        if positions == "learned":
            self.pe = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, dim), std=0.02))
        else:
            self.register_buffer("pe", sinusoidal(tokens, dim)[None])

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, patches + 1, dim) with a class token."""
        if self.cls_tokens is not None:
            first = self.cls_tokens.to(tokens.dtype).expand(len(tokens), -1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return tokens + self.pe.to(tokens.dtype)


class TransformerEncoder(nn.Module):
    """One block: a layer that mixes tokens and a network for each, both added to what they were given."""

    def __init__(self, dim: int, d_mlp: int, attention: nn.Module, dropout: float) -> None:
        super().__init__()
        self.widths = dim, d_mlp
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(dim, d_mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_mlp, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim) to the same."""
        return self._added(x, self.attention(self.norm1(x)))

    def with_kept(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same, and which tokens (batch, heads, tokens, K) were kept; None where the layer does not select."""
        if not isinstance(self.attention, SELECTING):
            return self(x), None
        mixed, kept = self.attention(self.norm1(x), return_indices=True)
        return self._added(x, mixed), kept

    def _added(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout1(mixed)
        out: Tensor = x + self.dropout2(self.mlp(self.norm2(x)))
        return out


class ViT(nn.Module):
    """Vision Transformer: patches, positions, blocks, a linear classifier.

    Args:
        layer: Name of the layer that mixes tokens (see ``LAYERS``), or one for each block.
        img_size: Height and width of images, or the side of a square.
        patch_size: The same of a patch.
        num_classes: Classes.
        in_channels: Channels of images.
        num_layers: Blocks.
        d_hidden: Width of tokens.
        num_heads: Heads of every layer.
        d_mlp: Width of the networks within blocks.
        dropout: Dropout in blocks.
        attention_dropout: Dropout of the layers that mix tokens.
        pool: What is classified: ``cls``, a class token, or ``mean``, the mean of all patches, without one.
        positions: ``sinusoidal`` or ``learned``.
        final_norm: Whether a layer norm follows the last block.
        options: Options of the layers, as for :func:`create_layer`; one set serves all.

    >>> vit = ViT("ConvNNAttention", img_size=32, patch_size=8, num_layers=2, d_hidden=24, d_mlp=48, K=4)
    >>> vit(torch.randn(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        layer: str | Sequence[str] = "Attention",
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        num_classes: int = 10,
        in_channels: int = 3,
        num_layers: int = 12,
        d_hidden: int = 192,
        num_heads: int = 3,
        d_mlp: int = 768,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        pool: str = "cls",
        positions: str = "sinusoidal",
        final_norm: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        checked_rate(dropout, "dropout")
        d_hidden, d_mlp = checked_count(d_hidden, "d_hidden"), checked_count(d_mlp, "d_mlp")
        self.img_size, self.in_channels = _pair(img_size, "img_size"), checked_count(in_channels, "in_channels")
        self.pool: Pool = _one_of(pool, get_args(Pool), "pool")
        kind: Positions = _one_of(positions, get_args(Positions), "positions")
        patch = _pair(patch_size, "patch_size")
        self.grid_size = math.ceil(self.img_size[0] / patch[0]), math.ceil(self.img_size[1] / patch[1])
        self.layers = layer_names(layer, checked_count(num_layers, "num_layers"))
        options = {"grid_size": self.grid_size, "attention_dropout": attention_dropout, **options}
        self.patch_embedding = PatchEmbedding(d_hidden, patch, self.in_channels)
        patches = self.grid_size[0] * self.grid_size[1]
        self.positional_encoding = PositionalEncoding(d_hidden, patches, kind, pool == "cls")
        self.transformer_encoder = nn.ModuleList(
            TransformerEncoder(d_hidden, d_mlp, create_layer(name, d_hidden, num_heads, **options), dropout)
            for name in self.layers
        )
        self.norm = nn.LayerNorm(d_hidden) if checked_flag(final_norm, "final_norm") else nn.Identity()
        self.classifier = nn.Linear(d_hidden, checked_count(num_classes, "num_classes"))

    def forward(self, images: Tensor, blocks: Iterable[Block] | None = None) -> Tensor:
        """(batch, classes) logits of images (batch, channels, height, width).

        ``blocks`` are taken in place of the model's own: the same ones, compiled, for example.
        """
        tokens = self.features(images, blocks)
        logits: Tensor = self.classifier(tokens[:, 0] if self.pool == "cls" else tokens.mean(dim=1))
        return logits

    def features(self, images: Tensor, blocks: Iterable[Block] | None = None) -> Tensor:
        """(batch, tokens, dim) after the last block; the class token, if there is one, is the first."""
        tokens = self._embedded(images)
        for block in self.transformer_encoder if blocks is None else blocks:
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)
        return out

    @torch.no_grad()
    def kept_tokens(self, images: Tensor) -> list[Tensor | None]:
        """For each block, which tokens every token keeps: (batch, heads, tokens, K), or None where all count.

        Of fewer than K tokens there are as many columns as tokens.
        """
        tokens, kept = self._embedded(images), []
        for block in self.blocks():
            tokens, indices = block.with_kept(tokens)
            kept.append(indices)
        return kept

    def blocks(self) -> Iterator[TransformerEncoder]:
        """From the first to the last."""
        return (each for each in self.transformer_encoder if isinstance(each, TransformerEncoder))

    def _embedded(self, images: Tensor) -> Tensor:
        wanted = (self.in_channels, *self.img_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != wanted:
            raise InvalidInput(
                f"expected images (batch, {', '.join(map(str, wanted))}), got {tuple(images.shape)}"
            )
        tokens: Tensor = self.positional_encoding(self.patch_embedding(images))
        return tokens


def create_vit(
    size: str = "tiny",
    *,
    layer: str | Sequence[str] = "Attention",
    img_size: int | tuple[int, int] = 224,
    patch_size: int | tuple[int, int] = 16,
    num_classes: int = 10,
    in_channels: int = 3,
    **layer_options: Any,
) -> ViT:
    """A ViT of a usual size.

    Args:
        size: ``tiny``, ``small`` or ``base``.
        layer: Name of the layer that mixes tokens, or one for each block.
        img_size: Height and width of images, or the side of a square.
        patch_size: The same of a patch.
        num_classes: Classes.
        in_channels: Channels of images.
        layer_options: Options of the layer, and whatever else :class:`ViT` takes, in place of the size's own.

    >>> sum(each.numel() for each in create_vit("tiny", layer="KvtAttention").parameters())
    5479306
    """
    if size not in SIZES:
        raise InvalidInput(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    return ViT(
        layer,
        img_size=img_size,
        patch_size=patch_size,
        num_classes=num_classes,
        in_channels=in_channels,
        **{**SIZES[size]._asdict(), **layer_options},
    )


def sinusoidal(tokens: int, dim: int) -> Tensor:
    """(tokens, dim) positions: sines in even channels, cosines in odd ones, of ever lower frequencies."""
    place = torch.arange(tokens, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10000.0) / dim))
    waves = torch.stack([(place * rates).sin(), (place * rates).cos()], dim=-1).flatten(1)
    return waves[:, :dim]  # an odd width ends with a sine


def layer_names(layer: str | Sequence[str], count: int) -> tuple[str, ...]:
    """The name of the layer in each of so many blocks."""
    names = (layer,) * count if isinstance(layer, str) else tuple(layer)
    if len(names) != count:
        raise InvalidInput(f"layer must be one name or one for each of {count} blocks, got {len(names)} names")
    return names


def _pair(value: int | Sequence[int], name: str) -> tuple[int, int]:
    sides = (value, value) if isinstance(value, Whole) else tuple(value)
    if len(sides) != 2:
        raise InvalidInput(f"{name} must be a number or (height, width), got {value!r}")
    return checked_count(sides[0], name), checked_count(sides[1], name)


def _one_of(value: str, choices: tuple[Any, ...], name: str) -> Any:
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value

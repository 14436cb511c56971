"""Token attention: layers that choose which tokens to look at, and the Vision Transformer made of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnknn.ops.token_attention import knn_attention
    from attnknn.vit.attention import MultiHeadAttention
    from attnknn.vit.branching import MultiHeadBranchingAttention, MultiHeadBranchingConv, MultiHeadConv1d
    from attnknn.vit.convnn import MultiHeadConvNNAttention
    from attnknn.vit.drop_in import convnn_attn, replace_attention
    from attnknn.vit.factory import LAYERS, create_layer, layer_options
    from attnknn.vit.kvt import MultiHeadKvtAttention
    from attnknn.vit.local import MultiHeadLocalAttention
    from attnknn.vit.model import SIZES, ViT, create_vit
    from attnknn.vit.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
    from attnknn.vit.reference import from_reference
    from attnknn.vit.saved import TrainedViT
    from attnknn.vit.settings import ViTOptions
    from attnknn.vit.sparse import MultiHeadSparseAttention
    from attnknn.vit.training import train_vit

_MODULE = {
    "LAYERS": "attnknn.vit.factory",
    "SIZES": "attnknn.vit.model",
    "MultiHeadAttention": "attnknn.vit.attention",
    "MultiHeadBranchingAttention": "attnknn.vit.branching",
    "MultiHeadBranchingConv": "attnknn.vit.branching",
    "MultiHeadConv1d": "attnknn.vit.branching",
    "MultiHeadConvNNAttention": "attnknn.vit.convnn",
    "MultiHeadKvtAttention": "attnknn.vit.kvt",
    "MultiHeadLocalAttention": "attnknn.vit.local",
    "MultiHeadSparseAttention": "attnknn.vit.sparse",
    "NeighborhoodAttention1D": "attnknn.vit.neighborhood",
    "NeighborhoodAttention2D": "attnknn.vit.neighborhood",
    "TrainedViT": "attnknn.vit.saved",
    "ViT": "attnknn.vit.model",
    "ViTOptions": "attnknn.vit.settings",
    "convnn_attn": "attnknn.vit.drop_in",
    "create_layer": "attnknn.vit.factory",
    "create_vit": "attnknn.vit.model",
    "from_reference": "attnknn.vit.reference",
    "knn_attention": "attnknn.ops.token_attention",
    "layer_options": "attnknn.vit.factory",
    "replace_attention": "attnknn.vit.drop_in",
    "train_vit": "attnknn.vit.training",
}

__all__ = [
    "LAYERS",
    "SIZES",
    "MultiHeadAttention",
    "MultiHeadBranchingAttention",
    "MultiHeadBranchingConv",
    "MultiHeadConv1d",
    "MultiHeadConvNNAttention",
    "MultiHeadKvtAttention",
    "MultiHeadLocalAttention",
    "MultiHeadSparseAttention",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "TrainedViT",
    "ViT",
    "ViTOptions",
    "convnn_attn",
    "create_layer",
    "create_vit",
    "from_reference",
    "knn_attention",
    "layer_options",
    "replace_attention",
    "train_vit",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _MODULE:
        raise AttributeError(f"module 'attnknn.vit' has no attribute {name!r}")
    return getattr(import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

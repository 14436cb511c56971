"""Images as they are, for a network that learns from pixels."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from attnknn.errors import InvalidInput

Images = NDArray[np.uint8]  # (n, height, width, channels)


class Pictures:
    """Keeps bytes as bytes and refuses images of another size than at fit; see :class:`~attnknn.embed.Embedder`.

    >>> Pictures().fit(np.zeros((2, 32, 32, 3), np.uint8)).describe(np.zeros((1, 3072), np.uint8))
    [{'image': '32 x 32'}]
    """

    kind: ClassVar[str] = "image"
    numbers: ClassVar[tuple[int, ...]] = ()
    columns: ClassVar[tuple[int, ...]] = ()

    def __init__(self) -> None:
        self.shape: tuple[int, int, int] = (0, 0, 0)  # height, width, channels

    @property
    def dim(self) -> int:
        """How many bytes an image has."""
        return int(np.prod(self.shape))

    def fit(self, X: Any) -> Self:
        """Note the size of the images; nothing else is learned."""
        height, width, channels = X.shape[1:]
        self.shape = height, width, channels
        return self

    def transform(self, X: Any) -> Any:
        """The very same images, (n, height, width, channels) of bytes."""
        if tuple(X.shape[1:]) != self.shape:
            raise InvalidInput(f"expected images of {_said(self.shape)} as at fit, got {_said(X.shape[1:])}")
        return X

    def images(self, flat: NDArray[Any]) -> Images:
        """(n, dim) bytes as a bank keeps them, as images again."""
        return np.asarray(flat, np.uint8).reshape(len(flat), *self.shape)

    def describe(self, vectors: NDArray[Any]) -> list[dict[str, object]]:
        """The size of each: pixels are shown, not told."""
        return [{"image": f"{self.shape[0]} x {self.shape[1]}"} for _ in range(len(vectors))]

    def state(self) -> dict[str, Any]:
        """The size of the images."""
        return {"kind": self.kind, "shape": list(self.shape)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The embedder that ``state`` was taken from."""
        new = cls()
        try:
            height, width, channels = (int(side) for side in state["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"not the state of an encoder of images: {error!r}") from None
        new.shape = height, width, channels
        return new


def _said(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height} x {width} pixels with {channels} channel{'s' * (channels > 1)}"

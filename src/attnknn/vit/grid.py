"""Where tokens lie: the patch grid behind a sequence, its coordinates, and the tokens that are sampled from it."""

from __future__ import annotations

from math import isqrt
from typing import Any, Final, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from attnknn.errors import InvalidInput
from attnknn.vit.drawing import drawn, drawn_from, source_of
from attnknn.vit.heads import Whole, checked_count

SamplingType = Literal["all", "random", "spatial"]
SAMPLING_TYPES: Final[tuple[SamplingType, ...]] = get_args(SamplingType)

EvalSampling = Literal["fixed", "all", "resample"]
EVAL_SAMPLINGS: Final[tuple[EvalSampling, ...]] = get_args(EvalSampling)


class Grid(NamedTuple):
    """A grid of patches, row by row, behind tokens that have no place: the class token, if there is one."""

    rows: int
    columns: int
    before: int


def grid_of(tokens: int, grid_size: tuple[int, int] | None = None) -> Grid:
    """The grid behind a number of tokens: a class token and a square, if they are that many, else a square.

    >>> grid_of(197)
    Grid(rows=14, columns=14, before=1)
    """
    if grid_size is not None:
        rows, columns = grid_size
        if tokens < rows * columns:
            raise InvalidInput(
                f"grid_size {grid_size} has {rows * columns} patches, but there are {tokens} tokens"
            )
        return Grid(rows, columns, tokens - rows * columns)
    for before in (1, 0):
        side = isqrt(tokens - before)
        if side and side * side == tokens - before:
            return Grid(side, side, before)
    raise InvalidInput(f"{tokens} tokens are no square grid, with or without a class token: give grid_size")


def checked_grid_size(grid_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of a grid, from a pair or from the side of a square."""
    if grid_size is None:
        return None
    sides = (grid_size, grid_size) if isinstance(grid_size, Whole) else tuple(grid_size)
    if len(sides) != 2:
        raise InvalidInput(f"grid_size must be a number or (rows, columns), got {grid_size!r}")
    return checked_count(sides[0], "grid_size"), checked_count(sides[1], "grid_size")


def grid_coordinates(tokens: int, grid_size: tuple[int, int] | None, like: Tensor) -> Tensor:
    """(tokens, 2) row and column of each patch, from -1 to 1; a class token lies in the middle.

    >>> grid_coordinates(5, None, torch.zeros(())).tolist()
    [[0.0, 0.0], [-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]
    """
    grid = grid_of(tokens, grid_size)
    down, across = _spread(grid.rows, like), _spread(grid.columns, like)
    places = torch.stack(torch.meshgrid(down, across, indexing="ij"), dim=-1).flatten(0, 1)
    return torch.cat([places.new_zeros(grid.before, 2), places])


def sequence_coordinates(tokens: int, like: Tensor) -> Tensor:
    """(tokens, 1) places in the sequence, from -1 to 1."""
    return torch.linspace(-1, 1, tokens, dtype=like.dtype, device=like.device)[:, None]


def _spread(count: int, like: Tensor) -> Tensor:
    if count == 1:
        return torch.zeros(1, dtype=like.dtype, device=like.device)
    return torch.linspace(-1, 1, count, dtype=like.dtype, device=like.device)


def spatial_candidates(grid: Grid, side: int, padding: int, device: torch.device) -> Tensor:
    """Indices, ascending, of ``side`` x ``side`` patches spread over the grid, behind all tokens without a place.

    Args:
        grid: The patches.
        side: Patches per axis; as many as there are, where it is more.
        padding: Rows and columns left out at every edge; fewer where nothing would be left.
        device: Of the indices.

    >>> spatial_candidates(Grid(3, 3, 1), 2, 0, torch.device("cpu")).tolist()
    [0, 1, 3, 7, 9]
    """
    down, across = _places(grid.rows, side, padding, device), _places(grid.columns, side, padding, device)
    patches = (down[:, None] * grid.columns + across).flatten() + grid.before
    return torch.cat([torch.arange(grid.before, device=device), patches])


def _places(length: int, count: int, padding: int, device: torch.device) -> Tensor:
    padding = min(padding, (length - 1) // 2)
    inside = length - 2 * padding
    count = min(count, inside)
    if count == 1:
        return torch.full((1,), (length - 1) // 2, device=device)
    steps = torch.arange(count, device=device)
    # In whole numbers, rounded to the nearest: the same patches on every device, and no two the same.
    return padding + (2 * steps * (inside - 1) + (count - 1)).div(2 * (count - 1), rounding_mode="floor")


class SpatialSampler(nn.Module):
    """Candidates on an n x n grid over the patches, and every token without a place; -1 takes all."""

    def __init__(self, num_samples: int, padding: int, grid_size: tuple[int, int] | None) -> None:
        super().__init__()
        self.num_samples, self.padding, self.grid_size = num_samples, padding, grid_size

    def forward(self, tokens: int, device: torch.device) -> Tensor:
        """(m,) indices, ascending."""
        if self.num_samples == -1 and not self.padding:
            return torch.arange(tokens, device=device)
        grid = grid_of(tokens, self.grid_size)
        side = max(grid.rows, grid.columns) if self.num_samples == -1 else self.num_samples
        return spatial_candidates(grid, side, self.padding, device)


class _Held(NamedTuple):
    """A draw that waits for the calls that take it."""

    tokens: int  # among which it was drawn
    indices: Tensor


class RandomSampler(nn.Module):
    """Candidates drawn at random, without putting back, for the whole batch and all heads; -1 takes all.

    In training every call draws anew from the generator, unless a draw is held for it (see :class:`Draws`). What
    evaluation does, ``eval_sampling`` says: ``fixed`` draws by the seed of the generator, so always the same;
    ``all`` takes every token; ``resample`` draws anew. The state of the generator is part of the state dict, so
    that a run that is resumed draws what it would have; a draw that is held is not, nor is it copied.

    Args:
        num_samples: How many; -1, or more than there are, means all.
        eval_sampling: ``fixed``, ``all`` or ``resample``.
        generator: On the CPU; by default one of its own, seeded from torch's global state.
    """

    def __init__(
        self, num_samples: int, eval_sampling: EvalSampling = "fixed", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.num_samples, self.eval_sampling = num_samples, eval_sampling
        if generator is not None and generator.device.type != "cpu":
            raise InvalidInput(f"the generator must be on the CPU, got one on {generator.device}")
        self.generator = generator or torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
        self._held: _Held | None = None

    @property
    def generator(self) -> torch.Generator:
        """What is drawn from."""
        return self._source.generator

    @generator.setter
    def generator(self, generator: torch.Generator) -> None:
        self._source = source_of(generator)

    def forward(self, tokens: int, device: torch.device) -> Tensor:
        """(m,) indices, ascending."""
        if not self.chooses(tokens) or (not self.training and self.eval_sampling == "all"):
            return torch.arange(tokens, device=device)
        held = self._held if self.training else None
        if held is not None and held.tokens == tokens and held.indices.device == device:
            return held.indices
        fixed = not self.training and self.eval_sampling == "fixed"
        if torch.compiler.is_compiling():
            found: Tensor = drawn(self._source.ticket, tokens, self.num_samples, fixed)
            return found.to(device)
        return drawn_from(self.generator, tokens, self.num_samples, fixed=fixed).to(device)

    def chooses(self, tokens: int) -> bool:
        """Whether some of so many tokens are left out in training."""
        return 0 <= self.num_samples < tokens

    def drawn(self, tokens: int) -> Tensor:
        """(m,) indices on the CPU, ascending: the draw that is next in training."""
        return drawn_from(self.generator, tokens, self.num_samples, fixed=False)

    def hold(self, tokens: int, indices: Tensor) -> None:
        """Let calls in training, with so many tokens and on this device, take these indices instead of a draw.

        They are not copied: what is written to them later is what later calls take.
        """
        self._held = _Held(tokens, indices)

    def release(self, indices: Tensor) -> None:
        """Draw in every call again, unless it is other indices that are held by now."""
        if self._held is not None and self._held.indices is indices:
            self._held = None

    def get_extra_state(self) -> Tensor:
        """The state of the generator, its seed included."""
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        """Go on where the generator was."""
        self.generator.set_state(state.cpu())

    def __getstate__(self) -> dict[str, Any]:
        """All but the ticket of the generator, and the draw that is held: nobody would write to a copy of it."""
        state = {**self.__dict__, "_held": None, "generator": self.generator}
        del state["_source"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = state["generator"]
        super().__setstate__(  # type: ignore[no-untyped-call]
            {name: each for name, each in state.items() if name != "generator"}
        )
        self.generator = generator


class Draws:
    """What the samplers of a model take in one step of training: drawn before it, brought to its device at once.

    They are the draws that the samplers would have made within the step. So no step waits for the host, and one
    that was recorded as a CUDA graph finds new draws where it read the first.

    Args:
        model: Whose samplers; each is asked once in a step.
        tokens: How many tokens they are asked about.
        device: Where the step is taken.
    """

    def __init__(self, model: nn.Module, tokens: int, device: torch.device) -> None:
        samplers = [each for each in model.modules() if isinstance(each, RandomSampler) and each.chooses(tokens)]
        sizes = [each.num_samples for each in samplers]
        self._tokens = tokens
        self._whole = torch.empty(sum(sizes), dtype=torch.int64, device=device)  # in one place for good
        self._parts = list(zip(samplers, torch.split(self._whole, sizes), strict=True))

    def hold(self) -> None:
        """Draw for the next step."""
        if not self._parts:
            return
        drawn = torch.cat([sampler.drawn(self._tokens) for sampler, _ in self._parts])
        if self._whole.is_cuda:
            drawn = drawn.pin_memory()  # new memory each time: an earlier copy may not have begun yet
        self._whole.copy_(drawn, non_blocking=self._whole.is_cuda)
        for sampler, part in self._parts:
            sampler.hold(self._tokens, part)

    def release(self) -> None:
        """Let the samplers draw by themselves again."""
        for sampler, part in self._parts:
            sampler.release(part)


def make_sampler(
    sampling_type: str,
    num_samples: int,
    sample_padding: int,
    *,
    grid_size: tuple[int, int] | None,
    eval_sampling: str,
    generator: torch.Generator | None,
) -> RandomSampler | SpatialSampler | None:
    """The sampler of a layer, its arguments checked; None where every token is a candidate."""
    checked = checked_sampling(sampling_type, num_samples, sample_padding, grid_size, eval_sampling)
    if checked == "all":
        return None
    if checked == "random":
        return RandomSampler(int(num_samples), _one_of(eval_sampling, EVAL_SAMPLINGS, "eval_sampling"), generator)
    return SpatialSampler(int(num_samples), int(sample_padding), grid_size)


def checked_sampling(
    sampling_type: str,
    num_samples: int,
    sample_padding: int,
    grid_size: tuple[int, int] | None,
    eval_sampling: str,
) -> SamplingType:
    """The kind of sampling, if a sampler can be made of the rest."""
    kind: SamplingType = _one_of(sampling_type, SAMPLING_TYPES, "sampling_type")
    _one_of(eval_sampling, EVAL_SAMPLINGS, "eval_sampling")
    if kind == "all":
        return kind
    if num_samples != -1:
        checked_count(num_samples, "num_samples (other than -1)")
    if kind == "random":
        return kind
    padding = checked_count(sample_padding, "sample_padding", least=0)
    if grid_size is not None and max(num_samples, 1) > min(grid_size) - 2 * padding:
        patches = f"{grid_size[0]} x {grid_size[1]} patches"
        if num_samples == -1:
            raise InvalidInput(f"sample_padding={padding} at every edge leaves none of {patches} to sample")
        raise InvalidInput(
            f"a sampling grid of {num_samples} x {num_samples} with padding {padding} does not fit into {patches}"
        )
    return kind


def most_candidates(kind: SamplingType, num_samples: int, grid_size: tuple[int, int] | None) -> int | None:
    """How many tokens a token may keep at most, whatever comes; None where nothing limits them.

    >>> most_candidates("random", 32, None), most_candidates("all", -1, (14, 14)), most_candidates("all", -1, None)
    (33, 197, None)
    """
    if kind == "all" or num_samples == -1:
        return None if grid_size is None else grid_size[0] * grid_size[1] + 1
    # Beside the samples there is the token itself and, for a grid, the class token.
    return num_samples**2 + 2 if kind == "spatial" else num_samples + 1


def _one_of(value: str, choices: tuple[Any, ...], name: str) -> Any:
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value

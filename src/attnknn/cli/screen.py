"""What commands write: results on stdout (tables, or one JSON object), everything else on stderr."""

from __future__ import annotations

import inspect
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

_SILENCE = 30.0  # seconds between two lines of a log
Command = TypeVar("Command", bound=Callable[..., Any])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Add examples to the help of a command, one to a line."""

    def with_examples(command: Command) -> Command:
        # Typer keeps line breaks: a paragraph must be one line, an example must stay on its own.
        paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(each.split()) for each in paragraphs)
        command.__doc__ = "\n".join([text, "", "Examples:", *(f"  {line}" for line in lines)])
        return command

    return with_examples


def emit(result: Mapping[str, Any]) -> None:
    """Write one object of strict JSON to stdout: what is not finite becomes null."""
    print(json.dumps(strict(result), allow_nan=False, indent=2))


def strict(value: Any) -> Any:
    """A value that strict JSON can hold."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return fspath(value) if isinstance(value, PathLike) else value


def note(text: str) -> None:
    """Say something beside the result."""
    print(f"note: {printable(text)}", file=sys.stderr)


def tell_log(much: int) -> None:
    """Show what the package logs as notes: choices and their reasons, or from 2 on everything."""
    log, handler = logging.getLogger("attnknn"), logging.Handler()
    handler.emit = lambda record: note(record.getMessage())  # type: ignore[method-assign]
    log.handlers = [handler]
    log.setLevel(logging.INFO if much == 1 else logging.DEBUG)


def warned(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning of a library as a note, without the place in the code."""
    note(" ".join(str(message).split()))


def line(text: str = "") -> None:
    """A line of the result."""
    print(printable(text))


def facts(pairs: Mapping[str, Any]) -> None:
    """Names and values, one pair to a line."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        line(f"{name:<{width}}  {value}")


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]], *, left: Sequence[int] = (0,)) -> None:
    """A table; columns are flush right but for those in ``left``."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, head in enumerate(heads):
        grid.add_column(printable(head), justify="left" if at in left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(printable(cell) for cell in row))
    console = _console()
    with console.capture() as drawn:  # printed by us: rich would take a closed pipe for a failure
        console.print(grid)
    print("\n".join(each.rstrip() for each in drawn.get().splitlines()))


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show what takes a while; call what comes back to say what is next.

    A log, unlike a terminal, gets a line now and then, and nothing of what is done soon.
    """
    if not sys.stderr.isatty():
        yield _logged()
        return
    with _console(stderr=True).status(printable(text)) as status:
        yield lambda now: status.update(printable(now))


def _logged() -> Callable[[str], None]:
    last = time.monotonic()

    def say(now: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SILENCE:
            last = time.monotonic()
            note(now)

    return say


@contextmanager
def working(text: str | None) -> Iterator[None]:
    """Show one thing that takes a while; None shows nothing."""
    if text is None:
        yield
        return
    with progress(text):
        yield


def printable(value: Any) -> str:
    """Text that cannot command a terminal: what does not print is spelled out."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def number(value: float) -> str:
    """A score to four decimals."""
    return f"{value:.4f}" if math.isfinite(value) else str(value)


def interval(low: float, high: float) -> str:
    """Both ends of an interval."""
    return f"[{number(low)}, {number(high)}]"


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # What users named may look like markup.
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)

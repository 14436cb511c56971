"""The one place where a mistake of the user becomes one line on stderr and exit code 2."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from attnknn.errors import AnotherTraining, AttnKNNError, InvalidInput

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141  # what a shell reports for SIGPIPE

_NO_MEMORY: Final = re.compile(
    r"can't allocate memory|not enough memory|out of memory|_ALLOC_FAILED|size calculation overflowed",
    re.IGNORECASE,
)
_ASKED_FOR: Final = re.compile(r"allocate ([\d.]+) (bytes|[KMGTP]iB)")

# Typer does not export the root of its usage errors, and where it lives differs between versions.
_UsageError: Any = typer.BadParameter.__mro__[1]
_RootError: Any = typer.BadParameter.__mro__[2]


class Commands(TyperGroup):
    """A group of commands that never shows a traceback for a user's mistake."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run, and leave with the right exit code."""
        sys.exit(_exit_code(lambda: TyperGroup.main(self, *args, **{**extra, "standalone_mode": False})))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader that went away, as ``head`` does, is no error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except OSError as problem:
            if problem.errno != errno.EPIPE:
                raise
            _drop_output()
            raise typer.Exit(PIPE_CLOSED) from None
        return result


@contextmanager
def input_checks() -> Iterator[None]:
    """Around checks of scikit-learn: what they refuse with a plain ValueError is the user's input too."""
    try:
        yield
    except ValueError as problem:
        raise InvalidInput(str(problem)) from problem


@contextmanager
def folder_named_by(flag: str) -> Iterator[None]:
    """Around a training: where its folder is that of another one, say how another folder is chosen."""
    try:
        yield
    except AnotherTraining as problem:
        raise AnotherTraining(f"{problem} ({flag})") from problem


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        result = run()
    except _RootError as problem:
        return _refuse(problem.format_message() + _where_to_look(problem))
    except AttnKNNError as problem:
        return _refuse(str(problem))
    except OSError as problem:
        return _refuse(_said_by_system(problem))
    except (MemoryError, RuntimeError) as problem:
        if not _is_lack_of_memory(problem):
            raise
        return _refuse(_lacking(str(problem)))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def _refuse(message: str) -> int:
    from attnknn.cli.screen import printable

    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return BAD_INPUT


def _where_to_look(problem: Any) -> str:
    ctx = problem.ctx if isinstance(problem, _UsageError) else None
    return f" (see: {ctx.command_path} --help)" if ctx is not None else ""


def _said_by_system(problem: OSError) -> str:
    reason = problem.strerror or str(problem) or type(problem).__name__
    return f"{os.fsdecode(problem.filename)}: {reason}" if isinstance(problem.filename, str | bytes) else reason


def _is_lack_of_memory(problem: Exception) -> bool:
    """By what it says: torch, which may not even be loaded, has a type of its own for GPUs only."""
    return isinstance(problem, MemoryError) or _NO_MEMORY.search(str(problem)) is not None


def _lacking(said: str) -> str:
    asked = _ASKED_FOR.search(said)
    much = f" ({_amount(asked)} more were asked for)" if asked else ""
    return f"there is not enough memory{much}: smaller batches, smaller images or a smaller model take less"


def _amount(asked: re.Match[str]) -> str:
    number, unit = asked.groups()
    return f"{int(number) / 2**30:,.1f} GiB" if unit == "bytes" else f"{number} {unit}"


def _drop_output() -> None:
    """Let the interpreter flush into nothing when it ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as in tests
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115

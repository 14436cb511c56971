"""Runs in one folder share its work: each part is taken by one of them, and free once that one is done or dead."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CLAIMS: Final = ".claims"
"""Folder of the files that stand for parts of the work, and of what runs tell each other."""

fcntl: Any
try:
    import fcntl
except ImportError:  # not every system has it; there a run has its folder for itself
    fcntl = None

CAN_SHARE: Final = fcntl is not None
"""Whether several runs in one folder share its work here, and do not each do all of it."""


@contextmanager
def claimed(file: Path, *, wait: bool = False) -> Iterator[bool]:
    """Whether this run has what a file stands for, while the context lasts.

    Args:
        file: It is made where it is absent, and stays: to remove it would let two runs hold two files of one name.
        wait: Whether to wait for another run that has it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, claimed(Path(folder) / "part") as mine:
    ...     mine
    True
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        yield fcntl is None or _locked(held, wait)  # closing the file gives it back


def _locked(file: Any, wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:  # some file systems have no locks: there, too, a run has its folder for itself
        if problem.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    return True

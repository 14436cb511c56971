"""What a results file says about the run that made it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent.parent
"""The checkout, where the package lies in one."""

PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "pandas", "faiss-cpu", "lightgbm", "triton")


def commit() -> str | None:
    """The commit of the checkout, marked when files differ from it; None outside a checkout or without git."""
    try:
        # An installed package may lie within somebody else's checkout.
        if Path(_git("rev-parse", "--show-toplevel")).resolve() != ROOT:
            return None
        head = _git("rev-parse", "HEAD")
        return f"{head}-modified" if _git("status", "--porcelain", "src", "benchmarks") else head
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def source_hash() -> str:
    """SHA-256 over the package's source files."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = f"src/attnknn/{path.relative_to(PACKAGE).as_posix()}"
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def environment(device: str | None = None) -> dict[str, Any]:
    """Machine and versions; ``device`` is what the run computed on, where that matters."""
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: there for name in PACKAGES if (there := _version(name))},
    }
    return found if device is None else {**found, "device": _device(device)}


def processes_of(report: Mapping[str, Any]) -> int:
    """How many processes filled the cells of a report side by side, at the most."""
    return max((each["environment"].get("processes", 1) for each in report.get("environments", ())), default=1)


def command() -> str:
    """What was typed to start this process; of a folder or file of this machine only the name is told."""
    called, *rest = sys.argv
    told = [_nameless(each) for each in rest]
    if Path(called).name in ("attnknn", "__main__.py"):
        return shlex.join(["attnknn", *told])
    at = Path(called)
    script = at.relative_to(ROOT).as_posix() if at.is_relative_to(ROOT) else _nameless(called)
    return shlex.join(["python", script, *told])


def _nameless(argument: str) -> str:
    """An argument without the folders of an absolute path, also behind the sign of an option."""
    option, sign, value = argument.rpartition("=") if argument.startswith("-") else ("", "", argument)
    path = Path(value)
    return f"{option}{sign}{path.name or '.'}" if path.is_absolute() else argument


def recorded(results: Mapping[str, Any], *, given_commit: str | None = None) -> dict[str, Any]:
    """The record of the run, then its results.

    Args:
        results: What was found.
        given_commit: The commit, where there is no git to ask.
    """
    return {
        "command": command(),
        "commit": given_commit or commit(),
        "source_hash": source_hash(),
        "environment": environment(),
        **results,
    }


def write(path: Path, results: Mapping[str, Any], *, given_commit: str | None = None) -> None:
    """Write a results file: the record of the run, then its results."""
    write_json(path, recorded(results, given_commit=given_commit))


def is_report(path: Path) -> bool:
    """Whether a file is the record of a run, so that a later run may take its place."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(found, dict) and {"command", "environment"} <= set(found)


def write_json(path: Path, content: Mapping[str, Any], *, new: bool = False) -> bool:
    """Strict JSON by ``write_bytes``: a kill leaves the file as it was. What is not finite becomes null."""
    return write_bytes(path, (json.dumps(_strict(content), allow_nan=False, indent=1) + "\n").encode(), new=new)


def write_bytes(path: Path, content: bytes, *, new: bool = False) -> bool:
    """A whole file or none; where it must be ``new``, none if there is one. Returns whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            return _linked(draft, path)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _linked(draft: Path, path: Path) -> bool:
    """Give a whole file its name, unless another has it; of several that try at once one succeeds."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError:  # not every file system has links
        if path.exists():
            return False
        draft.replace(path)
    return True


def _strict(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _git(*arguments: str) -> str:
    ran = subprocess.run(  # noqa: S603
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device(device: str) -> str:
    if not device.startswith("cuda"):
        return device
    import torch

    return f"{device}: {torch.cuda.get_device_name(device)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

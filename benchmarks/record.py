"""What a results file says about the run that made it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str | None:
    """The commit of the checkout, marked when files differ from it."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}-modified" if _git("status", "--porcelain", "src", "benchmarks") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def source_hash() -> str:
    """SHA-256 over the package's source files."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def environment() -> dict[str, Any]:
    """Machine and versions."""
    packages = ("numpy", "scipy", "scikit-learn", "torch", "faiss-cpu")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: found for name in packages if (found := _version(name))},
    }


def write(path: Path, results: dict[str, Any]) -> None:
    """Write a results file: the record of the run, then its results."""
    record = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "source_hash": source_hash(),
        "environment": environment(),
        **results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")

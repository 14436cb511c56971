"""A training on disk: one file that is either whole or absent, and that holds numbers, never code.

Its first line carries the SHA-256 of the rest, which ``torch.load`` reads with ``weights_only=True``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from attnknn.errors import AnotherTraining, CorruptModel

FORMAT: Final = 2
"""Number of the format that this version writes and reads."""

_FOLLOWS: Final = ("steps", "model", "loop")
"""What differs because something else does: not worth telling beside it."""

_HEAD = re.compile(rb"attnknn checkpoint (\d+) ([0-9a-f]{64})\n")


def write_checkpoint(path: Path, identity: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Save a state: the file appears whole, or what was there stays.

    Args:
        path: The file; its folder is made if absent.
        identity: What makes this training this one; :func:`read_checkpoint` compares it.
        state: Tensors and plain values, in dicts and lists.
    """
    held = io.BytesIO()
    torch.save({"identity": dict(identity), "state": dict(state)}, held)
    content = held.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.tmp")  # always the same: a killed run leaves one behind, not many
    with draft.open("wb") as file:
        file.write(f"attnknn checkpoint {FORMAT} {digest}\n".encode())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    with contextlib.suppress(OSError):  # not every system can open a folder
        _sync(path.parent)


def read_checkpoint(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The saved state, on the CPU, or None where there is no file.

    Raises:
        CorruptModel: If the file is damaged or not a checkpoint.
        AnotherTraining: If it is the checkpoint of another training; the message says what differs.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    head = _HEAD.match(content)
    if head is None:
        raise CorruptModel(f"{path} is not a checkpoint, or is damaged: it does not begin like one")
    if int(head[1]) != FORMAT:
        raise CorruptModel(
            f"{path} has format {int(head[1])}, this version reads {FORMAT} and cannot go on with it: "
            "remove it, or choose another folder"
        )
    body = content[head.end() :]
    if hashlib.sha256(body).hexdigest().encode() != head[2]:
        raise CorruptModel(f"{path} is damaged: its content does not have the checksum it states")
    try:
        saved = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        there, state = dict(saved["identity"]), dict(saved["state"])
    except Exception as broken:  # whatever a forged file makes torch raise
        raise CorruptModel(f"{path} cannot be read: {broken}") from broken
    _refuse_another(path, there, identity)
    return state


def _refuse_another(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    names = [*here, *(name for name in there if name not in here)]
    differing = {
        name: f"{name} is {there.get(name)} there, {here.get(name)} here"
        for name in names
        if there.get(name) != here.get(name)
    }
    if not differing:
        return
    causes = [said for name, said in differing.items() if name not in _FOLLOWS] or differing.values()
    raise AnotherTraining(
        f"{path} is the checkpoint of another training: {'; '.join(causes)}; choose another folder"
    )


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

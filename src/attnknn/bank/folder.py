"""The format on disk: a folder whose ``manifest.json`` names every file with its SHA-256.

Files are written under names made from their content, then one rename of the manifest commits: whoever
loads, at whatever moment and after whatever crash, sees the old folder or the new one, whole. Files that
no manifest names any more are removed by the next save. Nothing on disk is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attnknn.errors import CorruptModel, InvalidInput

FORMAT: Final = 2
"""Number of the format that this version writes. It reads this one and every earlier one."""

MANIFEST: Final = "manifest.json"
_SAVE_LOCK = ".lock"
_EDIT_LOCK = ".edit"
_OURS = re.compile(r"[a-z0-9_]+-[0-9a-f]{20}\.[a-z]+|manifest\.json\.[0-9a-f]{16}\.tmp")
_ATTEMPTS = 20  # a load that a save overtakes starts again


def write_folder(path: str | os.PathLike[str], kind: str, files: Mapping[str, bytes]) -> None:
    """Save ``files`` (name -> content) as one folder: it appears whole, or what was there stays.

    Args:
        path: The folder; made if absent.
        kind: What it holds; :func:`read_folder` asks for it.
        files: Plain file names, such as ``model.json``.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, _SAVE_LOCK):
        _refuse_foreign(folder / MANIFEST)
        before = _named_by(folder / MANIFEST)
        entries: dict[str, dict[str, str | int]] = {}
        written: list[Path] = []
        try:
            for name, content in files.items():
                digest = hashlib.sha256(content).hexdigest()
                target = folder / f"{Path(name).stem}-{digest[:20]}{Path(name).suffix}"
                entries[name] = {"file": target.name, "sha256": digest, "bytes": len(content)}
                if _holds(target, digest):
                    _sync(target)  # whoever left it may have been killed before it did
                else:
                    written.append(target)
                    _write(target, content)
            _commit(folder, {"attnknn": "folder", "kind": kind, "format": FORMAT, "files": entries})
        except BaseException:
            committed = _named_by(folder / MANIFEST)  # an interrupt may come after the rename
            for target in written:
                if target.name not in committed:
                    target.unlink(missing_ok=True)
            raise
        _sweep(folder, before | {str(entry["file"]) for entry in entries.values()})


def read_folder(path: str | os.PathLike[str], kind: str) -> dict[str, bytes]:
    """The files of a saved folder, checked against its manifest before anything parses them."""
    folder = Path(path)
    for attempt in range(_ATTEMPTS):
        seen = _read(folder / MANIFEST, folder)
        manifest = _manifest(seen, folder, kind)
        try:
            return {name: _checked(folder, entry) for name, entry in manifest["files"].items()}
        except (KeyError, TypeError, AttributeError) as broken:
            raise CorruptModel(f"{folder / MANIFEST}: its list of files makes no sense") from broken
        except CorruptModel:
            overtaken = (folder / MANIFEST).exists() and (folder / MANIFEST).read_bytes() != seen
            if not overtaken or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def parse_json(content: bytes, name: str) -> Any:
    """JSON of a checked file; what is not JSON is named."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as broken:
        raise CorruptModel(f"{name}: not valid JSON ({broken})") from broken


def _manifest(content: bytes, folder: Path, kind: str) -> dict[str, Any]:
    name = folder / MANIFEST
    manifest = parse_json(content, str(name))
    if not isinstance(manifest, dict) or manifest.get("attnknn") != "folder":
        raise CorruptModel(f"{name}: not an Attn-KNN manifest")
    number = manifest.get("format")
    if type(number) is not int or number < 1:
        raise CorruptModel(f"{name}: {number!r} is not a format number")
    if number > FORMAT:
        raise CorruptModel(f"{name}: format {number} is newer than this version reads ({FORMAT}); upgrade attnknn")
    if manifest.pop("digest", None) != _digest(manifest):
        raise CorruptModel(f"{name}: its checksum does not match; the file is damaged")
    if manifest.get("kind") != kind:
        raise CorruptModel(f"{name}: holds a {manifest.get('kind')}, not a {kind}")
    return manifest


def _checked(folder: Path, entry: Mapping[str, Any]) -> bytes:
    target = folder / str(entry["file"])
    if target.name != entry["file"] or not _OURS.fullmatch(target.name):
        raise CorruptModel(f"{folder / MANIFEST}: {entry['file']!r} is not a plain file name")
    content = _read(target, folder)
    if len(content) != entry["bytes"]:
        raise CorruptModel(
            f"{target}: {len(content)} bytes, expected {entry['bytes']}; it is cut short or foreign"
        )
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise CorruptModel(f"{target}: its checksum does not match; the file is damaged")
    return content


def _read(target: Path, folder: Path) -> bytes:
    try:
        return target.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as missing:
        if not folder.exists():
            raise CorruptModel(f"{folder}: no such folder") from missing
        if folder.is_file():
            raise CorruptModel(f"{folder}: a saved model is a folder, this is a file") from missing
        raise CorruptModel(f"{target}: missing; this is not a complete Attn-KNN folder") from missing


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _commit(folder: Path, manifest: dict[str, Any]) -> None:
    manifest = {**manifest, "digest": _digest(manifest)}
    draft = folder / f"{MANIFEST}.{secrets.token_hex(8)}.tmp"
    try:
        _write(draft, json.dumps(manifest, indent=1).encode())
        _flush(folder)  # the files' names must be on disk before the manifest names them
        draft.replace(folder / MANIFEST)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _flush(folder)


def _write(target: Path, content: bytes) -> None:
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can open a folder
        _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _holds(target: Path, digest: str) -> bool:
    """Whether an earlier save left this very content: a killed one may have left half of it."""
    return target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == digest


def _named_by(manifest: Path) -> set[str]:
    try:
        return {entry["file"] for entry in json.loads(manifest.read_bytes())["files"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _refuse_foreign(manifest: Path) -> None:
    """Other programs have manifests too; theirs is not ours to replace."""
    try:
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(content, dict) or content.get("attnknn") != "folder":
        raise InvalidInput(f"{manifest} belongs to something else; choose another folder")


def _sweep(folder: Path, keep: set[str]) -> None:
    """Remove what no manifest names; the last manifest's files stay for whoever is reading them."""
    for file in folder.iterdir():
        if _OURS.fullmatch(file.name) and file.name not in keep:
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def editing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a saved folder from load to save, so that edits of several processes follow one another."""
    folder = Path(path)
    with _alone(folder, _EDIT_LOCK) if folder.is_dir() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """One holder at a time, across processes; a killed one lets go."""
    try:
        import fcntl
    except ImportError:  # Windows: renames are still atomic, leftovers of a race may stay
        yield
        return
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

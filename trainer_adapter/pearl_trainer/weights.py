"""Publishes weights: files and an index of them, then the manifest, replaced atomically, that names them.

A reader of the manifest never sees a version that is not complete on disk, wherever the trainer crashes:
everything is written and flushed under a name that nothing refers to, renamed, and only then named.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union
from urllib.parse import unquote, urlsplit

from pearl_trainer.errors import ConfigurationError, VersionError

MANIFEST = "manifest.json"
INDEX = "index.json"
CHUNK_BYTES = 8 << 20
_DRAFT = ".draft-"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")

Files = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]], Mapping[str, Any]]
"""A directory, one file, a list of files, or {name in the version: file}."""


@dataclass(frozen=True)
class Published:
    """What is published now: the directory of the version, and its bytes."""

    version: int
    directory: Path
    bytes: int


def publish(source: str, version: int, files: Files, *, move: bool = False, keep: int = 3) -> Published:
    """Publishes `files` as `version` at `source`.

    Args:
        source: Directory, as a path or a `file://` URI: the PearlRollout's `spec.weights.source`.
        version: Above the published one; 1 or more.
        files: What to publish; `*.safetensors` are loaded by the engines in order of their names.
        move: Move the files instead of copying them; on one file system that costs no copy.
        keep: Newest versions that stay on disk, at least 2 because workers may still load the one before.

    Raises:
        VersionError: the version does not grow.
        ConfigurationError: another argument must be changed; the message says which.
        OSError: the storage failed; the published version is unchanged.
    """
    last: Published | None = None
    for last in steps(source, version, files, move=move, keep=keep):  # noqa: B007 - the last one is the result
        pass
    assert last is not None  # noqa: S101 - the generator ends with it
    return last


def steps(source: str, version: int, files: Files, *, move: bool = False, keep: int = 3) -> Iterator[Published | None]:
    """`publish` in the small steps between which a crash can fall; yields None until it is published."""
    root, named = source_directory(source), _named(files)
    if keep < 2:  # noqa: PLR2004 - the docstring says why
        raise ConfigurationError(f"keep is {keep}: keep at least 2 versions, workers may still load the one before")
    _check_version(root, version)
    draft, final = root / f"{_DRAFT}{version}", root / str(version)
    for leftover in (draft, final):  # no manifest ever named them, so nobody reads them
        shutil.rmtree(leftover, ignore_errors=True)
    draft.mkdir()
    yield None
    entries = []
    for name, path in sorted(named.items()):
        entry = yield from _place(path, draft / name, name, move=move)
        entries.append(entry)
        yield None
    index = json.dumps({"files": entries}, indent=1).encode()
    _write(draft / INDEX, index)
    for folder in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
        _sync_directory(folder)
    yield None
    draft.rename(final)
    _sync_directory(root)
    yield None
    manifest = {"version": version, "uri": str(version), "sha256": hashlib.sha256(index).hexdigest()}
    temporary = root / f".{MANIFEST}"
    _write(temporary, json.dumps(manifest).encode())
    yield None
    temporary.replace(root / MANIFEST)
    _sync_directory(root)
    published = Published(version, final, sum(entry["bytes"] for entry in entries))
    yield published
    _prune(root, version, keep)
    yield published


def source_directory(source: str) -> Path:
    """The directory of a weights source.

    Raises:
        ConfigurationError: it is no directory here, or of a scheme that cannot be written to.
    """
    parts = urlsplit(source)
    if parts.scheme not in ("", "file"):
        raise ConfigurationError(
            f"cannot publish to {source}: mount the volume in the trainer and pass its path here as "
            'weights_source="file:///…" (or PEARL_WEIGHTS_SOURCE)'
        )
    path = Path(unquote(parts.path) if parts.scheme else source)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigurationError(
            f"weights source {source} is no directory in this pod: mount the volume of spec.weights.source there, "
            "or set PEARL_WEIGHTS_SOURCE to where it is mounted"
        )
    return path


def published_version(root: Path) -> int:
    """Version that the manifest names; 0 without a manifest, which is `model.uri`."""
    try:
        text = (root / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return 0
    try:
        return int(json.loads(text)["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{root / MANIFEST} is damaged ({error}): remove it to start from version 0"
        ) from error


def _check_version(root: Path, version: int) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise VersionError(f"version is {version!r}: pass a whole number from 1; version 0 is the model itself")
    current = published_version(root)
    if version <= current:
        raise VersionError(
            f"version {version} is not above {current}, which is published at {root}: pass version={current + 1} or "
            f"more, or empty the directory to start a new run"
        )


def _named(files: Files) -> dict[str, Path]:
    if isinstance(files, Mapping):
        named = {str(name): Path(path) for name, path in files.items()}
    elif isinstance(files, (str, os.PathLike)):
        named = _of_path(Path(files))
    else:
        paths = [Path(path) for path in files]
        named = {path.name: path for path in paths}
        if len(named) != len(paths):
            raise ConfigurationError("two files have the same name: pass files={name: path, …} to tell them apart")
    _check_names(named)
    return named


def _of_path(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return {path.name: path}
    return {entry.relative_to(path).as_posix(): entry for entry in path.rglob("*") if entry.is_file()}


def _check_names(named: Mapping[str, Path]) -> None:
    if not named:
        raise ConfigurationError("files names no file: pass a directory with files in it, or a list of files")
    for name, path in named.items():
        if name == INDEX:
            raise ConfigurationError(f"a file is called {INDEX}, which is PEARL's own: rename it")
        parts = name.split("/")
        if any(not part or part[0] in ".-" or set(part) - _NAME_CHARACTERS for part in parts):
            raise ConfigurationError(
                f"file name {name!r}: use letters, digits, `_`, `.` and `-`, starting with none of .-"
            )
        if not path.is_file():
            raise ConfigurationError(f"files: {path} is no file")


def _place(path: Path, target: Path, name: str, *, move: bool) -> Generator[None, None, dict[str, Any]]:
    target.parent.mkdir(parents=True, exist_ok=True)
    if move:
        shutil.move(str(path), str(target))
        path = target
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as reader, target.open("r+b" if move else "wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if not move:
                writer.write(chunk)
            yield None
        writer.flush()
        os.fsync(writer.fileno())
    return {"path": name, "bytes": size, "sha256": digest.hexdigest()}


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as writer:
        writer.write(data)
        writer.flush()
        os.fsync(writer.fileno())


def _sync_directory(path: Path) -> None:
    # Makes a rename or a new name in it survive a power failure.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(root: Path, version: int, keep: int) -> None:
    old = sorted(int(path.name) for path in root.iterdir() if path.name.isdigit() and int(path.name) < version)
    for number in old[: max(len(old) - (keep - 1), 0)]:
        shutil.rmtree(root / str(number), ignore_errors=True)

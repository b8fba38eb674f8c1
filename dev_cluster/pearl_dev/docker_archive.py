"""Writes an image archive (`docker save` format) from layer archives, without a daemon."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EPOCH = "2026-01-01T00:00:00Z"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Image:
    """What an image starts, and as whom; `names` include the tag."""

    names: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    user: str = ""


def write(target: Path, image: Image, layers: Sequence[Path]) -> None:
    """Write the archive; the same layers and image give the same bytes."""
    digests = [_sha256(layer) for layer in layers]
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": {
                "Env": [PATH, *image.environment],
                "Entrypoint": list(image.entrypoint) or None,
                "Cmd": list(image.command) or None,
                "User": image.user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
            "history": [{"created": EPOCH, "created_by": "pearl-dev"} for _ in digests],
        }
    ).encode()
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    parts = [f"{digest}/layer.tar" for digest in digests]
    manifest = json.dumps([{"Config": name, "RepoTags": list(image.names), "Layers": parts}]).encode()
    fresh = target.with_suffix(".new")
    with tarfile.open(fresh, "w") as archive:
        for layer, part in zip(layers, parts, strict=True):
            with layer.open("rb") as data:
                _add(archive, part, layer.stat().st_size, data)
        for part, text in ((name, config), ("manifest.json", manifest)):
            _add(archive, part, len(text), io.BytesIO(text))
    fresh.replace(target)


def layer(target: Path, files: Mapping[str, Path | str]) -> None:
    """Write a layer: for each path in the image, a file to copy or the text of a symbolic link."""
    with tarfile.open(target, "w") as archive:
        for name, source in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(source, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, source
                archive.addfile(entry)
            else:
                entry.size, entry.mode = source.stat().st_size, 0o755
                with source.open("rb") as data:
                    archive.addfile(entry, data)


def _add(archive: tarfile.TarFile, name: str, size: int, data: io.BufferedIOBase) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    archive.addfile(entry, data)


def _sha256(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

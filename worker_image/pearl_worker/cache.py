"""Directories that are made once, keyed by their content, and then shared and never changed.

The time of an entry is when it was last used. When one is made, its neighbours that nobody used for two weeks go: a
machine that follows the project for months keeps no gigabytes of what it no longer builds.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

UNUSED_SECONDS = 14 * 86400.0


def digest(parts: Iterable[bytes]) -> str:
    """16 hex digits that identify the sequence `parts`."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()[:16]


def ensure_directory(target: Path, fill: Callable[[Path], None]) -> Path:
    """Return `target`, made by `fill(empty directory)` if it is not there yet.

    It appears by one rename, world-readable and complete or not at all; when two processes race, one result wins.
    """
    if target.is_dir():
        return used(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(draft)
        make_world_readable(draft)
        draft.rename(target)
    except OSError:
        if not target.is_dir():  # somebody else's rename came first is the only excuse
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    drop_unused(target)
    return target


def used(entry: Path) -> Path:
    """Note that a cache entry was used now."""
    with contextlib.suppress(OSError):  # a cache that only others may write
        os.utime(entry)
    return entry


def drop_unused(entry: Path, pattern: str = "*", *, keep: int = 1, unused_seconds: float = UNUSED_SECONDS) -> None:
    """Remove neighbours of `entry` that nobody used for long, except the `keep` last used of all."""
    found = [(path.lstat().st_mtime, path) for path in used(entry).parent.glob(pattern) if not path.is_symlink()]
    for at, path in sorted(found, reverse=True)[keep:]:
        if path != entry and time.time() - at > unused_seconds:
            _remove(path)


def no_space(folder: Path, needed_gib: float) -> str | None:
    """What to tell the user where the disk of `folder` has less room than this, else None."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / 2**30
    if free >= needed_gib:
        return None
    return f"{needed_gib:g} GiB are needed at {folder} and {free:.1f} are free: make room, or set XDG_CACHE_HOME"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_world_readable(root: Path) -> None:
    """Let every user read (and enter) what lies under `root`; pods do not run as the user who made it."""
    for directory, _, files in os.walk(root):
        _add_mode(Path(directory), 0o555)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                _add_mode(path, 0o444)


def _add_mode(path: Path, wanted: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & wanted != wanted:
        path.chmod(mode | wanted)


def say(text: str) -> None:
    """Progress of a command-line tool; standard output is kept for its result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()

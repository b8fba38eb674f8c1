"""Directories that are made once, keyed by their content, and then shared and never changed."""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


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
        return target
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
    return target


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

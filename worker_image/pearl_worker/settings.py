"""Everything the worker reads from its environment, and nothing else in this package reads it."""

from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Root of what PEARL caches on this machine: `$XDG_CACHE_HOME/pearl`, by default `~/.cache/pearl`."""
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "pearl"

"""Where the development cluster keeps things; the only place that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = Path(__file__).resolve().parents[1]
"""The `dev_cluster` folder of the checkout: Go modules and manifests are read from it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders and the caller's environment.

    Attributes:
        cache: what can be made again: binaries, images, unpacked image layers.
        state: what belongs to clusters that exist now, one folder each.
        environment: the caller's variables, handed on to the programs that are started.
        reuse: name of a running cluster that tests should use instead of starting one.
    """

    cache: Path
    state: Path
    environment: Mapping[str, str]
    reuse: str | None = None

    @property
    def binaries(self) -> Path:
        """Built programs, one folder per content hash."""
        return self.cache / "bin"

    @property
    def images(self) -> Path:
        """Image archives, one file per content hash."""
        return self.cache / "images"

    @property
    def clusters(self) -> Path:
        """One folder per cluster that exists."""
        return self.state / "cluster"


def from_environment() -> Settings:
    """Settings from HOME, XDG_CACHE_HOME, XDG_STATE_HOME and PEARL_CLUSTER."""
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    state = Path(os.environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return Settings(
        cache=cache / "pearl",
        state=state / "pearl",
        environment=dict(os.environ),
        reuse=os.environ.get("PEARL_CLUSTER") or None,
    )

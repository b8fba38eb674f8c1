"""Tests here run against a real Kubernetes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loan_scene import Scene, opened

from pearl_dev.testing import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pearl_dev.handle import Cluster

__all__ = ["cluster"]


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A namespace for one test of loans."""
    with opened(cluster, request.node.name, tmp_path) as made:
        yield made

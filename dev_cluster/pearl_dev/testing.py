"""The pytest fixture `cluster`: one cluster for all tests of a run.

A `conftest.py` says `from pearl_dev.testing import cluster` to have it; several may, and
still share one cluster. It starts with the first test that asks for it and goes when
pytest ends. `PEARL_CLUSTER=NAME` uses a cluster that is already up, and leaves it.
"""

from __future__ import annotations

import pytest

from pearl_dev import binaries
from pearl_dev.cluster import Wanted, down, up
from pearl_dev.handle import Cluster, attach
from pearl_dev.progress import Progress
from pearl_dev.settings import Settings, from_environment

NAME = "test"
SHARED = pytest.StashKey[Cluster]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster of two nodes with four fake GPUs each, DNS and Prometheus."""
    stash = request.config.stash
    if SHARED not in stash:
        stash[SHARED] = _begin(request.config, from_environment())
    return stash[SHARED]


def _begin(config: pytest.Config, settings: Settings) -> Cluster:
    progress = Progress()
    if settings.reuse is not None:
        return attach(settings, settings.reuse, binaries.ensure(settings, progress))
    down(settings, NAME, progress)  # a run that was killed left it
    running = up(settings, Wanted(name=NAME), progress)
    config.add_cleanup(lambda: _end(settings, progress))
    return running


def _end(settings: Settings, progress: Progress) -> None:
    down(settings, NAME, progress)

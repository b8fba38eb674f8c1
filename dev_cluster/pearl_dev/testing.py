"""The pytest fixture `cluster`: one cluster for all tests of a run.

A `conftest.py` says `from pearl_dev.testing import cluster` to have it; several may, and
still share one cluster. It starts with the first test that asks for it and goes when
pytest ends. `PEARL_CLUSTER=NAME` uses a cluster that is already up, and leaves it.
"""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from typing import TextIO

import pytest

from pearl_dev import binaries
from pearl_dev.cluster import Wanted, down, up
from pearl_dev.errors import ClusterError
from pearl_dev.handle import Cluster, attach
from pearl_dev.progress import Progress
from pearl_dev.settings import Settings, from_environment

NAMES = ("test", "test-2", "test-3", "test-4")
"""Runs at the same time take different names, and so different clusters."""

SHARED = pytest.StashKey[Cluster]()


@dataclass(frozen=True, slots=True)
class Owned:
    """A name that is this run's as long as its lock is open."""

    name: str
    lock: TextIO


OWNED = pytest.StashKey[Owned]()


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
    if OWNED not in config.stash:
        config.stash[OWNED] = _own(settings)
        config.add_cleanup(config.stash[OWNED].lock.close)
    name = config.stash[OWNED].name
    down(settings, name, progress)  # a run that was killed left it
    running = up(settings, Wanted(name=name), progress)
    config.add_cleanup(lambda: _end(settings, name, progress))
    return running


def _own(settings: Settings) -> Owned:
    """Take the first name that no other run uses; the kernel frees it when this process ends."""
    settings.clusters.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        lock = (settings.clusters / f".{name}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return Owned(name, lock)
    raise ClusterError(f"{len(NAMES)} test runs use clusters now; wait for one, or set PEARL_CLUSTER to share one")


def _end(settings: Settings, name: str, progress: Progress) -> None:
    down(settings, name, progress)

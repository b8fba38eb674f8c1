"""Puts PEARL, a fleet and the scene on a cluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loans_chaos.emulated import engine_folder
from loans_chaos.scene import TRAINERS, Scene, forget_weights
from pearl_dev import binaries
from pearl_dev.cluster import Wanted, down, up
from pearl_dev.fleet import Api, Fleet, wait_for
from pearl_dev.handle import attach, find
from pearl_dev.product import NAMESPACE, install, prepare
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.handle import Cluster
    from pearl_dev.product import Installation

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.yaml"
RESERVED = 2


@contextmanager
def cluster(name: str, progress: Progress, *, monitoring: bool = False) -> Iterator[Cluster]:
    """The cluster of that name, or one that is there only for now."""
    settings = from_environment()
    if find(settings, name) is not None:
        yield attach(settings, name, binaries.ensure(settings, progress))
        return
    made = up(settings, Wanted(name=name, monitoring=monitoring), progress)
    try:
        yield made
    finally:
        down(settings, name, progress)


@contextmanager
def rollout(running: Cluster, *, real: bool, gpus: int) -> Iterator[tuple[Installation, Fleet]]:
    """PEARL installed, and the quickstart rollout with colocated workers of its own on so many GPUs, ready.

    `real`: with real vLLM. Else with emulated engines behind the same agents and the same guard.
    """
    progress = Progress()
    artifacts = prepare(from_environment(), progress)
    if not real:
        artifacts = replace(artifacts, engine=engine_folder(running.paths.root / "volumes" / "emulated"))
    installation = install(running, artifacts, progress)
    api = Api(running.kubeconfig)
    manifest = installation.manifest(QUICKSTART.read_text())
    manifest["metadata"]["namespace"] = NAMESPACE
    manifest["spec"]["capacity"]["reserved"]["gpus"] = gpus
    fleet = Fleet(api, NAMESPACE, manifest["metadata"]["name"])
    # A run that was killed left all of it, with the weights of its last update.
    running.kubectl("-n", TRAINERS, "delete", "pod", "--all", "--grace-period=1")
    api.delete(fleet.path)
    wait_for(lambda: not fleet.workers(), seconds=120, what="no worker of an earlier run is there")
    forget_weights(installation, fleet.name)
    fleet.apply(manifest)
    fleet.patch({"mode": "Colocated", "ratio": None})
    try:
        fleet.wait_ready(gpus, seconds=600)
        yield installation, fleet
    finally:
        api.delete(fleet.path)
        fleet.close()
        api.close()


@contextmanager
def stage(running: Cluster, *, real: bool, seed: int, group: bool = False) -> Iterator[Scene]:
    """That rollout with a trainer and light load."""
    with rollout(running, real=real, gpus=RESERVED) as (installation, fleet):
        scene = Scene(installation, fleet, turns_per_second=0.7, seed=seed, group=group)
        try:
            yield scene.open()
        finally:
            scene.load.stop()

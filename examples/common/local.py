"""A fresh local cluster with PEARL on it, rollouts on it, and the logs of all pods at the end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pearl_dev import cluster
from pearl_dev.fleet import Fleet, wait_for
from pearl_dev.product import NAMESPACE, Installation, install, prepare
from pearl_dev.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_dev.fleet import Api
    from pearl_dev.progress import Progress


def set_up(name: str, models: Sequence[str], progress: Progress) -> Installation:
    """A cluster `name` in place of the one that had this name."""
    settings = from_environment()
    artifacts = prepare(settings, progress, models)
    cluster.down(settings, name, progress)
    running = cluster.up(settings, cluster.Wanted(name=name, gpus=4), progress)
    return install(running, artifacts, progress)


def take_down(name: str, progress: Progress) -> None:
    """The cluster and all that it changed here."""
    cluster.down(from_environment(), name, progress)


def apply(installation: Installation, api: Api, manifest: Path) -> Fleet:
    """`kubectl apply` of a PearlRollout in place of an earlier run's; it starts from the model's own weights."""
    rollout = installation.manifest(manifest.read_text())
    rollout["metadata"]["namespace"] = NAMESPACE
    name = rollout["metadata"]["name"]
    fleet = Fleet(api, NAMESPACE, name)
    api.delete(fleet.path)
    wait_for(lambda: not fleet.workers(), seconds=120, what=f"workers of an earlier {name} are gone")
    for version in installation.weights_of(name).iterdir():
        shutil.rmtree(version) if version.is_dir() else version.unlink()
    fleet.apply(rollout)
    return fleet


def keep_logs(installation: Installation, folder: Path) -> None:
    """What every pod of PEARL wrote, one file each."""
    kubectl = installation.cluster.kubectl
    for namespace in (NAMESPACE, *installation.trainer_namespaces):
        pods = installation.cluster.get("-n", namespace, "pods")["items"]
        for name in (pod["metadata"]["name"] for pod in pods):
            (folder / f"{name}.log").write_text(
                kubectl("-n", namespace, "logs", name, "--all-containers", "--tail=-1", "--ignore-errors")
            )

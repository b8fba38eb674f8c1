"""Volumes from folders of this machine.

Every node sees the machine's folders under the same paths, so one folder can be a
volume for pods on any node, also for several at once. Pods meet it through a claim, as
on a real cluster: the `restricted` pod security level allows no host paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def local_volume(
    name: str,
    path: Path,
    namespace: str,
    *,
    read_only: bool = False,
    size: str = "100Gi",
) -> list[dict[str, Any]]:
    """Manifests of a PersistentVolume and of the claim that is bound to it.

    Args:
        name: of the claim; the volume is called `NAMESPACE-NAME`.
        path: an existing folder, absolute. Pods run as their own user: what they write
            to must be writable for others, what they read must be readable.
        namespace: where the claim lives.
        read_only: whether pods can only read; else any number of pods may write.
        size: what the claim says; nothing enforces it.

    Raises:
        ValueError: the path is not an existing absolute folder.
    """
    if not path.is_absolute() or not path.is_dir():
        raise ValueError(f"path {path}: use an absolute path of an existing folder")
    volume = f"{namespace}-{name}"
    modes = ["ReadOnlyMany"] if read_only else ["ReadWriteMany"]
    shared = {"accessModes": modes, "storageClassName": ""}
    labels = {"pearl.dev/local-volume": "true"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": labels},
            "spec": {
                **shared,
                "capacity": {"storage": size},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
                # Not `local`: its mounts would change the folder's owner to a pod's fsGroup.
                "hostPath": {"path": str(path), "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {**shared, "volumeName": volume, "resources": {"requests": {"storage": size}}},
        },
    ]

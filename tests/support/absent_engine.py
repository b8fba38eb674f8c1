"""What a chart's test in a real cluster needs of a namespace and a PearlRollout, with nothing that could serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def restricted_namespace(name: str) -> dict[str, Any]:
    """A namespace that enforces Pod Security `restricted`."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def rollout_of_absent_engine(namespace: str, **spec: Any) -> dict[str, Any]:
    """examples/quickstart.yaml with one worker whose image does not exist: its pod is made and never starts."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text())
    manifest["metadata"]["namespace"] = namespace
    manifest["spec"] |= {
        "model": {"name": "none", "uri": "none"},
        "engine": {"image": "docker.io/pearl/absent:1"},
        "capacity": {"reserved": {"gpus": 1}},
        "weights": {},
        "podTemplate": {"spec": {}},
        **spec,
    }
    return manifest

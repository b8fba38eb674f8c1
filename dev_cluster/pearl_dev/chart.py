"""The chart as helm renders it; no cluster is needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

from pearl_dev.settings import SOURCE
from pearl_dev.shell import run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHART: Final = SOURCE.parent / "charts/pearl"
NAMESPACE: Final = "rollouts"
"""Of the release."""
_KUBERNETES: Final = "1.37.2"


def render(helm: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Objects of the chart for some values; objects without a namespace get that of the release.

    Raises:
        CommandError: helm refuses the values; its output names them.
    """
    words = [helm, "template", "pearl", CHART, "--namespace", NAMESPACE, "--kube-version", _KUBERNETES, "--values", "-"]
    objects = [
        item for item in yaml.safe_load_all(run([str(word) for word in words], stdin=json.dumps(values))) if item
    ]
    for item in objects:
        item["metadata"].setdefault("namespace", NAMESPACE)
    return objects

"""The chart as helm renders it; no cluster is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pearl_dev import binaries
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment
from pearl_dev.shell import run

if TYPE_CHECKING:
    from pearl_dev.binaries import Binaries

CHART = Path(__file__).resolve().parents[2] / "charts/pearl"
NAMESPACE = "rollouts"

Helm = Callable[..., str]
Promtool = Callable[..., str]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def programs() -> Binaries:
    """What the development cluster builds."""
    return binaries.ensure(from_environment(), Progress(quiet=True))


@pytest.fixture(scope="session")
def promtool(programs: Binaries) -> Promtool:
    """Runs promtool, of the Prometheus that the development cluster runs."""
    return lambda *words: run([programs["promtool"], *words])


@pytest.fixture(scope="session")
def helm(programs: Binaries) -> Helm:
    """Runs helm."""
    program = programs["helm"]
    return lambda *words, values=None: run(
        [program, *words, *(["--values", "-"] if values is not None else [])],
        stdin=None if values is None else json.dumps(values),
    )


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """Objects of the chart, for some values."""

    def rendered(**values: Any) -> list[dict[str, Any]]:
        text = helm(
            "template", "pearl", str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.37.2", values=values
        )  # fmt: skip
        objects = [item for item in yaml.safe_load_all(text) if item]
        for item in objects:
            item["metadata"].setdefault("namespace", NAMESPACE)
        return objects

    return rendered

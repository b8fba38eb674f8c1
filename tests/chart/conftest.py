"""The chart as helm renders it, and what Prometheus thinks of its rules; no cluster is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pearl_dev import binaries, chart
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment
from pearl_dev.shell import run

if TYPE_CHECKING:
    from pearl_dev.binaries import Binaries

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
    return lambda *words: run([programs["helm"], *words])


@pytest.fixture(scope="session")
def render(programs: Binaries) -> Render:
    """Objects of the chart, for some values."""
    return lambda **values: chart.render(programs["helm"], values)

"""One in-memory cluster per test."""

from __future__ import annotations

import pytest
from fake_cluster import FakeAgents, FakeGateway, FakeKube, FakeKubelet, FakePrometheus, VirtualClock, World


@pytest.fixture
def world() -> World:
    kube = FakeKube(VirtualClock())
    return World(kube, FakeKubelet(kube), FakeGateway(kube), FakePrometheus(), FakeAgents(kube))

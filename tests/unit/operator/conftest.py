"""One in-memory cluster per test."""

from __future__ import annotations

import pytest
from fake_cluster import FakeAgents, FakeGateway, FakePrometheus, World

from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import FakeKube
from pearl_dev.virtual.kubelet import FakeKubelet


@pytest.fixture
def world() -> World:
    kube = FakeKube(VirtualClock())
    return World(kube, FakeKubelet(kube), FakeGateway(kube), FakePrometheus(), FakeAgents(kube))

"""Decisions from measurements: the shape follows the work, says why, and stands still when nothing is known."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from traffic import steady

from pearl_dev.fleet import wait_for
from pearl_dev.product import NAMESPACE
from pearl_planner.plan import plan
from pearl_planner.serialize import dumps, policy_from_json, snapshot_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

pytestmark = pytest.mark.cluster

work: Final = partial(steady, streams=6, sessions=True)
"""A trajectory that is not ended holds a context that a flip would lose: thousands of them would forbid every flip."""


@pytest.fixture
def automatic(quickstart: Fleet) -> Iterator[Fleet]:
    """Disaggregated with the ratio left to the planner, and quick to decide.

    Planned with SmolLM2's table: the tiny model's own decode steps hardly depend on the number of sequences.
    """
    quickstart.patch(
        {
            "mode": "Disaggregated",
            "ratio": None,
            "engine": {"table": "SmolLM2-135M/cpu"},
            "capacity": {"reserved": {"gpus": 3}},
            "policy": {"hysteresis": {"minDwellSeconds": 1}, "coalesceSeconds": 1},
        }
    )
    quickstart.wait_ready(3)
    yield quickstart
    quickstart.patch(
        {"engine": {"table": None}, "policy": {"hysteresis": {"minDwellSeconds": 30}, "coalesceSeconds": 15}}
    )


def debug_ring(fleet: Fleet, installation: Installation) -> list[dict[str, Any]]:
    """Recorded decisions of the operator, oldest first."""
    service = installation.cluster.get("-n", NAMESPACE, "service", "pearl-operator")
    url = f"http://{service['spec']['clusterIP']}:8090/debug/snapshot/{fleet.name}"
    answer = fleet.http.get(url)
    assert answer.status_code == 200, answer.text
    ring: list[dict[str, Any]] = answer.json()
    return ring


def test_the_shape_follows_the_work_as_predicted_and_says_why(automatic: Fleet, installation: Installation) -> None:
    fleet, cluster = automatic, installation.cluster
    with work(fleet, f"prefill-heavy-{time.time():.0f}", prompt_tokens=1500, max_tokens=2):
        wait_shape(fleet, "2P1D", "prefill-heavy")
    with work(fleet, f"decode-heavy-{time.time():.0f}", prompt_tokens=20, max_tokens=200):
        wait_shape(fleet, "1P2D", "decode-heavy")
        fleet.wait_roles({"prefill": 1, "decode": 2})
    assert fleet.status()["target"]["reason"] == "Applied"
    why = re.compile(r"disaggregated:1P2D: [0-9.]+ turns/s predicted against [0-9.]+ disaggregated:2P1D")
    events = cluster.get("-n", NAMESPACE, "events", "--field-selector", f"involvedObject.name={fleet.name}")
    assert any(why.search(event["message"]) for event in events["items"])
    log = cluster.kubectl("-n", NAMESPACE, "logs", "deployment/pearl-operator", "-c", "operator", "--tail=-1")
    assert any(why.search(line) and "Applied" in line for line in log.splitlines())
    assert any(character.isdigit() for character in fleet.status()["lastDecision"]["message"])
    recorded = [entry for entry in debug_ring(fleet, installation) if entry["plan"]["reason"] == "Applied"][-1]
    again = plan(snapshot_from_json(recorded["snapshot"]), policy_from_json(recorded["policy"]))
    assert dumps(again) == dumps(recorded["plan"]), "a recorded decision plans to the same bytes"


def wait_shape(fleet: Fleet, wanted: str, kind: str) -> None:
    """Until the target has this shape; else the error holds the last decision, which says what it was made of."""
    wait_for(
        lambda: shape(fleet) == wanted,
        seconds=240,
        what=f"{wanted} for {kind} work",
        last=lambda: f"{shape(fleet)}, {fleet.status()['lastDecision']}",
    )


def shape(fleet: Fleet) -> str:
    """Prefill and decode workers of the target, as `1P2D`."""
    roles = [slot["role"] for slot in fleet.status()["target"]["slots"]]
    return f"{roles.count('prefill')}P{roles.count('decode')}D"


def test_without_measurements_nothing_optional_changes_and_the_condition_says_so(
    automatic: Fleet, installation: Installation
) -> None:
    fleet, cluster = automatic, installation.cluster
    roles, pods = fleet.roles(), fleet.uids()
    fleet.patch({"metrics": {"staleAfterSeconds": 3}})
    cluster.kubectl("-n", "monitoring", "scale", "deployment/prometheus", "--replicas=0")
    _signal_gateway(installation, "STOP")
    try:
        condition = wait_for(
            lambda: c if (c := fleet.condition("MetricsAvailable")).get("status") == "False" else None,
            seconds=60,
            what="MetricsAvailable is False",
        )
        assert condition["reason"] in {"GatewayUnreachable", "PrometheusUnreachable", "Stale"}
        assert condition["message"]
        wait_for(
            lambda: fleet.status()["lastDecision"]["reason"] in {"StaleData", "NoData"},
            seconds=30,
            what="the decision says that data are missing",
        )
        assert (fleet.roles(), fleet.uids()) == (roles, pods)
    finally:
        _signal_gateway(installation, "CONT")
        cluster.kubectl("-n", "monitoring", "scale", "deployment/prometheus", "--replicas=1")
    wait_for(
        lambda: fleet.condition("MetricsAvailable").get("status") == "True",
        seconds=90,
        what="MetricsAvailable is True again",
    )
    fleet.patch({"metrics": {"staleAfterSeconds": 30}})


def _signal_gateway(installation: Installation, signal: str) -> None:
    """Stops or continues the gateway's process from its node; its pod stays as it is."""
    from pearl_dev.shell import run

    for node in installation.cluster.nodes:
        # The brackets keep the pattern from matching the command that holds it.
        run(node.enter(["sh", "-c", f"pkill -{signal} -f '[b]in/pearl-gateway' || true"]))

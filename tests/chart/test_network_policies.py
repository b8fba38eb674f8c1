"""Who may talk to whom, by evaluating the rendered NetworkPolicies as a network plugin would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Render = Callable[..., list[dict[str, Any]]]

RELEASE = "rollouts"
VALUES = {"trainerNamespaces": ["train-a", RELEASE], "clientNamespaceSelectors": [{"team": "rl"}]}


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    namespace_labels: tuple[tuple[str, str], ...] = ()


def component(name: str, namespace: str = RELEASE) -> Pod:
    return Pod(namespace, (("pearl.dev/component", name),))


OPERATOR = Pod(RELEASE, (("app.kubernetes.io/name", "pearl-operator"), ("app.kubernetes.io/instance", "pearl")))
GATEWAY = component("gateway")
WORKER = component("worker")
BORROWER = component("worker", "train-a")
TRAINER = Pod("train-a", (("app", "trainer"),))
AGENT = Pod("sandboxes", (), (("team", "rl"),))
FRAMEWORK = Pod(RELEASE, (("app", "framework"),))
PROMETHEUS = Pod("monitoring")
STRANGER = Pod("elsewhere")
WORKER_ELSEWHERE = component("worker", "elsewhere")


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_peer(peer: dict[str, Any], pod: Pod, policy_namespace: str) -> bool:
    assert set(peer) <= {"podSelector", "namespaceSelector"}
    if "namespaceSelector" in peer:
        names = {"kubernetes.io/metadata.name": pod.namespace, **dict(pod.namespace_labels)}
        if not selects(peer["namespaceSelector"], names):
            return False
    elif pod.namespace != policy_namespace:
        return False
    return selects(peer.get("podSelector", {}), dict(pod.labels))


def side_allows(policies: list[dict[str, Any]], pod: Pod, other: Pod, port: int, side: str) -> bool:
    """One direction for one pod: allowed where no policy selects it, or a rule of one that does says so."""
    applying = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace and selects(policy["spec"]["podSelector"], dict(pod.labels))
    ]
    if not applying:
        return True
    peers = {"Ingress": "from", "Egress": "to"}[side]
    return any(
        ("ports" not in rule or any(entry["port"] == port and entry["protocol"] == "TCP" for entry in rule["ports"]))
        and (peers not in rule or any(is_peer(peer, other, policy["metadata"]["namespace"]) for peer in rule[peers]))
        for policy in applying
        for rule in policy["spec"].get(side.lower(), [])
    )


def allowed(policies: list[dict[str, Any]], source: Pod, target: Pod, port: int) -> bool:
    return side_allows(policies, source, target, port, "Egress") and side_allows(
        policies, target, source, port, "Ingress"
    )


@pytest.fixture(scope="module")
def policies(render: Render) -> list[dict[str, Any]]:
    return [item for item in render(**VALUES) if item["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        (AGENT, GATEWAY, 8080),
        (FRAMEWORK, GATEWAY, 8080),
        (TRAINER, GATEWAY, 8080),
        (OPERATOR, GATEWAY, 8080),
        (GATEWAY, WORKER, 8000),
        (GATEWAY, WORKER, 8001),
        (GATEWAY, BORROWER, 8000),
        (OPERATOR, WORKER, 8001),
        (OPERATOR, BORROWER, 8001),
        (TRAINER, OPERATOR, 8090),
        (TRAINER, BORROWER, 8001),
        (WORKER, WORKER, 5600),
        (WORKER, BORROWER, 49321),
        (BORROWER, WORKER, 5600),
        (PROMETHEUS, OPERATOR, 8090),
        (PROMETHEUS, GATEWAY, 8080),
        (PROMETHEUS, WORKER, 8000),
        (OPERATOR, PROMETHEUS, 9090),
    ],
)
def test_what_the_product_needs_is_allowed(policies: list[dict[str, Any]], source: Pod, target: Pod, port: int) -> None:
    assert allowed(policies, source, target, port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        (STRANGER, GATEWAY, 8080),
        (STRANGER, OPERATOR, 8090),
        (STRANGER, WORKER, 8000),
        (WORKER_ELSEWHERE, WORKER, 8000),
        (AGENT, WORKER, 8000),
        (FRAMEWORK, WORKER, 8000),
        (TRAINER, BORROWER, 8000),
        (OPERATOR, WORKER, 8000),
        (WORKER, GATEWAY, 8080),
        (WORKER, OPERATOR, 8090),
        (WORKER, STRANGER, 80),
        (GATEWAY, STRANGER, 80),
        (PROMETHEUS, WORKER, 5600),
    ],
)
def test_nothing_else_is(policies: list[dict[str, Any]], source: Pod, target: Pod, port: int) -> None:
    assert not allowed(policies, source, target, port)


def test_policies_can_be_switched_off(render: Render) -> None:
    assert not [item for item in render(networkPolicy={"enabled": False}) if item["kind"] == "NetworkPolicy"]

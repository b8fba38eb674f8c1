"""What the chart tells the Prometheus operator: nothing unless asked, and where to find what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_api import names

if TYPE_CHECKING:
    from collections.abc import Callable

    Render = Callable[..., list[dict[str, Any]]]

KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_nothing_for_the_prometheus_operator_unless_asked(render: Render) -> None:
    assert not KINDS & {item["kind"] for item in render()}
    asked = render(monitoring={"alerts": {"enabled": True}, "labels": {"release": "kps"}})
    (rule,) = [item for item in asked if item["kind"] in KINDS]
    assert (rule["kind"], rule["metadata"]["labels"]["release"]) == ("PrometheusRule", "kps")


def test_monitors_find_operator_gateways_and_workers_of_this_release(render: Render) -> None:
    objects = render(monitoring={"scrape": {"enabled": True}}, trainerNamespaces=["train-a"])
    found = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] in KINDS}
    (service,) = [item for item in objects if item["kind"] == "Service"]
    assert found["pearl-operator"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in found["pearl-operator"]["endpoints"]] == [service["spec"]["ports"][0]["name"]]
    pods = {
        names.COMPONENT_GATEWAY: (["rollouts"], [names.PORT_NAME_HTTP]),
        names.COMPONENT_WORKER: (["rollouts", "train-a"], [names.PORT_NAME_ENGINE, names.PORT_NAME_AGENT]),
    }
    for component, (namespaces, ports) in pods.items():
        spec = found[f"pearl-{component}"]
        assert spec["selector"]["matchLabels"] == {names.LABEL_COMPONENT: component}
        assert spec["namespaceSelector"]["matchNames"] == namespaces
        assert [each["port"] for each in spec["podMetricsEndpoints"]] == ports
        for endpoint in spec["podMetricsEndpoints"]:
            last = endpoint["relabelings"][-1]
            assert (last["action"], last["sourceLabels"], last["regex"]) == ("keep", ["rollout_namespace"], "rollouts")

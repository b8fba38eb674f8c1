"""What the chart tells the Prometheus operator: nothing unless asked, and nothing about metrics that do not exist."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from pearl_api import names
from pearl_dev import binaries
from pearl_dev.monitoring.metrics import all_series
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Render = Callable[..., list[dict[str, Any]]]

KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
ALERTS = "charts/pearl/files/alerts.yaml"


@pytest.fixture
def alerts(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath / ALERTS


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


def test_every_metric_of_an_alert_exists(alerts: Path, render: Render) -> None:
    groups = yaml.safe_load(alerts.read_text())
    (rule,) = [item for item in render(monitoring={"alerts": {"enabled": True}}) if item["kind"] == "PrometheusRule"]
    assert rule["spec"] == groups
    for alert in groups["groups"][0]["rules"]:
        used = set(re.findall(r"\bpearl_\w+", alert["expr"]))
        assert used, alert["alert"]
        assert used <= all_series(), alert["alert"]


def test_prometheus_understands_the_alerts(alerts: Path, tmp_path: Path) -> None:
    (tmp_path / "prometheus.yml").write_text(json.dumps({"rule_files": [str(alerts)]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    program = binaries.ensure(from_environment(), Progress(quiet=True))["prometheus"]
    with subprocess.Popen([program, *words, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL) as server:
        try:
            (group,) = _rules(server, f"http://{address}/api/v1/rules")
        finally:
            server.terminate()
    assert [rule["name"] for rule in group["rules"]] == [
        rule["alert"] for rule in yaml.safe_load(alerts.read_text())["groups"][0]["rules"]
    ]


def _rules(server: subprocess.Popen[bytes], url: str) -> list[dict[str, Any]]:
    """Rule groups that Prometheus loaded; it ends at once where it does not understand them."""
    while server.poll() is None:
        try:
            with urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
                groups: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
        except (URLError, OSError):
            groups = []
        if groups:
            return groups
        time.sleep(0.05)
    raise AssertionError("Prometheus refuses the rules")

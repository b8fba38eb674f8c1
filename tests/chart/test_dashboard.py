"""The Grafana dashboard: as its generator gives it, read by Prometheus, of metrics and labels that exist."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pearl_dev.monitoring import dashboard
from pearl_dev.monitoring.metrics import all_metrics, all_series

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Render = Callable[..., list[dict[str, Any]]]
    Promtool = Callable[..., str]

FILE = "charts/pearl/files/dashboard.json"
OF_TARGETS = {"rollout_namespace", "rollout", "namespace"}
"""Labels that the chart's monitors give to every series."""
CHOSEN = {"$__rate_interval": "5m", "$namespace": "rl", "$rollout": "swe"}


def expressions() -> dict[str, str]:
    """PromQL as Grafana sends it, by panel and series."""
    model = json.loads(dashboard.text())
    found = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        for panel in model["panels"]
        for target in panel.get("targets", [])
    }
    for variable, value in CHOSEN.items():
        found = {name: expr.replace(variable, value) for name, expr in found.items()}
    return found


def variables() -> list[str]:
    return [each["definition"] for each in json.loads(dashboard.text())["templating"]["list"] if "definition" in each]


def test_the_file_is_what_the_generator_gives(request: pytest.FixtureRequest) -> None:
    assert (request.config.rootpath / FILE).read_text() == dashboard.text()


def test_a_config_map_for_grafanas_sidecar_only_where_it_is_asked_for(render: Render) -> None:
    assert not [item for item in render() if item["kind"] == "ConfigMap"]
    asked = render(monitoring={"dashboard": {"enabled": True, "annotations": {"grafana_folder": "RL"}}})
    (made,) = [item for item in asked if item["kind"] == "ConfigMap"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "RL"}
    assert made["data"] == {"pearl.json": dashboard.text()}


def test_prometheus_reads_every_expression(promtool: Promtool, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expr, "labels": {"panel": name}}
        for number, (name, expr) in enumerate(expressions().items())
    ]
    assert len(rules) == dashboard.text().count('"expr"')
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", "--lint-fatal", str(tmp_path / "rules.yaml"))


def test_every_metric_and_label_exists() -> None:
    labels = {name: set(metric.labels) for of in all_metrics().values() for metric in of for name in metric.series}
    for panel, expr in (expressions() | {text: text for text in variables()}).items():
        used = set(re.findall(r"\bpearl_\w+", expr))
        assert used, panel
        assert used <= all_series(), panel
        known = OF_TARGETS | {"le"}.union(*(labels[name] for name in used))
        by = {label for listed in re.findall(r"\bby \(([^)]*)\)", expr) for label in listed.split(", ")}
        matched = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', expr))
        legend = set(re.findall(r"{{(\w+)}}", panel))
        assert by | matched | legend <= known, panel
        assert legend <= by if by else True, panel


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard.text())["panels"]:
        place = panel["gridPos"]
        rows, columns = range(place["y"], place["y"] + place["h"]), range(place["x"], place["x"] + place["w"])
        cells = {(row, column) for row in rows for column in columns}
        assert not cells & taken, panel["title"]
        assert max(columns) < 24
        taken |= cells


@pytest.mark.parametrize(
    ("workers", "mode"),
    [({}, 0), ({"colocated": 3}, 1), ({"prefill": 1, "decode": 2}, 2), ({"colocated": 1, "decode": 1}, 3)],
)
def test_the_mode_is_told_by_what_is_wanted(
    promtool: Promtool, tmp_path: Path, workers: dict[str, int], mode: int
) -> None:
    labels = 'rollout_namespace="rl", rollout="swe", zone="elastic"'
    series = [
        {"series": f'pearl_workers_wanted{{{labels}, role="{role}"}}', "values": f"{count}x5"}
        for role, count in {**workers, "gone": 0}.items()
    ]
    samples = [{"labels": "{}", "value": mode}]
    check = {"expr": expressions()["Mode: mode"], "eval_time": "2m", "exp_samples": samples}
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [check]}]
    (tmp_path / "mode.yaml").write_text(yaml.safe_dump({"tests": tests}))
    promtool("test", "rules", str(tmp_path / "mode.yaml"))

"""The chart's alerts, by promtool: each fires on its symptom, after its time, and not on what only looks like it."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pearl_dev.monitoring.metrics import all_series

if TYPE_CHECKING:
    from collections.abc import Callable

    Render = Callable[..., list[dict[str, Any]]]
    Promtool = Callable[..., str]

CASES = Path(__file__).with_name("alert_cases.yaml")


@pytest.fixture(scope="module")
def groups(render: Render) -> list[dict[str, Any]]:
    """As the Prometheus operator would get them."""
    objects = render(monitoring={"alerts": {"enabled": True}})
    (rule,) = [item for item in objects if item["kind"] == "PrometheusRule"]
    assert rule["spec"].keys() == {"groups"}
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def rules(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By name."""
    found = [rule for group in groups for rule in group["rules"]]
    by_name = {rule["alert"]: rule for rule in found}
    assert len(by_name) == len(found)
    return by_name


def test_alerts_fire_and_stay_quiet_as_their_cases_say(
    groups: list[dict[str, Any]], promtool: Promtool, tmp_path: Path
) -> None:
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}))
    promtool("check", "rules", "--lint-fatal", str(tmp_path / "alerts.yaml"))
    promtool("test", "rules", shutil.copy(CASES, tmp_path))


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_nothing_ever_does(
    rules: dict[str, dict[str, Any]],
) -> None:
    fires: dict[str, int] = defaultdict(int)
    quiet: dict[str, int] = defaultdict(int)
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        expected = defaultdict(list)
        for check in case["alert_rule_test"]:
            expected[check["alertname"]] += check["exp_alerts"]
        for alert, found in expected.items():
            (fires if found else quiet)[alert] += 1
    assert fires.keys() == rules.keys()
    assert quiet.keys() == rules.keys()


def test_every_metric_of_an_alert_exists(rules: dict[str, dict[str, Any]]) -> None:
    for name, rule in rules.items():
        used = set(re.findall(r"\bpearl_\w+", rule["expr"]))
        assert used, name
        assert used <= all_series(), name

"""The query for DCGM's series, as Prometheus itself answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from pearl_operator.dcgm import expression

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Promtool = Callable[..., str]


def test_each_series_of_each_gpu_is_one_value_by_whatever_label_its_pod_is_told(
    promtool: Promtool, tmp_path: Path
) -> None:
    busy, used, old = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "dcgm_gpu_utilization"
    labels = 'namespace="rl",pod="swe-w0-0",UUID="GPU-1"'
    scraped = 'exported_namespace="rl",exported_pod="swe-w1-0",namespace="monitoring",pod="dcgm-x",gpu="0"'
    series = {
        f'{busy}{{{labels},prometheus="a"}}': 40,
        f'{busy}{{{labels},prometheus="b"}}': 50,
        f"{used}{{{labels}}}": 1024,
        f"{busy}{{{scraped}}}": 60,
        f"{used}{{{scraped}}}": 2048,
        f'{old}{{pod_namespace="rl",pod_name="swe-w2-0",pod="dcgm-y",namespace="monitoring",gpu="1"}}': 70,
        f'{busy}{{namespace="rl",pod="other-w0-0",UUID="GPU-2"}}': 80,
        f"DCGM_FI_DEV_GPU_TEMP{{{labels}}}": 90,
    }
    expected = {
        f"{busy}{{{labels}}}": 50,
        f"{used}{{{labels}}}": 1024,
        f"{busy}{{{scraped}}}": 60,
        f"{used}{{{scraped}}}": 2048,
        f'{old}{{pod_namespace="rl",pod_name="swe-w2-0",pod="dcgm-y",namespace="monitoring",gpu="1"}}': 70,
    }
    check = {
        "expr": expression("swe-w[0-9]+-[0-9]+"),
        "eval_time": "1m",
        "exp_samples": [{"labels": name, "value": value} for name, value in expected.items()],
    }
    case: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x2"} for name, value in series.items()],
        "promql_expr_test": [check],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    promtool("test", "rules", str(tmp_path / "case.yaml"))

"""What is told of metrics is made from what the processes export."""

from __future__ import annotations

from pearl_dev.monitoring.metrics import Metric, all_metrics
from pearl_dev.monitoring.reference import page


def test_metrics_are_read_from_the_registries_with_name_type_labels_and_meaning() -> None:
    found = all_metrics()
    restarts = "Processes of the gateway that died and were started again."
    assert Metric("pearl_gateway_process_restarts_total", "counter", ("rollout",), restarts) in found["Gateway"]
    assert Metric("pearl_worker_weight_version", "gauge", (), "Loaded weight version.") in found["Worker agent"]
    (reclaims,) = [metric for metric in found["Operator"] if metric.name == "pearl_loan_reclaim_seconds"]
    assert reclaims.labels == ("rollout_namespace", "rollout", "killed")
    assert reclaims.series == tuple(f"pearl_loan_reclaim_seconds_{part}" for part in ("bucket", "sum", "count"))
    assert all(metric.meaning.endswith(".") for metrics in found.values() for metric in metrics)


def test_the_reference_page_has_a_row_for_each_metric() -> None:
    row = "| `pearl_loan_phase_changes_total` | counter | `rollout_namespace`, `rollout`, `phase`, `next` | Changes of"
    assert row in page()
    for metrics in all_metrics().values():
        for metric in metrics:
            assert page().count(f"| `{metric.name}` |") == 1

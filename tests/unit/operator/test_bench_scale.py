"""The arithmetic of `make bench-scale`, on numbers that a person can add up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Exported

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from scale_churn import Fleet
from scale_numbers import Histogram, Reading, Window, cores_between, cpu_seconds, histogram, memory_bytes
from scale_page import MIB, Measured, Operated, rows, write_page

INF = float("inf")


def calls(count: float, bound: float = 0.1) -> Histogram:
    """All of them took less than `bound`."""
    return Histogram({bound: count, 1.0: count, INF: count})


def window(seconds: float, cpu: float, count: float, changes: int = 0) -> Window:
    return Window(seconds, cpu, calls(count), calls(count), calls(count), changes)


def operated(**changed: Any) -> Operated:
    usual: dict[str, Any] = {
        "start_seconds": 30.0,
        "idle": window(60, 2.4, 120),
        "churn": window(70, 35, 1140, changes=100),
        "rate": 2.0,
        "whole_seconds": 3.0,
        "deleted": 80,
        "nodes": 10,
        "noticed": 20,
        "left_behind": 1,
        "replaced": [0.1, 0.2, 0.3, 4.0],
        "samples": [(0.0, 10.0, 90 * MIB), (60.0, 12.4, 100 * MIB), (110.0, 47.4, 80 * MIB)],
        "churn_from": 60.0,
        "churn_to": 110.0,
    }
    return Operated(**usual | changed)


def measured(pearl: Operated) -> Measured:
    plain = operated(replaced=[1.0, 2.0])
    return Measured(nodes=10, gpus=80, rollouts=4, pods=20, rate=2, pearl=pearl, plain=plain, cores=2, load_before=0.0)


def test_quantiles_are_interpolated_inside_their_bucket() -> None:
    found = Histogram({0.1: 50, 1.0: 90, 2.0: 100, INF: 100})
    assert found.quantile(0.25) == pytest.approx(0.05)
    assert found.quantile(0.5) == pytest.approx(0.1)
    assert found.quantile(0.7) == pytest.approx(0.55)
    assert found.quantile(0.99) == pytest.approx(1.9)


def test_what_no_finite_bound_holds_is_at_least_the_last_one() -> None:
    assert Histogram({0.1: 50, INF: 100}).quantile(0.99) == 0.1
    assert Histogram({0.1: 0, INF: 0}).quantile(0.99) is None


def test_a_window_counts_only_what_is_new_in_it() -> None:
    before = Reading(at=10, cpu=3, calls=Histogram({0.1: 5, INF: 9}))
    after = Reading(at=30, cpu=8, calls=Histogram({0.1: 45, INF: 49}))
    found = Window.between(before, after, changes=4)
    assert (found.cores, found.calls_per_second) == (0.25, 2.0)
    assert found.calls.quantile(0.99) is not None
    assert found.calls.counts == {0.1: 40, INF: 40}


def test_series_of_a_page_are_added_up_by_the_labels_that_are_asked_for() -> None:
    registry = CollectorRegistry()
    made = Exported("pearl_call_seconds", "Of calls.", ("to", "method"), registry=registry, buckets=(0.1, 1))
    for to, method, seconds in (("api", "GET", 0.05), ("api", "PATCH", 0.5), ("gateway", "GET", 0.05)):
        made.labels(to, method).observe(seconds)
    found = histogram(generate_latest(registry).decode(), "pearl_call_seconds", to="api")
    assert found.counts == {0.1: 1, 1.0: 2, INF: 2}


def test_calls_per_change_leave_out_what_idle_time_has() -> None:
    idle = window(60, 2.4, 120)
    assert window(70, 35, 1140, changes=100).calls_per_change(idle) == pytest.approx(10.0)
    assert window(70, 35, 100, changes=100).calls_per_change(idle) == 0.0
    assert window(70, 35, 1140).calls_per_change(idle) is None


def test_cores_are_those_of_the_samples_between() -> None:
    samples = [(0.0, 1.0, 0), (2.0, 1.0, 0), (4.0, 2.0, 0), (6.0, 3.0, 0), (8.0, 9.0, 0)]
    assert cores_between(samples, 2, 6.5) == 0.5
    assert cores_between(samples, 3, 5) is None


def test_a_process_is_read_from_the_kernel() -> None:
    began = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < began + 0.05:
        pass
    assert memory_bytes(os.getpid()) > 10 * MIB


def pod(name: str, slot: int, **meta: object) -> dict[str, Any]:
    labels = {"pearl.dev/rollout": "r", "pearl.dev/slot": str(slot)}
    return {"metadata": {"name": name, "labels": labels, **meta}, "spec": {}, "status": {}}


def test_a_replacement_counts_from_the_deletion_of_the_pod_before_in_its_slot() -> None:
    fleet = Fleet()
    for slot in (0, 1):
        fleet.see("ADDED", pod(f"r-w{slot}-0", slot), now=0)
    fleet.deleted_at["r", "1"] = 10.0
    fleet.see("MODIFIED", pod("r-w1-0", 1, deletionTimestamp="2026-01-01T00:00:00Z"), now=10.1)
    fleet.see("MODIFIED", pod("r-w0-0", 0), now=10.2)
    fleet.see("ADDED", pod("r-w1-1", 1), now=10.5)
    fleet.see("MODIFIED", pod("r-w1-1", 1), now=11)
    assert fleet.replaced == [0.5]
    assert set(fleet.pods) == {"r-w0-0", "r-w1-1"}


def test_the_summary_has_what_is_compared_with_the_targets() -> None:
    summary = measured(operated()).summary()
    assert summary["internal_p99_seconds"] == pytest.approx(2 * 0.099)
    assert summary["api_p99_seconds"] == pytest.approx(0.099)
    assert summary["memory_bytes"] == 100 * MIB
    assert summary["idle_cores"] == pytest.approx(0.04)
    assert summary["churn_cores"] == pytest.approx(0.7)
    assert summary["idle_api_calls_per_second_per_cr"] == pytest.approx(0.5)
    assert summary["api_calls_per_change"] == pytest.approx(10.0)
    assert summary["plain"]["replaced_p50_seconds"] == 2.0


def test_a_target_that_is_missed_is_named_on_the_page(tmp_path: Path) -> None:
    good, bad = measured(operated()), measured(operated(idle=window(60, 4.8, 120)))
    assert good.good
    assert (bad.good, bad.missed()) == (False, ["idle_cores"])
    write_page(bad, tmp_path)
    page = (tmp_path / "scale.md").read_text()
    assert "Missed: `idle_cores`." in page
    assert (tmp_path / "scale.svg").stat().st_size > 1000
    assert all(f"| {what} |" in page for what, _, _ in rows(bad))
    assert good.as_dict()["pearl"]["churn"]["calls"] == {"0.1": 1140, "1": 1140, "inf": 1140}

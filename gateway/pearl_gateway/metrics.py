"""Prometheus text of the process, made from the statistics at the moment of the scrape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pearl_api.wire.gateway import Counters
from pearl_gateway.tally import by_cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from pearl_api.wire.gateway import GatewayStats


@dataclass(frozen=True, slots=True)
class Processes:
    """Of a gateway that has several."""

    count: int
    away: int
    restarts: int


_TITLES: Final = {
    **{name: field.description or "" for name, field in Counters.model_fields.items()},
    "mixed_versions": "Hand-offs whose decode worker changed weights between the check and the request.",
    "storage_errors": "Lines that could not be written: what they hold is in memory only, and lost with the process.",
}


def render_metrics(stats: GatewayStats, totals: Mapping[str, int], processes: Processes | None = None) -> bytes:
    """The text exposition; `totals` as of `Tally.totals`."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(stats, totals, processes))
    return generate_latest(registry)


class _Snapshot:
    def __init__(self, stats: GatewayStats, totals: Mapping[str, int], processes: Processes | None) -> None:
        self._stats = stats
        self._totals = totals
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        return families(self._stats, self._totals, self._processes)


def families(stats: GatewayStats, totals: Mapping[str, int], processes: Processes | None) -> Iterator[Metric]:
    """Everything that the gateway exports."""
    yield from _counters(stats.rollout, totals)
    yield from _gauges(stats)
    if processes is not None:
        yield from _processes(stats.rollout, processes)


def _counters(rollout: str, totals: Mapping[str, int]) -> Iterator[Metric]:
    for name, value in totals.items():
        if "." in name:
            continue
        family = CounterMetricFamily(f"pearl_gateway_{name}", _TITLES[name], labels=["rollout"])
        family.add_metric([rollout], value)
        yield family
    for name, kind in (("prefix_broken", "breaks"), ("degraded_turns", "degraded")):
        title = f"`pearl_gateway_{name}_total` by cause."
        family = CounterMetricFamily(f"pearl_gateway_{name}_by_cause", title, labels=["rollout", "cause"])
        for cause, count in by_cause(totals, kind).items():
            family.add_metric([rollout, cause], count)
        yield family


def _gauges(stats: GatewayStats) -> Iterator[Metric]:
    live = GaugeMetricFamily("pearl_gateway_live", "Live trajectories by state.", labels=["rollout", "state"])
    for state, count in stats.live.model_dump().items():
        live.add_metric([stats.rollout, state], count)
    yield live
    labels = ["rollout", "pod", "role"]
    flight = GaugeMetricFamily("pearl_gateway_worker_in_flight", "Requests on a worker.", labels=labels)
    ready = GaugeMetricFamily("pearl_gateway_worker_ready", "1 if turns may go there.", labels=labels)
    for worker in stats.workers:
        flight.add_metric([stats.rollout, worker.pod, worker.role], worker.in_flight)
        ready.add_metric([stats.rollout, worker.pod, worker.role], int(worker.ready))
    yield flight
    yield ready


def _processes(rollout: str, processes: Processes) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "pearl_gateway_process_restarts",
        "Processes of the gateway that died and were started again.",
        labels=["rollout"],
    )
    restarts.add_metric([rollout], processes.restarts)
    yield restarts
    states = GaugeMetricFamily("pearl_gateway_processes", "Processes of the gateway.", labels=["rollout", "state"])
    states.add_metric([rollout, "up"], processes.count - processes.away)
    states.add_metric([rollout, "away"], processes.away)
    yield states

"""Prometheus text of the process, made from the statistics at the moment of the scrape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
        stats, rollout = self._stats, self._stats.rollout
        for name, value in self._totals.items():
            if "." in name:
                continue
            family = CounterMetricFamily(
                f"pearl_gateway_{name}", f"Total {name.replace('_', ' ')}.", labels=["rollout"]
            )
            family.add_metric([rollout], value)
            yield family
        for name, kind in (("prefix_broken", "breaks"), ("degraded_turns", "degraded")):
            title = f"Total {name.replace('_', ' ')}, by cause."
            family = CounterMetricFamily(f"pearl_gateway_{name}_by_cause", title, labels=["rollout", "cause"])
            for cause, count in by_cause(self._totals, kind).items():
                family.add_metric([rollout, cause], count)
            yield family
        live = GaugeMetricFamily("pearl_gateway_live", "Live trajectories or turns.", labels=["rollout", "state"])
        for state, count in stats.live.model_dump().items():
            live.add_metric([rollout, state], count)
        yield live
        labels = ["rollout", "pod", "role"]
        flight = GaugeMetricFamily("pearl_gateway_worker_in_flight", "Requests on a worker.", labels=labels)
        ready = GaugeMetricFamily("pearl_gateway_worker_ready", "1 if turns may go there.", labels=labels)
        for worker in stats.workers:
            flight.add_metric([rollout, worker.pod, worker.role], worker.in_flight)
            ready.add_metric([rollout, worker.pod, worker.role], int(worker.ready))
        yield flight
        yield ready
        if self._processes is not None:
            yield from _processes(rollout, self._processes)


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

"""Every metric of operator, gateway and worker agent, read from what these export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pearl_api.names import Activity
from pearl_api.wire.gateway import Counters, GatewayStats, LiveStates
from pearl_api.wire.worker import WorkerPhase, WorkerState
from pearl_gateway import metrics as gateway
from pearl_gateway.tally import Tally
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.loans.metrics import LoanMetrics
from pearl_operator.metrics import Metrics
from pearl_worker import metrics as worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

_SERIES: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it is queried."""

    name: str
    """A counter's with `_total`."""
    kind: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series in Prometheus."""
        if self.kind == "counter":
            return (self.name,)
        return tuple(self.name + suffix for suffix in _SERIES[self.kind])


def all_metrics() -> dict[str, list[Metric]]:
    """By the process that exports them."""
    return {
        "Operator": [
            each for of in (Metrics(), LoanMetrics(), Calls(SystemClock())) for each in _registered(of.registry)
        ],
        "Gateway": [_of(family) for family in _of_gateway()],
        "Worker agent": [_of(family) for family in _of_worker()],
    }


def all_series() -> set[str]:
    """Names of all series that PEARL's processes export."""
    return {name for metrics in all_metrics().values() for metric in metrics for name in metric.series}


def _registered(registry: CollectorRegistry) -> Iterator[Metric]:
    """Of collectors that have no samples yet: their label names are not in what they collect."""
    for collector in registry._collector_to_names:  # noqa: SLF001 - the library has no other list of them
        for family in collector.collect():
            yield _metric(family, collector._labelnames)  # type: ignore[attr-defined] # noqa: SLF001


def _of(family: Family) -> Metric:
    return _metric(family, family._labelnames)  # type: ignore[attr-defined] # noqa: SLF001 - nor of an empty family


def _metric(family: Family, labels: Iterable[str]) -> Metric:
    name = family.name + ("_total" if family.type == "counter" else "")
    return Metric(name, family.type, tuple(labels), family.documentation)


def _of_gateway() -> Iterator[Family]:
    nothing = GatewayStats(
        rollout="",
        uptime_seconds=0.0,
        profile=None,
        profile_age_seconds=None,
        batch=None,
        unfinished=[],
        live=LiveStates(),
        workers=[],
        counters=Counters(),
        window=None,
        local_append_tokens=0,
        weights_wanted=None,
        weights_min=None,
        weights_max=None,
    )
    return gateway.families(nothing, Tally().totals(), gateway.Processes(count=1, away=0, restarts=0))


def _of_worker() -> Iterator[Family]:
    state = WorkerState(pod_uid="", phase=WorkerPhase.COLD, activity=Activity.ACTIVE, engine_starts=0)
    return worker.families(state, kills=0)

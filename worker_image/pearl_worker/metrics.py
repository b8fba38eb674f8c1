"""What the agent exports to Prometheus: a view of the worker's state, read when it is scraped."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pearl_api.wire.worker import WorkerPhase, WorkerState
from pearl_worker.worker import Worker


class WorkerCollector(Collector):
    """Turns `Worker.state()` into metrics; keeps no numbers of its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """One sample of everything."""
        return families(self._worker.state(), self._worker.engine.kills)


def families(state: WorkerState, kills: int) -> Iterator[Metric]:
    """Everything that the agent exports. One whose value is unknown has no sample."""
    phases = GaugeMetricFamily("pearl_worker_phase", "1 for the present phase, 0 for the others.", labels=["phase"])
    for phase in WorkerPhase:
        phases.add_metric([phase.value], float(phase is state.phase))
    yield phases
    yield CounterMetricFamily("pearl_worker_engine_starts", "Engines started.", value=state.engine_starts)
    yield CounterMetricFamily("pearl_worker_engine_kills", "Engines killed.", value=kills)
    loan = state.loan
    gauges = {
        "pearl_worker_weight_version": ("Loaded weight version.", state.weight_version),
        "pearl_worker_wanted_version": ("Weight version in the manifest.", state.wanted_version),
        "pearl_worker_start_seconds": ("Duration of the last engine start.", state.start_seconds),
        "pearl_worker_weight_load_seconds": ("Duration of the last weight update.", state.weight_load_seconds),
        "pearl_worker_wake_seconds": ("Duration of the last wake-up, weights included.", state.wake_seconds),
        "pearl_worker_kill_seconds": ("Longest kill of an engine.", state.kill_seconds),
        "pearl_worker_loan_epoch": ("Highest loan epoch seen.", loan.epoch if loan else None),
        "pearl_worker_loan_granted": ("1 under a live grant.", float(loan.granted) if loan else None),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)


def registry(worker: Worker) -> CollectorRegistry:
    """A registry of this worker alone."""
    result = CollectorRegistry()
    result.register(WorkerCollector(worker))
    return result

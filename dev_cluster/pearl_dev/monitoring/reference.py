"""The page `docs/reference/metrics.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pearl_api.reference import table
from pearl_dev.monitoring.metrics import all_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.monitoring.metrics import Metric

_GENERATED: Final = "<!-- Generated from the processes' registries by `make docs`; change those, not this file. -->"
_INTRO: Final = """Names are as they are queried: a counter ends in `_total`, a histogram `x` has the series `x_bucket`,
`x_sum` and `x_count`. A series whose value is unknown is absent, never 0. Engines export vLLM's own metrics beside
these."""
_WHERE: Final = {
    "Operator": "`GET /metrics` on port 8090 (`http`). The series of a rollout go when it goes.",
    "Gateway": "`GET /metrics` on port 8080 (`http`), one answer for all processes of a gateway. "
    "`pearl_gateway_process…` only where `spec.gateway.processes` is above 1.",
    "Worker agent": "`GET /metrics` on port 8001 (`agent`) of every worker pod.",
}


def page() -> str:
    """Markdown, one table for each process."""
    parts = [_GENERATED, "# Metrics", _INTRO]
    for process, metrics in all_metrics().items():
        header = ("name", "type", "labels", "meaning")
        parts += [f"## {process}", _WHERE[process], table(header, _rows(metrics))]
    return "\n\n".join(parts) + "\n"


def _rows(metrics: list[Metric]) -> Iterator[tuple[str, ...]]:
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"`{metric.name}`", metric.kind, labels, metric.meaning

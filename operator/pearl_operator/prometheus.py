"""The `Prometheus` port: engine series of a rollout's pods, and what DCGM tells of their GPUs, by PromQL.

Series are found by the target labels `namespace` and `pod` that every usual scrape configuration sets, and by the
names that worker pods have. A series that an engine version does not export is unknown (None), never 0. Two servers
that scrape the same pods (a pair for availability) count once.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pearl_operator import dcgm
from pearl_operator.calls import Receiver
from pearl_operator.errors import Unavailable
from pearl_operator.ports import EngineSamples
from pearl_operator.vector import samples_in
from pearl_planner.types import WorkerMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.rollout import EngineQueries, PrometheusSpec
    from pearl_operator.http_json import HttpJson
    from pearl_operator.ports import RolloutKey

WINDOW: Final = "1m"
"""Of rates; at least two scrapes of a usual configuration."""
ALIASES: Final = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds_sum": "vllm:time_per_output_token_seconds_sum",
    "vllm:inter_token_latency_seconds_count": "vllm:time_per_output_token_seconds_count",
}
"""Names of series by which older engines export them."""
_REPLICAS: Final = "prometheus, prometheus_replica, replica"
"""External labels by which the servers of a pair are told apart; no usual target label."""
PODS: Final = "$pods"
"""Stands for the label matchers of a rollout's pods."""


def _gauge(how: str, name: str) -> str:
    return _of_pods(how, [f"{each}{{{PODS}}}" for each in _names(name)])


def _rate(name: str) -> str:
    return _of_pods("sum", [f"rate({each}{{{PODS}}}[{WINDOW}])" for each in _names(name)])


def _of_pods(how: str, either: list[str]) -> str:
    # Joined by pod, because a pod whose labels changed has two series for a while.
    return f"{how} by (namespace, pod) (max without ({_REPLICAS}) ({' or '.join(either)}))"


def _names(name: str) -> list[str]:
    return [name, ALIASES[name]] if name in ALIASES else [name]


QUERIES: Final = {
    "running": _gauge("sum", "vllm:num_requests_running"),
    "waiting": _gauge("sum", "vllm:num_requests_waiting"),
    "kv_usage": _gauge("max", "vllm:kv_cache_usage_perc"),
    "generation_tokens_per_second": _rate("vllm:generation_tokens_total"),
    "prompt_tokens_per_second": _rate("vllm:prompt_tokens_total"),
    "inter_token_seconds": (
        f"{_rate('vllm:inter_token_latency_seconds_sum')} / {_rate('vllm:inter_token_latency_seconds_count')}"
    ),
}
"""PromQL by field of `WorkerMetrics`."""
SAMPLED_AT: Final = f"max by (namespace, pod) (timestamp(vllm:num_requests_running{{{PODS}}}))"


@dataclass(frozen=True, slots=True)
class PrometheusClient:
    """See `ports.Prometheus`."""

    http: HttpJson
    _contexts: dict[str, tuple[int, ssl.SSLContext]] = field(default_factory=dict)
    """By file of certificates: when it was changed, and what it holds."""

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        """All queries at once; one that fails makes the whole read fail."""
        pods = f'pod=~"{_names_of_pods(rollout)}"'
        asked = expressions(spec.queries)
        answers = await self._ask(spec, [expression.replace(PODS, pods) for expression in asked.values()])
        series = dict(zip(asked, map(by_pod, answers), strict=True))
        sampled_at = series.pop("sampled_at")
        known = sorted(set().union(*series.values()))
        return EngineSamples(
            by_pod={pod: WorkerMetrics(**{name: found.get(pod) for name, found in series.items()}) for pod in known},
            sampled_at=sampled_at,
        )

    async def gpus(self, rollout: RolloutKey, spec: PrometheusSpec) -> list[dcgm.GpuSample]:
        """What DCGM's exporter tells; empty where nobody scrapes one."""
        (answer,) = await self._ask(spec, [dcgm.expression(_names_of_pods(rollout))])
        return dcgm.samples(answer)

    async def _ask(self, spec: PrometheusSpec, asked: Iterable[str]) -> list[bytes]:
        how: dict[str, Any] = {
            "token": await _token(spec.bearer_token_file),
            "headers": spec.headers,
            "context": await self._context(spec.ca_file),
        }
        return await asyncio.gather(*(self._query(spec.url, expression, **how) for expression in asked))

    async def _query(self, base: str, expression: str, **how: Any) -> bytes:
        url = base.rstrip("/") + "/api/v1/query"
        return await self.http.call(Receiver.PROMETHEUS, "GET", url, params={"query": expression}, **how)

    async def _context(self, path: str | None) -> ssl.SSLContext | None:
        if path is None:
            return None
        try:
            changed = (await asyncio.to_thread(Path(path).stat)).st_mtime_ns
            known = self._contexts.get(path)
            if known is None or known[0] != changed:
                known = changed, await asyncio.to_thread(ssl.create_default_context, cafile=path)
                self._contexts[path] = known
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"metrics.prometheus.caFile {path!r} cannot be read: {error}") from error
        return known[1]


def _names_of_pods(rollout: RolloutKey) -> str:
    return f"{rollout.name}-w[0-9]+-[0-9]+|.+-borrower-[0-9]+"


def expressions(own: EngineQueries) -> dict[str, str]:
    """PromQL by field of `WorkerMetrics`, and of `sampled_at`; the user's own where there are some."""
    usual = {**QUERIES, "sampled_at": SAMPLED_AT}
    return {name: getattr(own, name) or expression for name, expression in usual.items()}


def by_pod(raw: bytes) -> dict[str, float]:
    """An instant vector of the query API as value by `namespace/pod`; NaN and infinity are no samples.

    Raises:
        Unavailable: The answer is none of Prometheus' query API.
    """
    values: dict[str, float] = {}
    for metric, value in samples_in(raw):
        pod = _pod_of(metric)
        if pod:
            values[pod] = max(values.get(pod, value), value)
    return values


def _pod_of(metric: dict[str, str]) -> str | None:
    namespace, pod = metric.get("namespace"), metric.get("pod")
    return f"{namespace}/{pod}" if namespace and pod else None


async def _token(path: str | None) -> str | None:
    """Read every time, because projected tokens rotate."""
    if path is None:
        return None
    try:
        return (await asyncio.to_thread(Path(path).read_text)).strip()
    except OSError as error:
        raise Unavailable(f"metrics.prometheus.bearerTokenFile {path!r} cannot be read: {error}") from error

"""The `Prometheus` port: engine series of a rollout's pods, by PromQL.

Series are found by the target labels `namespace` and `pod` that every usual scrape configuration sets, and by the
names that worker pods have. A series that an engine version does not export is unknown (None), never 0.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pearl_operator.errors import Unavailable
from pearl_operator.ports import EngineSamples
from pearl_planner.types import WorkerMetrics

if TYPE_CHECKING:
    from pearl_api.rollout import PrometheusSpec
    from pearl_operator.http_json import HttpJson
    from pearl_operator.ports import RolloutKey

WINDOW: Final = "1m"
"""Of rates; at least two scrapes of a usual configuration."""
_BY: Final = "by (namespace, pod)"
QUERIES: Final = {
    "running": f"sum {_BY} (vllm:num_requests_running{{%s}})",
    "waiting": f"sum {_BY} (vllm:num_requests_waiting{{%s}})",
    "kv_usage": f"max {_BY} (vllm:kv_cache_usage_perc{{%s}} or vllm:gpu_cache_usage_perc{{%s}})",
    "generation_tokens_per_second": f"sum {_BY} (rate(vllm:generation_tokens_total{{%s}}[{WINDOW}]))",
    "prompt_tokens_per_second": f"sum {_BY} (rate(vllm:prompt_tokens_total{{%s}}[{WINDOW}]))",
    "inter_token_seconds": (
        f"sum {_BY} (rate(vllm:inter_token_latency_seconds_sum{{%s}}[{WINDOW}]))"
        f" / sum {_BY} (rate(vllm:inter_token_latency_seconds_count{{%s}}[{WINDOW}]))"
    ),
}
"""PromQL by field of `WorkerMetrics`. Summed by pod, because a pod whose labels changed has two series for a while."""
_NEWEST: Final = f"max {_BY} (timestamp(vllm:num_requests_running{{%s}}))"


@dataclass(frozen=True, slots=True)
class PrometheusClient:
    """See `ports.Prometheus`."""

    http: HttpJson

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        """All queries at once; one that fails makes the whole read fail."""
        selector = f'pod=~"{rollout.name}-w[0-9]+-[0-9]+|.+-borrower-[0-9]+"'
        token = await _token(spec.bearer_token_file)
        expressions = [*QUERIES.values(), _NEWEST]
        answers = await asyncio.gather(
            *(self._query(spec.url, expression.replace("%s", selector), token) for expression in expressions)
        )
        *series, newest = answers
        pods = set().union(*series)
        return EngineSamples(
            by_pod={
                pod: WorkerMetrics(**{name: found.get(pod) for name, found in zip(QUERIES, series, strict=True)})
                for pod in sorted(pods)
            },
            newest_at=max(newest.values(), default=None),
        )

    async def _query(self, base: str, expression: str, token: str | None) -> dict[str, float]:
        """Value by `namespace/pod`."""
        url = base.rstrip("/") + "/api/v1/query"
        raw = await self.http.call("GET", url, token=token, params={"query": expression})
        return by_pod(raw)


def by_pod(raw: bytes) -> dict[str, float]:
    """An instant vector of the query API as value by `namespace/pod`; NaN and infinity are no samples.

    Raises:
        Unavailable: The answer is none of Prometheus' query API.
    """
    try:
        result = json.loads(raw)["data"]["result"]
        samples = [(_pod_of(item["metric"]), float(item["value"][1])) for item in result]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Unavailable(f"Prometheus: unexpected answer ({error!r})") from error
    values: dict[str, float] = {}
    for pod, value in samples:
        if pod and math.isfinite(value):
            values[pod] = values.get(pod, 0.0) + value
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

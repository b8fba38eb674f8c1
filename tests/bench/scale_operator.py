"""The real operator for the scale bench: `pearl-operator` with a resolver that finds the fakes.

    python tests/bench/scale_operator.py FAKES_PORT METRICS_PORT

Settings are in the environment, as always. A second metrics port tells how long kopf took from a watch event until the
operator's handler had it, which the operator itself cannot know.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from kopf._cogs.clients import watching
from prometheus_client import CollectorRegistry, Histogram, start_http_server

from pearl_operator import logs, settings
from pearl_operator.index import Index
from pearl_operator.main import serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pearl_operator.kinds import Kind
    from pearl_operator.ports import PodAddress, RolloutKey

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Fakes:
    """Everything answers at one port, told apart by the path."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def agent(self, pod: PodAddress) -> str | None:
        """By UID."""
        return f"{self._base}/agents/{pod.uid}" if pod.ip else None

    def gateway(self, rollout: RolloutKey) -> str:
        """By name."""
        return f"{self._base}/gateways/{rollout.name}"


def time_events(port: int) -> None:
    """Notes when an event came out of the watch's connection, and when it reached the index."""
    registry = CollectorRegistry()
    heard = Histogram("scale_heard_seconds", "Of watch events inside kopf.", registry=registry, buckets=BUCKETS)
    received: dict[tuple[str, str], float] = {}
    watch, put = watching.infinite_watch, Index.put

    async def timed_watch(**options: Any) -> AsyncIterator[Any]:
        async for event in watch(**options):
            if isinstance(event, dict) and event["type"] in ("ADDED", "MODIFIED"):
                received[_version(event["object"])] = time.monotonic()
            yield event

    def timed_put(self: Index, kind: Kind, body: dict[str, Any]) -> Any:
        at = received.pop(_version(body), None)
        if at is not None:
            heard.observe(time.monotonic() - at)
        return put(self, kind, body)

    watching.infinite_watch = timed_watch
    Index.put = timed_put  # type: ignore[method-assign,assignment]
    start_http_server(port, addr="127.0.0.1", registry=registry)


def _version(body: dict[str, Any]) -> tuple[str, str]:
    return body["metadata"]["uid"], body["metadata"]["resourceVersion"]


if __name__ == "__main__":
    logs.configure()
    chosen = settings.from_env()
    logs.set_level(chosen.log_level)
    time_events(int(sys.argv[2]))
    sys.exit(asyncio.run(serve(chosen, Fakes(int(sys.argv[1])))))

"""Calls to others: when each has ended, a line of the log (DEBUG) with its start and duration, and a histogram.

`KubeClient` and `HttpJson` tell of every request they send. kopf's watches are its own.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram

from pearl_operator.clock import to_rfc3339
from pearl_operator.errors import described

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_operator.ports import Clock

log = logging.getLogger("pearl.calls")


class Receiver(StrEnum):
    """Who is called."""

    API_SERVER = "apiserver"
    GATEWAY = "gateway"
    AGENT = "agent"
    PROMETHEUS = "prometheus"


@dataclass(slots=True)
class Call:
    """One call under way."""

    answer: str = "none"
    """HTTP status of the answer; `none` until it came."""


class Calls:
    """The calls of one process; their series are in a registry of their own that the operator's takes in."""

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._seconds = Histogram(
            "pearl_call_seconds",
            "Duration of calls to `apiserver`, `gateway`, `agent`, `prometheus`; `answer`: HTTP status or `none`.",
            ("to", "method", "answer"),
            registry=self.registry,
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 6, 10),
        )

    @contextmanager
    def told(self, to: Receiver, method: str, url: str) -> Iterator[Call]:
        """The block sends the request, reads the answer and says which it was; tokens and bodies are never told."""
        call, started, began = Call(), self._clock.now(), self._clock.monotonic()
        failure: str | None = None
        try:
            yield call
        except BaseException as error:
            call.answer, failure = "none", described(error)
            raise
        finally:
            seconds = self._clock.monotonic() - began
            self._seconds.labels(to.value, method, call.answer).observe(seconds)
            if log.isEnabledFor(logging.DEBUG):
                what = {"to": to.value, "method": method, "url": url, "answer": call.answer}
                when = {"started": to_rfc3339(started), "seconds": round(seconds, 6)}
                log.debug("call", extra={**what, **when, **({"error": failure} if failure else {})})

"""Calls to others: when each has ended, a line of the log (DEBUG) with its start and duration, and a histogram.

`KubeClient` and `HttpJson` tell of every request they send, `watch_calls` of kopf's, whose watches last for minutes:
they are told when they begin and when they end, and counted all the while.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram

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


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and when it was sent."""

    to: Receiver
    method: str
    url: str
    wall: float
    monotonic: float


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

        self._watch_seconds = Histogram(
            "pearl_watch_seconds",
            "Duration of watches that have ended, by resource.",
            ("resource",),
            registry=self.registry,
            buckets=(0.1, 1, 10, 60, 120, 240, 290, 310, 330),
        )
        self._watch_events = Counter(
            "pearl_watch_events", "Events that watches brought, bookmarks too.", ("resource",), registry=self.registry
        )
        self._watch_bytes = Counter("pearl_watch_bytes", "Their size.", ("resource",), registry=self.registry)

    def sent(self, to: Receiver, method: str, url: str) -> Sent:
        """A request is about to be sent; tokens and bodies are never told."""
        return Sent(to, method, url, self._clock.now(), self._clock.monotonic())

    def tell(self, sent: Sent, answer: str, failure: str | None = None) -> None:
        """A call has ended; `answer` as in `Call`."""
        seconds = self._clock.monotonic() - sent.monotonic
        self._seconds.labels(sent.to.value, sent.method, answer).observe(seconds)
        self._log("call", sent, seconds, {"answer": answer} | _error(failure))

    def watch_began(self, sent: Sent) -> None:
        """The API server has accepted a watch; `seconds` is how long that took."""
        self._log("watch began", sent, self._clock.monotonic() - sent.monotonic, {})

    def watch_brought(self, resource: str, events: int, size_bytes: int) -> None:
        """A piece of its stream has come."""
        self._watch_events.labels(resource).inc(events)
        self._watch_bytes.labels(resource).inc(size_bytes)

    def watch_ended(self, sent: Sent, resource: str, events: int, failure: str | None) -> None:
        """The stream is over; `failure` None = by its time, or we closed it."""
        seconds = self._clock.monotonic() - sent.monotonic
        self._watch_seconds.labels(resource).observe(seconds)
        self._log("watch ended", sent, seconds, {"events": events} | _error(failure))

    def _log(self, message: str, sent: Sent, seconds: float, more: dict[str, Any]) -> None:
        if log.isEnabledFor(logging.DEBUG):
            what = {"to": sent.to.value, "method": sent.method, "url": sent.url}
            when = {"started": to_rfc3339(sent.wall), "seconds": round(seconds, 6)}
            log.debug(message, extra=what | when | more)

    @contextmanager
    def told(self, to: Receiver, method: str, url: str) -> Iterator[Call]:
        """The block sends the request, reads the answer and says which it was."""
        call, sent = Call(), self.sent(to, method, url)
        failure: str | None = None
        try:
            yield call
        except BaseException as error:
            call.answer, failure = "none", described(error)
            raise
        finally:
            self.tell(sent, call.answer, failure)


def _error(failure: str | None) -> dict[str, Any]:
    return {"error": failure} if failure else {}

"""Asks Prometheus for DCGM's series of one rollout, beside its looks: they take what is known and wait for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_operator.errors import OperatorError

if TYPE_CHECKING:
    from pearl_api.rollout import PrometheusSpec
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.ports import Clock, Prometheus, RolloutKey

EVERY_SECONDS: Final = 15.0
MOST_SECONDS: Final = 240.0
"""Between two questions where nobody exports anything; each empty answer doubles the pause until then."""
STALE_SECONDS: Final = 60.0


@dataclass(slots=True)
class GpuUseReader:
    """No decision waits for these: what cannot be read is unknown, and nobody is told."""

    rollout: RolloutKey
    prometheus: Prometheus
    clock: Clock
    _spec: PrometheusSpec | None = field(default=None, init=False)
    _found: list[GpuSample] = field(default_factory=list, init=False)
    _found_at: float = field(default=0.0, init=False)
    """Monotonic time at which the newest samples were asked for."""
    _due_at: float = field(default=0.0, init=False)
    _pause: float = field(default=EVERY_SECONDS, init=False)
    _asking: asyncio.Task[None] | None = field(default=None, init=False)

    def newest(self, spec: PrometheusSpec | None) -> list[GpuSample]:
        """The newest samples, none where they are stale; asks for new ones where it is time."""
        now = self.clock.monotonic()
        if spec != self._spec:
            self.close()
            self._spec, self._found, self._pause, self._due_at = spec, [], EVERY_SECONDS, now
        self._collect()
        if spec is not None and self._asking is None and now >= self._due_at:
            self._asking = asyncio.create_task(self._ask(spec, now), name=f"GPU use {self.rollout}")
        return self._found if now - self._found_at < STALE_SECONDS else []

    def close(self) -> None:
        """Asks nothing more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _collect(self) -> None:
        """Lets a bug of the last question be seen by who looks."""
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            asking.result()

    async def _ask(self, spec: PrometheusSpec, now: float) -> None:
        self._due_at = now + EVERY_SECONDS
        try:
            found = await self.prometheus.gpus(self.rollout, spec)
        except OperatorError:
            return
        self._pause = EVERY_SECONDS if found else min(self._pause * 2, MOST_SECONDS)
        self._found, self._found_at, self._due_at = found, now, now + self._pause

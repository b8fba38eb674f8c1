"""How long a rollout's loop takes from a change to the writes that answer it, without the API server's share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Clock, Kube, Object


@dataclass(frozen=True, slots=True)
class _Change:
    """When the loop was woken."""

    at: float
    waited: float
    """Seconds for which this loop had waited for the API server before."""


@dataclass(slots=True)
class Reaction:
    """Of one rollout. A look answers the changes before it, earliest first; one that fails leaves them to the next."""

    clock: Clock
    reacted: Callable[[float], None]
    """Hears the seconds of each write."""
    _next: _Change | None = field(default=None, init=False)
    _answered: _Change | None = field(default=None, init=False)
    _waited: float = field(default=0.0, init=False)
    _asking: int = field(default=0, init=False)
    """Calls under way."""
    _asked_at: float = field(default=0.0, init=False)
    """When the first of them was sent."""

    def woken(self) -> None:
        """Something changed."""
        if self._next is None:
            self._next = _Change(self.clock.monotonic(), self._waited_by_now())

    def begins(self) -> None:
        """A look begins."""
        self._answered, self._next = self._answered or self._next, None

    def ends(self) -> None:
        """It went well: whatever led to no write needed none."""
        self._answered = None

    @contextmanager
    def asking(self, *, writes: bool) -> Iterator[None]:
        """The block sends one request to the API server and waits for the answer."""
        if writes and self._answered is not None:
            waited = self._waited_by_now() - self._answered.waited
            self.reacted(self.clock.monotonic() - self._answered.at - waited)
        if not self._asking:
            self._asked_at = self.clock.monotonic()
        self._asking += 1
        try:
            yield
        finally:
            waited = self._waited_by_now()
            self._asking -= 1
            if not self._asking:
                self._waited = waited

    def _waited_by_now(self) -> float:
        """While several calls are waited for, time counts once."""
        return self._waited + (self.clock.monotonic() - self._asked_at if self._asking else 0.0)


@dataclass(frozen=True, slots=True)
class TimedKube:
    """`ports.Kube` of one rollout's loop, which tells of every call."""

    kube: Kube
    reaction: Reaction

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=False):
            return await self.kube.get(kind, name, namespace)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        heads: bool = False,
    ) -> list[Object]:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=False):
            return await self.kube.list(kind, namespace, labels, fields=fields, heads=heads)

    async def create(self, kind: Kind, body: Object) -> Object:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=True):
            return await self.kube.create(kind, body)

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=False):
            await self.kube.dry_run_create(kind, body)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=True):
            return await self.kube.apply(kind, body, manager=manager, force=force)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=True):
            return await self.kube.apply_status(kind, body, manager=manager)

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """See `ports.Kube`."""
        with self.reaction.asking(writes=True):
            await self.kube.delete(kind, name, namespace, uid=uid, grace_seconds=grace_seconds)

"""The Lease that makes one operator the writer. Losing it ends the process; another one waits until it ran out.

Times in the Lease are the API server's business only for people: a candidate waits until it saw the *same* record
for `lease_seconds` on its own monotonic clock, so clocks may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_operator import kinds
from pearl_operator.clock import to_rfc3339
from pearl_operator.errors import AlreadyExists, Conflict, OperatorError

if TYPE_CHECKING:
    from pearl_operator.ports import Clock, Kube, Object

_RENEWALS = 4
"""Renewals within one lease duration."""


class LeaseLost(RuntimeError):  # noqa: N818 - what happened
    """Somebody else holds the Lease, or it could not be renewed in time."""


@dataclass(slots=True)
class Lease:
    """One holder's view of the Lease object."""

    kube: Kube
    clock: Clock
    namespace: str
    name: str
    identity: str
    seconds: float
    _held_until: float | None = field(default=None, init=False)
    _object: Object | None = field(default=None, init=False)

    def remaining_seconds(self) -> float:
        """Until the Lease runs out on the monotonic clock; 0 when it is not held."""
        return 0.0 if self._held_until is None else self._held_until - self.clock.monotonic()

    async def acquire(self) -> None:
        """Returns once the Lease is held; waits for another holder to release it or to fall silent."""
        seen: tuple[Any, float] | None = None
        while not await self._try_acquire(seen):
            version = self._version()
            if seen is None or seen[0] != version:
                seen = (version, self.clock.monotonic())
            await self.clock.sleep(self.seconds / _RENEWALS)

    async def hold(self) -> None:
        """Renews for ever.

        Raises:
            LeaseLost: The Lease was taken, or not renewed before it ran out.
        """
        while True:
            await self.clock.sleep(self.seconds / _RENEWALS)
            try:
                await self._write()
            except Conflict as error:
                self._object = await self.kube.get(kinds.LEASE, self.name, self.namespace)
                if self._holder() != self.identity:
                    self._held_until = None
                    raise LeaseLost(f"Lease {self.name} is held by {self._holder()!r}") from error
            except OperatorError as error:
                if self.remaining_seconds() <= 0:
                    raise LeaseLost(f"Lease {self.name} could not be renewed: {error}") from error

    async def release(self) -> None:
        """Lets a successor start at once; a failure only makes it wait."""
        if self._held_until is None:
            return
        try:
            await self._write(holder="")
        except OperatorError:
            return
        finally:
            self._held_until = None

    async def _try_acquire(self, seen: tuple[Any, float] | None) -> bool:
        try:
            self._object = await self.kube.get(kinds.LEASE, self.name, self.namespace)
            free = self._object is None or self._holder() in ("", self.identity)
            silent = (
                seen is not None and seen[0] == self._version() and self.clock.monotonic() - seen[1] >= self.seconds
            )
            if not (free or silent):
                return False
            await self._write()
        except OperatorError:
            return False
        return True

    async def _write(self, holder: str | None = None) -> None:
        sent_at = self.clock.monotonic()
        body = self._body(self.identity if holder is None else holder)
        if self._object is None:
            try:
                self._object = await self.kube.create(kinds.LEASE, body)
            except AlreadyExists as error:
                raise Conflict(str(error)) from error
        else:
            body["metadata"]["resourceVersion"] = self._version()
            self._object = await self.kube.apply(kinds.LEASE, body, manager="pearl-lease")
        self._held_until = sent_at + self.seconds

    def _body(self, holder: str) -> Object:
        now = to_rfc3339(self.clock.now(), digits="microseconds")
        return {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {"app.kubernetes.io/name": "pearl", "app.kubernetes.io/component": "operator"},
            },
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": round(self.seconds), "renewTime": now},
        }

    def _version(self) -> str:
        return str((self._object or {}).get("metadata", {}).get("resourceVersion", ""))

    def _holder(self) -> str:
        return ((self._object or {}).get("spec") or {}).get("holderIdentity") or ""

"""Lets writes through only while the Lease certainly outlasts them: what keeps two operators apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pearl_operator.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Kube, Object


class Tenure(Protocol):
    """How long this process may still write."""

    def remaining_seconds(self) -> float:
        """Until the Lease runs out; ≤ 0 when it is not held."""


@dataclass(frozen=True, slots=True)
class FencedKube:
    """`ports.Kube` whose writes raise `Unavailable` when the Lease would not outlast the call."""

    kube: Kube
    tenure: Tenure
    call_seconds: float

    def _check(self, what: str) -> None:
        remaining = self.tenure.remaining_seconds()
        if remaining <= self.call_seconds:
            raise Unavailable(f"{what} not sent: the Lease ends in {remaining:.1f} s, before the call could")

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Reads pass."""
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
        """Reads pass."""
        return await self.kube.list(kind, namespace, labels, fields=fields, heads=heads)

    async def create(self, kind: Kind, body: Object) -> Object:
        """See `ports.Kube`."""
        self._check(f"create of {kind.kind}")
        return await self.kube.create(kind, body)

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        """Changes nothing, so it passes."""
        await self.kube.dry_run_create(kind, body)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        """See `ports.Kube`."""
        self._check(f"apply of {kind.kind}")
        return await self.kube.apply(kind, body, manager=manager, force=force)

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        """See `ports.Kube`."""
        self._check(f"status of {kind.kind}")
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
        self._check(f"delete of {kind.kind}")
        await self.kube.delete(kind, name, namespace, uid=uid, grace_seconds=grace_seconds)

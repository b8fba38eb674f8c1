"""Keeps what a rollout owns beside its workers: Secrets, gateway Deployment and Service, disruption budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.errors import Refused, Unavailable
from pearl_operator.resources.disruption import worker_budget
from pearl_operator.resources.gateway import gateway_deployment, gateway_service
from pearl_operator.resources.secrets import derived_secrets
from pearl_operator.scaling import Scaling, read_scaling

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import RolloutFact
    from pearl_operator.keys import SecretKeys
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Clock, Kube, Object
    from pearl_operator.settings import Settings

_REPAIR_EVERY_SECONDS: Final = 60.0
"""Somebody may have changed or deleted one of them."""


@dataclass(slots=True)
class Children:
    """The children of one rollout."""

    kube: Kube
    keys: SecretKeys
    clock: Clock
    settings: Settings
    _done: tuple[Any, ...] | None = field(default=None, init=False)
    _done_at: float = field(default=0.0, init=False)
    scaling: Scaling = field(default=Scaling(), init=False)
    """Of the gateway, when its Deployment was last applied."""

    async def ensure(self, rollout: RolloutFact, spec: PearlRolloutSpec, *, workers: int) -> str | None:
        """Applies all of them when the spec or the number of workers changed, and once a minute.

        Returns:
            The API server's sentence where it refuses one of them (a bad `spec.gateway.podTemplate`), else None.
            Workers need only the Secrets, so they go on all the same.

        Raises:
            RetryAfter: Without the Secrets no worker can start.
        """
        wanted = (rollout.uid, spec, workers)
        if self._done == wanted and self.clock.monotonic() - self._done_at < _REPAIR_EVERY_SECONDS:
            return None
        deployment = await self._own_deployment(rollout)
        await self.keys.keep()
        key = await self.keys.root_key(rollout.key)
        try:
            for secret in derived_secrets(rollout, key):
                await self._apply(kinds.SECRET, secret)
            await self._apply(kinds.SERVICE, gateway_service(rollout))
            await self._apply(kinds.DISRUPTION_BUDGET, worker_budget(rollout, workers))
            self.scaling = await read_scaling(self.kube, deployment) if deployment is not None else Scaling()
            gateway = gateway_deployment(rollout, spec, self.settings, set_replicas=self.scaling.ours)
            await self._apply(kinds.DEPLOYMENT, gateway)
        except Refused as error:
            return str(error)
        self._done, self._done_at = wanted, self.clock.monotonic()
        return None

    async def _own_deployment(self, rollout: RolloutFact) -> Object | None:
        """The gateway's Deployment; one that an earlier rollout of the same name left behind is waited out."""
        name = names.gateway_name(rollout.key.name)
        stored = await self.kube.get(kinds.DEPLOYMENT, name, rollout.key.namespace)
        if stored is None or rollout.uid in {ref["uid"] for ref in stored["metadata"].get("ownerReferences") or ()}:
            return stored
        raise Unavailable(
            f"Deployment {name} belongs to no {rollout.key} that is there: "
            "one that was deleted takes it along; delete it if it is of something else"
        )

    async def _apply(self, kind: Kind, body: Object) -> None:
        await self.kube.apply(kind, body, manager=names.FIELD_MANAGER)

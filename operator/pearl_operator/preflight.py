"""Asks the API server whether it would take the worker pod of the present spec, before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_api.names import Zone
from pearl_operator import kinds
from pearl_operator.errors import Refused
from pearl_operator.resources.worker import shape_hash, worker_pod
from pearl_operator.stage_sizes import worker_sizes
from pearl_planner.types import Role, Slot
from pearl_planner.types import Zone as PlannerZone

if TYPE_CHECKING:
    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import RolloutFact
    from pearl_operator.ports import Clock, Kube

_ASK_AGAIN_SECONDS: Final = 30.0
"""After a refusal: admission may depend on more than the spec."""
_QUOTA: Final = "exceeded quota"
_TRIAL_SLOT: Final = 999_999
"""No worker has this number, so the trial never collides."""


@dataclass(slots=True)
class Preflight:
    """Dry-run creates of one rollout, remembered by shape."""

    kube: Kube
    clock: Clock
    _accepted: set[str] = field(default_factory=set, init=False)
    _refused: dict[str, tuple[float, str]] = field(default_factory=dict, init=False)

    async def check(self, rollout: RolloutFact, spec: PearlRolloutSpec) -> str | None:
        """The API server's sentence where a worker pod is invalid, None where all are fine."""
        capacity = spec.capacity
        used = {Zone.RESERVED: capacity.reserved.gpus, Zone.ELASTIC: capacity.elastic.max_gpus}
        for zone in (zone for zone, gpus in used.items() if gpus):
            for role in Role:
                refusal = await self._check_pod(rollout, spec, zone, role)
                if refusal is not None:
                    return refusal
        return None

    async def _check_pod(self, rollout: RolloutFact, spec: PearlRolloutSpec, zone: Zone, role: Role) -> str | None:
        """Once for each size of worker."""
        gpus = worker_sizes(spec.engine).gpus_of(role)
        shape, now = shape_hash(spec, zone, gpus), self.clock.monotonic()
        if shape in self._accepted:
            return None
        asked_at, sentence = self._refused.get(shape, (float("-inf"), ""))
        if now - asked_at < _ASK_AGAIN_SECONDS:
            return sentence
        slot = Slot(_TRIAL_SLOT, PlannerZone(zone.value), role, 0)
        try:
            await self.kube.dry_run_create(kinds.POD, worker_pod(rollout, spec, slot, role_epoch=0))
        except Refused as error:
            if _QUOTA not in str(error):
                self._refused[shape] = (now, str(error))
                return str(error)
        self._refused.pop(shape, None)
        self._accepted.add(shape)
        return None

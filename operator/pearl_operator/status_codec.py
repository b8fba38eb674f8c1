"""Planner values as they lie in `status`, and back."""

from __future__ import annotations

from pearl_api import names
from pearl_api.rollout import Target as StatusTarget
from pearl_api.rollout import TargetSlot
from pearl_operator.clock import from_rfc3339, to_rfc3339
from pearl_planner.types import Reason, Role, Slot, Target, Zone


def target_to_status(target: Target) -> StatusTarget:
    """The target as it is written."""
    return StatusTarget(
        id=target.id,
        generation=target.generation,
        slots=[
            TargetSlot(
                slot=slot.slot,
                zone=names.Zone(slot.zone.value),
                role=names.Role(slot.role.value),
                incarnation=slot.incarnation,
            )
            for slot in target.slots
        ],
        reason=target.reason.value,
        started_at=to_rfc3339(target.started_at),
        deadline=to_rfc3339(target.deadline),
    )


def target_from_status(status: StatusTarget | None) -> Target | None:
    """The target that was written; None where there is none, or none that this version understands."""
    if status is None:
        return None
    started_at, deadline = from_rfc3339(status.started_at), from_rfc3339(status.deadline)
    if started_at is None or deadline is None or status.reason not in set(Reason):
        return None
    return Target(
        id=status.id,
        generation=status.generation,
        slots=tuple(
            Slot(each.slot, Zone(each.zone.value), Role(each.role.value), each.incarnation) for each in status.slots
        ),
        reason=Reason(status.reason),
        started_at=started_at,
        deadline=deadline,
    )

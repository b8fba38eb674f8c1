"""The last decisions in memory, for `/debug/snapshot`: what was seen and planned, ready to be planned again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_planner.serialize import plan_to_dict, snapshot_to_dict

if TYPE_CHECKING:
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Plan, Snapshot


@dataclass(slots=True)
class Ring:
    """Bounded memory of (snapshot, plan) pairs by rollout."""

    size: int
    _entries: dict[RolloutKey, deque[tuple[Snapshot, Plan]]] = field(default_factory=dict, init=False)

    def append(self, rollout: RolloutKey, snapshot: Snapshot, plan: Plan) -> None:
        """Remembers one decision; the oldest is dropped."""
        self._entries.setdefault(rollout, deque(maxlen=self.size)).append((snapshot, plan))

    def forget(self, rollout: RolloutKey) -> None:
        """The rollout is gone."""
        self._entries.pop(rollout, None)

    def dump(self, rollout: RolloutKey) -> list[dict[str, Any]]:
        """Oldest first, as JSON-able values."""
        return [
            {"snapshot": snapshot_to_dict(snapshot), "plan": plan_to_dict(plan)}
            for snapshot, plan in self._entries.get(rollout, ())
        ]

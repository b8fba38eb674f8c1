"""The last decisions in memory, for `/debug/snapshot`: what was seen and planned, ready to be planned again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_planner.serialize import to_json

if TYPE_CHECKING:
    from pearl_operator.ports import RolloutKey
    from pearl_planner.types import Plan, Policy, Snapshot


@dataclass(slots=True)
class Ring:
    """Bounded memory of (snapshot, policy, plan) by rollout."""

    size: int
    _entries: dict[RolloutKey, deque[tuple[Snapshot, Policy, Plan]]] = field(default_factory=dict, init=False)

    def append(self, rollout: RolloutKey, snapshot: Snapshot, policy: Policy, plan: Plan) -> None:
        """Remembers one decision; the oldest is dropped."""
        self._entries.setdefault(rollout, deque(maxlen=self.size)).append((snapshot, policy, plan))

    def last(self, rollout: RolloutKey) -> tuple[Snapshot, Policy, Plan] | None:
        """The newest; None before the first."""
        entries = self._entries.get(rollout)
        return entries[-1] if entries else None

    def forget(self, rollout: RolloutKey) -> None:
        """The rollout is gone."""
        self._entries.pop(rollout, None)

    def dump(self, rollout: RolloutKey) -> list[dict[str, Any]]:
        """Oldest first, as JSON-able values."""
        return [
            {"snapshot": to_json(snapshot), "policy": to_json(policy), "plan": to_json(plan)}
            for snapshot, policy, plan in self._entries.get(rollout, ())
        ]

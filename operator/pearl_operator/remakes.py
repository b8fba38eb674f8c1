"""Pods that fail again and again are made again ever more rarely; the first failure costs no wait.

A node may refuse every pod at once (a device plugin that is out of order, an admission of the kubelet), so that
without a pause a slot would get a pod a second. Forgotten by a new operator process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pearl_planner.types import WorkerState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pearl_planner.types import Worker

_FIRST_SECONDS: Final = 5.0
_LONGEST_SECONDS: Final = 300.0
_MOST_DOUBLINGS: Final = 10
_TOLD_FROM: Final = 3


@dataclass(frozen=True, slots=True)
class _Failures:
    """Of one slot in a row."""

    uid: str
    """Of the pod that failed last."""
    count: int
    wait_until: float


@dataclass(slots=True)
class Remakes:
    """Of one rollout; times are monotonic seconds."""

    _failed: dict[int, _Failures] = field(default_factory=dict, init=False)
    """By slot."""

    def saw(self, workers: Iterable[Worker], wanted: Collection[int], now: float) -> None:
        """Counts pods that failed. One that serves ends its slot's row, and so does a fleet without the slot."""
        for slot in self._failed.keys() - wanted:
            del self._failed[slot]
        for worker in workers:
            before = self._failed.get(worker.slot, _Failures("", 0, now))
            if worker.state is WorkerState.READY:
                self._failed.pop(worker.slot, None)
            elif worker.state is WorkerState.FAILED and worker.uid != before.uid:
                doublings = min(before.count - 1, _MOST_DOUBLINGS)
                pause = min(_FIRST_SECONDS * 2**doublings, _LONGEST_SECONDS) if before.count else 0.0
                self._failed[worker.slot] = _Failures(worker.uid, before.count + 1, now + pause)

    def may(self, slot: int, now: float) -> bool:
        """Whether a pod of this slot may be made."""
        return slot not in self._failed or now >= self._failed[slot].wait_until

    def told(self) -> tuple[str, ...]:
        """A clause for each slot that needs a person."""
        return tuple(
            f"pods of slot {slot} failed {failures.count} times in a row and are made again ever more rarely"
            for slot, failures in sorted(self._failed.items())
            if failures.count >= _TOLD_FROM
        )

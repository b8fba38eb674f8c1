"""How long trajectories are predicted to go on, from what a gateway sees: turns made, finished ones, group siblings.

The mean residual life of the last finished trajectories by turns made, times how much longer than usual the finished
siblings were (shrunken: the group counts as much as its finished members, against four usual ones).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_simulator.cluster.jobs import Group, Job

REMEMBERED = 256
USUAL_WEIGHT = 4.0
REFRESH = 16
"""Finished trajectories between two looks at all of them."""
LONG_FACTOR = 1.0


class Lengths:
    """Finished trajectories in numbers."""

    __slots__ = ("_ended", "_news", "_residual", "_turns", "generated_mean", "mean")

    def __init__(self) -> None:
        self._ended: deque[int] = deque(maxlen=REMEMBERED)
        self._turns: list[int] = []
        self._residual: list[float] = []
        self._news = 0
        self.mean = 0.0
        """Turns of a finished trajectory; 0 = none finished."""
        self.generated_mean = 256.0
        """Tokens per turn, decaying average."""

    def turn(self, generated: int) -> None:
        """A turn ended."""
        self.generated_mean += (generated - self.generated_mean) / 64.0

    def finished(self, turns: int, group: Group) -> None:
        """A trajectory ended after so many turns."""
        self._ended.append(turns)
        group.turns_of_finished.append(turns)
        self._news += 1
        if self._news >= REFRESH or not self._turns:
            self._refresh()

    def remaining(self, job: Job) -> float:
        """Expected turns still to make, at least the present one."""
        if not self._turns:
            return 1.0
        made = job.turn
        index = bisect_right(self._turns, made)
        # Beyond all that was seen: as long again as a tenth of what it made, so the longest stay first.
        usual = self._residual[index] - made if index < len(self._turns) else 1.0 + 0.1 * made
        siblings = job.group.turns_of_finished
        factor = (USUAL_WEIGHT * self.mean + sum(siblings)) / ((USUAL_WEIGHT + len(siblings)) * self.mean)
        return max(1.0, usual * factor)

    def is_long(self, job: Job) -> bool:
        """Predicted to go on for longer than a usual trajectory lasts in all."""
        return self.mean > 0.0 and job.priority > LONG_FACTOR * self.mean

    def _refresh(self) -> None:
        self._news = 0
        self._turns = sorted(self._ended)
        self.mean = sum(self._turns) / len(self._turns)
        total, count = 0, 0
        means = []
        for turns in reversed(self._turns):
            total, count = total + turns, count + 1
            means.append(total / count)
        self._residual = means[::-1]

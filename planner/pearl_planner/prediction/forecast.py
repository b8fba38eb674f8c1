"""What the live trajectories will ask of the workers in the next seconds: prefill and decode demand.

docs/models.md, "Short-horizon forecast". A trajectory in its environment comes back within the horizon with the chance
that its wait, which lasted so long already, ends; one in the engines generates what is left of its turn. An input to
the choice of a shape, not a controller. The idea is Prorsa's (forecast demand from the lifecycle of trajectories).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.prediction.waits import Waits
from pearl_planner.workload.bins import stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_planner.engine.model import EngineTable
    from pearl_planner.types import Trajectory
    from pearl_planner.workload.profile import Profile

SLICES = 8
"""Parts of the horizon in which a return may happen."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Expected work of the next `horizon_seconds`."""

    horizon_seconds: float
    prefill_tokens: float
    """New prompt tokens; on another worker than the decoding one also the retained part of the answers before."""
    prefill_seconds: float
    """Worker-seconds of it."""
    decode_tokens: float
    decode_seconds: float
    """Worker-seconds of it, with the present number of sequences per worker."""

    @property
    def prefill_workers(self) -> float:
        """Workers that would be busy with prefill all the time."""
        return self.prefill_seconds / self.horizon_seconds if self.horizon_seconds > 0 else 0.0

    @property
    def decode_workers(self) -> float:
        """Workers that would be busy with decode all the time."""
        return self.decode_seconds / self.horizon_seconds if self.horizon_seconds > 0 else 0.0


def forecast(  # noqa: PLR0913 - one question
    unfinished: Iterable[Trajectory],
    profile: Profile,
    table: EngineTable,
    horizon_seconds: float,
    *,
    sequences: float,
    remote: bool = True,
) -> Demand:
    """Demand of these trajectories; `sequences` decode per worker now. `remote`: prefill is on other workers."""
    waits = Waits(profile)
    context = max(profile.context.mean, 1.0)
    step = decode_seconds(table, max(sequences, 1.0), context)
    reach = horizon_seconds / step if step > 0 else 0.0  # tokens that one sequence makes in the horizon
    retained = (profile.retained.known_mean() or 0.0) * profile.generated.mean if remote else 0.0
    prefill = work = made = 0.0
    for one in unfinished:
        if one.idle_seconds is None and one.turns_done > 0:
            made += min(_left_of_answer(profile), reach)
            continue
        if one.idle_seconds is None:  # its first prompt
            returns = [(1.0, horizon_seconds)]
        else:
            returns = _returns(waits, one.idle_seconds, horizon_seconds)
        new = _new_tokens(profile, one.turns_done + 1) + (retained if one.turns_done > 0 else 0.0)
        chance = sum(share for share, _ in returns)
        prefill += chance * new
        work += chance * prefill_seconds(table.prefilling, new, max(float(one.context_tokens), 0.0))
        made += sum(share * min(profile.generated.mean, left / step) for share, left in returns) if step > 0 else 0.0
    return Demand(horizon_seconds, prefill, work, made, made * step / max(sequences, 1.0))


def _returns(waits: Waits, idle: float, horizon: float) -> list[tuple[float, float]]:
    """(chance to come back in a slice of the horizon, what is left of the horizon then)."""
    longer = 1.0 - waits.below(idle)
    if longer <= 0:
        return [(1.0, horizon)]  # it outlasted every wait that was seen: any moment now
    found = []
    before = waits.below(idle)
    for k in range(1, SLICES + 1):
        below = waits.below(idle + horizon * k / SLICES)
        found.append(((below - before) / longer, horizon * (1.0 - (k - 0.5) / SLICES)))
        before = below
    return found


def _left_of_answer(profile: Profile) -> float:
    """Mean tokens left of an answer that is met at any moment: E[r²] / 2E[r]."""
    generated = profile.generated
    mean = max(generated.mean, 1.0)
    return (max(generated.variance, 0.0) + mean * mean) / (2.0 * mean)


def _new_tokens(profile: Profile, turn: int) -> float:
    part = profile.stages[stage(turn)].appended
    return part.mean if part.count > 0 else profile.appended.mean

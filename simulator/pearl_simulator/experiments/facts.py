"""What the planner would know of a workload after some batches, without simulating them."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from pearl_planner.types import Batch
from pearl_planner.workload.profile import Profile, update
from pearl_planner.workload.records import TrajectoryRecord, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_simulator.types import Script, Workload

ROUTES = ("colocated", "disaggregated")
Record = TurnRecord | TrajectoryRecord


def profile_of(workload: Workload, *, batches: int, seed: int) -> Profile:
    """The profile after these batches, all of them finished; turns come in the order of their numbers.

    Trajectories are told as served colocated and disaggregated in turn, so that both routes have their cache misses.
    """
    profile: Profile | None = None
    for step in range(batches):
        told = [list(_records(script, step, index)) for index, script in enumerate(workload.batch(step, seed))]
        in_order = [record for round_ in zip_longest(*told) for record in round_ if record is not None]
        profile = update(profile, in_order)
    return profile or Profile()


def new_batch(workload: Workload, *, need_groups: int | None = None) -> Batch:
    """One of which nothing has started."""
    return Batch(0, workload.groups, workload.group_size, need_groups or workload.groups, 0, 0, 0, 0.0)


def _records(script: Script, step: int, index: int) -> Iterator[Record]:
    name, group = f"{step}-{index}", f"{step}-{script.group}"
    remote = index % 2 == 1
    history, before, kept = 0, None, None
    for number, turn in enumerate(script.turns, 1):
        context = history + turn.appended_tokens
        primed = script.member > 1 and number == 1  # another member of the group brought the prompt there
        # Gone from the cache: what the agent misses anyway, or what this worker never held (an answer that another
        # worker generated, or one that the next prompt holds in part only).
        unseen = (kept or 0) if remote or (kept or 0) < (before or 0) else 0
        cached = turn.appended_tokens if primed else history - max(unseen, round(turn.missed_share * history))
        yield TurnRecord(
            trajectory=name,
            turn=number,
            appended_tokens=turn.appended_tokens,
            generated_tokens=turn.generated_tokens,
            context_tokens=context,
            group=group,
            previous_generated_tokens=before,
            retained_tokens=kept,
            environment_seconds=None if number == 1 else script.turns[number - 2].environment_seconds,
            route=ROUTES[remote],
            cached_tokens=cached,
        )
        history, before, kept = context + turn.retained_tokens, turn.generated_tokens, turn.retained_tokens
    yield TrajectoryRecord(
        trajectory=name,
        turns=len(script.turns),
        group=group,
        generated_tokens=sum(turn.generated_tokens for turn in script.turns),
        appended_tokens=sum(turn.appended_tokens for turn in script.turns[1:]),
        reset_seconds=script.reset_seconds,
        reward_seconds=script.turns[-1].environment_seconds,
    )

"""Nothing was asked for a long time: whether that is so, and engines that sleep until something is.

What is asked for (turns, permits, batches) is what the gateway says. Where it says nothing, or says nothing yet since
it was started, an idle fleet stays idle and another one does not become it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner.fleet.steps import key_of
from pearl_planner.types import Activity, IdleAction, Reason, SetActivity, WorkerState, Zone

if TYPE_CHECKING:
    from pearl_planner.types import Plan, Policy, Snapshot

LOOK_SECONDS = 5.0
"""Until the next look at engines that sleep: a client that asks waits that long for the wake-up to begin."""


def is_idle(facts: Snapshot, policy: Policy) -> bool:
    """Whether the policy's idle action is in force now. Never begins while the user holds the fleet."""
    if policy.idle_action is IdleAction.NONE:
        return False
    before = _was_idle(facts, policy)
    if before and _asked_seconds(facts, policy) is None:
        return True
    quiet = quiet_seconds(facts, policy)
    return quiet is not None and quiet >= policy.idle_after_seconds and (before or not policy.hold)


def quiet_seconds(facts: Snapshot, policy: Policy) -> float | None:
    """Seconds since something was asked for, or since the gateway was started; None where it does not say."""
    asked = _asked_seconds(facts, policy)
    return asked if asked is not None else _aged(facts.measurements.gateway_uptime_seconds, facts, policy)


def _asked_seconds(facts: Snapshot, policy: Policy) -> float | None:
    return _aged(facts.measurements.asked_seconds, facts, policy)


def _aged(seconds: float | None, facts: Snapshot, policy: Policy) -> float | None:
    """What the statistics said, by now; None where they are too old to be believed."""
    age = facts.measurements.gateway_age_seconds
    return None if seconds is None or age is None or age > policy.stale_after_seconds else seconds + age


def _was_idle(facts: Snapshot, policy: Policy) -> bool:
    if policy.idle_action is IdleAction.SLEEP:
        return any(one.activity is Activity.ASLEEP and one.zone is not Zone.BORROWED for one in facts.workers)
    target = facts.target
    return target is not None and not target.slots and target.reason is Reason.IDLE


def put_to_sleep(facts: Snapshot, result: Plan, message: str) -> Plan:
    """`result` without wake-ups, and with every engine of the target put to sleep that serves.

    What has to happen to pods (a notice, a smaller budget, a new template) still does: a new one starts, serves for a
    look, and sleeps.
    """
    # Without a target (its status was lost) the fleet is what is wanted.
    wanted = {key_of(one) for one in (facts.workers if result.target is None else result.target.slots)}
    own = [one for one in facts.workers if one.zone is not Zone.BORROWED and key_of(one) in wanted]
    sleeps = [
        SetActivity(one.uid, one.pod, Activity.ASLEEP)
        for one in own
        if one.state is WorkerState.READY and one.activity is Activity.ACTIVE
    ]
    kept = [one for one in result.actions if not (isinstance(one, SetActivity) and one.activity is Activity.ACTIVE)]
    return replace(
        result,
        actions=(*kept, *sleeps),
        reason=Reason.IDLE,
        message=message,
        next_look_seconds=LOOK_SECONDS,
    )

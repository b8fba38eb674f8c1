"""`plan(snapshot, policy) -> Plan`: the one decision. Same snapshot, same plan.

Order of thought: make the facts trustworthy → remember what was learned → follow the target in force while it can
still be reached → otherwise decide anew → turn the decision into slots → give the safe next actions → answer loans.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pearl_planner import explain
from pearl_planner.choice.decide import Decision, may_keep
from pearl_planner.choice.learn import learn
from pearl_planner.choice.routing import routing
from pearl_planner.facts import LENT, clean, dead_slots, fleet, holds_what_it_must, lent_workers, sizes
from pearl_planner.fleet.assign import assign
from pearl_planner.fleet.living import made_for, stays
from pearl_planner.fleet.room import units_held
from pearl_planner.fleet.shapes import shape_of
from pearl_planner.fleet.steps import complete, finished, key_of, steps
from pearl_planner.idle import is_idle, put_to_sleep, quiet_seconds
from pearl_planner.rule import PEARL
from pearl_planner.set_back import on_this_clock
from pearl_planner.types import (
    Action,
    AnswerLoan,
    IdleAction,
    Plan,
    Reason,
    Shape,
    Slot,
    Target,
    WorkerState,
    Zone,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_planner.rule import Rule
    from pearl_planner.types import Loan, Policy, Snapshot, Worker

SLACK_SECONDS = 30.0
"""Time of a target beyond its drains and starts: labels, acknowledgements, deletion."""
LOOK_MOVING_SECONDS = 1.0
LOOK_RESTING_SECONDS = 5.0


def plan(snapshot: Snapshot, policy: Policy, rule: Rule = PEARL) -> Plan:
    """The decision for this look. Never raises on wrong numbers, and never shrinks the fleet because of them.

    `rule` is what the simulator compares; the operator always runs PEARL's own.
    """
    facts = on_this_clock(clean(snapshot))
    facts = replace(facts, memory=learn(facts, policy))
    if policy.suspend:
        result = _emptied(facts, policy, Reason.SUSPENDED, "suspended by the spec")
    else:
        result = _idle(facts, policy, rule) if is_idle(facts, policy) else _running(facts, policy, rule)
    answers = _loan_answers(facts, policy, rule, result.shape)
    result = replace(result, actions=(*result.actions, *answers))
    return _advisory(facts, result) if policy.advisory else result


def _running(facts: Snapshot, policy: Policy, rule: Rule) -> Plan:
    target = _in_force(facts, policy)
    if target is not None and not _at_rest(facts, target):
        return _going_on(facts, policy, target)
    cause = _forced_cause(facts, policy)
    decision = rule.decide(facts if target else replace(facts, target=_shape_memory(facts)), policy)
    facts = facts if decision.memory is None else replace(facts, memory=decision.memory)
    slots = assign(
        fleet(facts),
        decision.sizes,
        decision.shape,
        next_incarnations=dict(facts.memory.next_incarnations),
        budget=facts.budget,
    )
    if target is not None and slots == target.slots:
        return _resting(facts, policy, target, decision)
    fresh = _new_target(facts, policy, slots, cause[0] if cause else decision.reason)
    if (
        target is None
        and complete(facts.workers, fresh)
        and not steps(facts.workers, fresh, budget=facts.budget, policy=policy)
    ):
        return _resting(facts, policy, None, decision)
    return _starting(facts, policy, fresh, decision, cause)


def _shape_memory(facts: Snapshot) -> Target | None:
    """The target that is no longer in force still says which shape was wanted, unless it was dropped half-way."""
    target = facts.target
    return None if target is None or _expired(facts, target) else target


def _in_force(facts: Snapshot, policy: Policy) -> Target | None:
    """The target if it can still be reached and is still wanted."""
    target = facts.target
    if target is None or not target.slots or _expired(facts, target):
        return None
    lent = {key_of(worker) for worker in lent_workers(facts)}
    wanted = (
        holds_what_it_must(target.slots, facts)
        and {key_of(slot) for slot in target.slots if slot.zone is Zone.BORROWED} == lent
        and _may_keep(facts, policy, target)
        and not _outgrown(facts, target)
    )
    dead = dead_slots(facts, dict(facts.memory.next_incarnations))
    return target if wanted and not dead else None


def _may_keep(facts: Snapshot, policy: Policy, target: Target) -> bool:
    """Whether the spec still allows the shape of a target."""
    shape = shape_of(target.slots)
    if not facts.budget.staged:
        return may_keep(shape, policy)
    return may_keep(shape, policy, sizes(facts).room(units_held(target.slots, facts.budget)[Zone.ELASTIC]))


def _outgrown(facts: Snapshot, target: Target) -> list[Worker]:
    """Workers of a target that its roles cannot be given to: of an old template, or of another size."""
    roles = {key_of(slot): slot.role for slot in target.slots}
    there = [(worker, roles.get(key_of(worker))) for worker in facts.workers]
    return [worker for worker, role in there if role is not None and not made_for(worker, role, facts.budget)]


def _expired(facts: Snapshot, target: Target) -> bool:
    """Past the deadline and not even all pods and roles are there."""
    return not facts.now <= target.deadline and not complete(facts.workers, target)


def _at_rest(facts: Snapshot, target: Target) -> bool:
    late = not facts.now <= target.deadline
    return finished(facts.workers, target) or (late and complete(facts.workers, target))


def _going_on(facts: Snapshot, policy: Policy, target: Target) -> Plan:
    """The target in force is not reached yet: its next steps, nothing optional."""
    shape = shape_of(target.slots)
    left = sum(1 for w in facts.workers if stays(w) and w.state in (WorkerState.PENDING, WorkerState.STARTING))
    message = f"on the way to {explain.describe(shape)} (target {target.id}), {left} workers starting"
    actions = steps(facts.workers, target, budget=facts.budget, policy=policy)
    decision = Decision({}, shape, Reason.PLAN_IN_PROGRESS, message)
    return _plan(facts, policy, target, actions, decision)


def _resting(facts: Snapshot, policy: Policy, target: Target | None, decision: Decision) -> Plan:
    """What is there is what is wanted; only repairs, if anything."""
    actions = steps(facts.workers, target, budget=facts.budget, policy=policy) if target else ()
    waiting = any(w.state is WorkerState.PENDING and stays(w) for w in facts.workers)
    if waiting and decision.reason in (Reason.WITHIN_DEADBAND, Reason.BATCH_UNKNOWN):
        decision = replace(decision, reason=Reason.PENDING_CAPACITY)
    return _plan(facts, policy, target, actions, decision)


def _starting(
    facts: Snapshot, policy: Policy, target: Target, decision: Decision, cause: tuple[Reason, str] | None
) -> Plan:
    """A new target, with its first steps."""
    if cause:
        decision = replace(decision, reason=cause[0], message=f"{cause[1]}; {decision.message}")
    memory = replace(facts.memory, last_target_id=target.id, last_change_at=facts.now)
    actions = steps(facts.workers, target, budget=facts.budget, policy=policy)
    return _plan(replace(facts, memory=memory), policy, target, actions, decision)


def _new_target(facts: Snapshot, policy: Policy, slots: tuple[Slot, ...], reason: Reason) -> Target:
    there = {key_of(worker) for worker in facts.workers}
    wanted = {key_of(slot) for slot in slots}
    seconds = SLACK_SECONDS
    seconds += policy.start_seconds if wanted - there else 0.0
    seconds += policy.drain_seconds if there - wanted else 0.0
    started = any(w.state in (WorkerState.PENDING, WorkerState.STARTING) for w in facts.workers)
    seconds = max(seconds, policy.start_seconds if started else 0.0)
    return Target(facts.memory.last_target_id + 1, policy.generation, slots, reason, facts.now, facts.now + seconds)


def _forced_cause(facts: Snapshot, policy: Policy) -> tuple[Reason, str] | None:
    """What happened to the fleet that makes a change necessary, most urgent first."""
    noticed = sorted(worker.pod for worker in facts.workers if worker.notice_seconds is not None)
    if noticed:
        return Reason.SPOT_NOTICE, f"{', '.join(noticed[:3])} will lose their node"
    return None if facts.target is None else next(_breaches(facts, policy, facts.target), None)


def _breaches(facts: Snapshot, policy: Policy, target: Target) -> Iterator[tuple[Reason, str]]:
    """In what the target is no longer what must be."""
    if not target.slots and target.reason is Reason.IDLE:
        yield Reason.APPLIED, "something is asked for again"
    lent = {key_of(worker) for worker in lent_workers(facts)}
    borrowed = {key_of(slot) for slot in target.slots if slot.zone is Zone.BORROWED}
    if borrowed - lent:
        yield Reason.RECLAIM_REQUESTED, "lent GPUs were asked back"
    if lent - borrowed:
        yield Reason.APPLIED, "lent GPUs arrived"
    own = (worker for worker in facts.workers if worker.zone is not Zone.BORROWED)
    if any(stays(worker) and not worker.shape_current for worker in own):
        yield Reason.APPLIED, "the worker template changed"
    elif _outgrown(facts, target):
        yield Reason.APPLIED, f"workers are now of {explain.sizes(facts.budget)} GPUs"
    elif units_held(target.slots, facts.budget)[Zone.RESERVED] > sizes(facts).reserved:
        yield Reason.BUDGET_LIMIT, f"the budget is now {facts.budget.reserved_gpus} reserved GPUs"
    dead = dead_slots(facts, dict(facts.memory.next_incarnations))
    if dead:
        yield Reason.APPLIED, f"slot {', '.join(map(str, sorted(dead)[:5]))} lost its pod and is replaced"
    if not _may_keep(facts, policy, target):
        yield Reason.APPLIED, "the spec no longer allows the present shape"


def _idle(facts: Snapshot, policy: Policy, rule: Rule) -> Plan:
    """Nothing was asked for a long time: no workers, or all asleep."""
    quiet = quiet_seconds(facts, policy)
    message = "no turn, permit or batch was asked for" + (f" in {quiet:.0f} s" if quiet is not None else "")
    if policy.idle_action is IdleAction.SCALE_TO_ZERO:
        return _emptied(facts, policy, Reason.IDLE, f"{message}: no workers until one is")
    result = _running(facts, replace(policy, hold=True), rule)
    return put_to_sleep(facts, result, f"{message}: engines sleep until one is")


def _emptied(facts: Snapshot, policy: Policy, reason: Reason, message: str) -> Plan:
    """An empty target: drain and delete all."""
    old = facts.target
    decision = Decision({}, Shape(), reason, message)
    own = [worker for worker in facts.workers if worker.zone is not Zone.BORROWED or worker.activity == "active"]
    if old is not None and not old.slots and old.reason is reason:
        return _plan(facts, policy, old, steps(facts.workers, old, budget=facts.budget, policy=policy), decision)
    if old is None and not own:
        return _plan(facts, policy, None, (), decision)
    return _starting(facts, policy, _new_target(facts, policy, (), reason), decision, None)


def _plan(
    facts: Snapshot, policy: Policy, target: Target | None, actions: tuple[Action, ...], decision: Decision
) -> Plan:
    parameters, recommended = routing(facts, policy, decision.shape, decision.forecast)
    memory = replace(facts.memory, local_append_tokens=parameters.local_append_tokens)
    moving = target is not None and not _at_rest(facts, target)
    return Plan(
        target=target,
        actions=actions,
        reason=decision.reason,
        message=decision.message,
        shape=decision.shape,
        finalists=decision.finalists,
        routing=parameters,
        memory=memory,
        next_look_seconds=LOOK_MOVING_SECONDS if moving else LOOK_RESTING_SECONDS,
        recommended_in_flight=recommended,
    )


def answer_loans(snapshot: Snapshot, policy: Policy, shape: Shape, rule: Rule = PEARL) -> tuple[AnswerLoan, ...]:
    """Answers to the loans that wait, between two looks: `shape` is that of the last plan, the loans are today's."""
    return tuple(_loan_answers(clean(snapshot), policy, rule, shape))


def _loan_answers(facts: Snapshot, policy: Policy, rule: Rule, shape: Shape) -> list[AnswerLoan]:
    """An answer for every loan that waits; each granted one counts for the next."""
    waiting = [loan for loan in facts.loans if loan.requested]
    if not waiting:
        return []
    resting = _takes_nothing(facts, policy)
    per = facts.budget.gpus_per_worker
    # Loans that were granted and whose engines are still starting or waking count as well.
    lent = sum(_borrowers(loan, per) for loan in facts.loans if loan.phase in LENT)
    used = lent * per
    count = shape.workers + max(lent - len(lent_workers(facts)), 0)
    answers: list[AnswerLoan] = []
    for loan in sorted(waiting, key=lambda one: (one.namespace, one.name)):
        added = _borrowers(loan, per)
        if resting is not None:
            granted, reason = False, resting.value
        elif added < 1 or used + added * per > facts.budget.borrowed_max_gpus:
            granted, reason = False, Reason.BUDGET_LIMIT.value
        else:
            granted, reason = rule.answer_loan(facts, policy, loan, count, added)
        used, count = (used + added * per, count + added) if granted else (used, count)
        answers.append(AnswerLoan(loan.name, loan.namespace, loan.epoch, granted, reason))
    return answers


def _takes_nothing(facts: Snapshot, policy: Policy) -> Reason | None:
    """Why no GPU is borrowed at all."""
    if policy.suspend:
        return Reason.SUSPENDED
    if policy.hold:
        return Reason.HELD
    return Reason.IDLE if is_idle(facts, policy) else None


def _borrowers(loan: Loan, gpus_per_worker: int) -> int:
    """Workers that a loan is, or will be once their pods are known."""
    return len(loan.workers) or max(loan.gpus, 0) // gpus_per_worker


def _advisory(facts: Snapshot, result: Plan) -> Plan:
    """Decided and explained, nothing done, nothing remembered but what was measured."""
    return replace(
        result,
        target=facts.target,
        actions=(),
        reason=Reason.ADVISORY_ONLY,
        message=f"advisory, would be {result.reason.value}: {result.message}",
        memory=facts.memory,
        next_look_seconds=LOOK_RESTING_SECONDS,
    )

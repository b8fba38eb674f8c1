"""Conditions as pure functions of one look; all seven, always, with the generation they were judged for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pearl_api.conditions import Condition, ConditionReason, ConditionType
from pearl_api.loan import LoanPhase
from pearl_api.names import COMPONENT_WORKER
from pearl_operator.clock import to_rfc3339
from pearl_operator.look import pending, serves
from pearl_planner.idle import is_idle
from pearl_planner.types import WorkerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_operator.facts import PodFact
    from pearl_operator.look import Look

_MAX_MESSAGE: Final = 1024
_MAX_NAMED: Final = 5
_GATED: Final = "SchedulingGated"
"""The scheduler's word for pods with gates."""
_ON_LOAN: Final = (LoanPhase.GRANTED, LoanPhase.WAKING, LoanPhase.SERVING)
_HOPELESS: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainer")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Status, reason and sentence of one condition."""

    status: Literal["True", "False", "Unknown"]
    reason: ConditionReason
    message: str = ""


def conditions(look: Look, previous: Sequence[Condition]) -> list[Condition]:
    """All conditions, in a fixed order; the transition time moves only when the status does."""
    verdicts = {
        ConditionType.READY: ready(look),
        ConditionType.METRICS_AVAILABLE: metrics_available(look),
        ConditionType.CAPACITY_AVAILABLE: capacity_available(look),
        ConditionType.PLAN_PROGRESSING: plan_progressing(look),
        ConditionType.BORROWING_ACTIVE: borrowing_active(look),
        ConditionType.DEGRADED: degraded(look),
        ConditionType.ADVISORY: advisory(look),
    }
    return stamped(verdicts, previous, generation=look.rollout.generation, now=look.now)


def stamped(
    verdicts: dict[ConditionType, Verdict], previous: Sequence[Condition], *, generation: int, now: float
) -> list[Condition]:
    """Verdicts with times; `previous` are the conditions that were last written."""
    known = {condition.type: condition for condition in previous}
    return [
        Condition(
            type=kind,
            status=verdict.status,
            reason=verdict.reason,
            message=shortened(verdict.message, _MAX_MESSAGE),
            observed_generation=generation,
            last_transition_time=known[kind].last_transition_time
            if kind in known and known[kind].status == verdict.status
            else to_rfc3339(now, digits="seconds"),
        )
        for kind, verdict in verdicts.items()
    ]


def unreadable(problem: str, previous: Sequence[Condition], *, generation: int, now: float) -> list[Condition]:
    """All conditions of a rollout whose spec this operator cannot read."""
    unknown = Verdict("Unknown", ConditionReason.UNKNOWN, "the spec cannot be read")
    verdicts = dict.fromkeys(ConditionType, unknown)
    verdicts[ConditionType.DEGRADED] = Verdict("True", ConditionReason.UNSUPPORTED, problem)
    return stamped(verdicts, previous, generation=generation, now=now)


def ready(look: Look) -> Verdict:
    """True when the gateway answers and every worker of the target serves and is routed to."""
    if look.spec.suspend:
        return Verdict("False", ConditionReason.SUSPENDED, "spec.suspend is true: workers are drained and removed")
    if is_idle(look.snapshot, look.policy):
        return Verdict("False", ConditionReason.IDLE, look.plan.message)
    workers = look.snapshot.workers
    if not workers:
        return Verdict("False", ConditionReason.NO_WORKERS, "no worker pod exists")
    missing = pending(look.snapshot, look.plan.target)
    serving = sum(1 for worker in workers if serves(worker))
    if missing or not serving:
        return Verdict(
            "False", ConditionReason.WORKERS_STARTING, f"{serving} of {len(workers)} workers serve; {_named(missing)}"
        )
    if _gateway_stale(look):
        why = look.samples.gateway_error or "it was not read yet"
        return Verdict("False", ConditionReason.GATEWAY_UNAVAILABLE, f"the gateway does not answer: {why}")
    return Verdict("True", ConditionReason.ALL_SERVING, f"{serving} of {len(workers)} workers serve")


def metrics_available(look: Look) -> Verdict:
    """Whether decisions rest on fresh numbers, and else which source fails and how."""
    if not _gateway_stale(look):
        return _prometheus(look)
    if look.samples.gateway_error is not None:
        return Verdict("False", ConditionReason.GATEWAY_UNREACHABLE, look.samples.gateway_error)
    return Verdict("Unknown", ConditionReason.NOT_YET_SAMPLED, "the gateway was not read yet")


def _prometheus(look: Look) -> Verdict:
    age, samples = look.snapshot.measurements.prometheus_age_seconds, look.samples
    limit = look.policy.engines_stale_after_seconds or look.spec.metrics.stale_after_seconds
    if not look.snapshot.measurements.prometheus_expected:
        return Verdict("True", ConditionReason.FRESH, "gateway statistics; no Prometheus configured")
    if look.samples.prometheus_error is not None:
        return Verdict("False", ConditionReason.PROMETHEUS_UNREACHABLE, look.samples.prometheus_error)
    if age is None:
        text = f"Prometheus has engine series of {samples.coverage}; at least half are needed"
        return Verdict("False", ConditionReason.NOT_YET_SAMPLED, text)
    if age > limit:
        text = f"half of the engine samples in Prometheus are older than {age:.0f} s; up to {limit:g} s are allowed"
        return Verdict("False", ConditionReason.STALE, text)
    if samples.disagreement is not None:
        return Verdict("True", ConditionReason.SOURCES_DISAGREE, samples.disagreement)
    return Verdict("True", ConditionReason.FRESH, "gateway statistics and Prometheus")


def capacity_available(look: Look) -> Verdict:
    """Whether every wanted pod found its place."""
    if look.refusals.capacity is not None:
        return Verdict("False", ConditionReason.QUOTA_OR_ADMISSION, look.refusals.capacity)
    waiting = [pod for pod in look.pods if pod.unschedulable is not None and not pod.deleting]
    if not waiting:
        return Verdict("True", ConditionReason.SUFFICIENT, "every worker pod has a node")
    first = waiting[0]
    message = f"{len(waiting)} worker pods wait for a node; {first.address.name}: {first.unschedulable}"
    return Verdict("False", _waits_for(look, first), message)


def _waits_for(look: Look, waiting: PodFact) -> ConditionReason:
    said = waiting.unschedulable or ""
    if said.startswith(_GATED):
        return ConditionReason.SCHEDULING_GATED
    no_gpus = look.spec.engine.gpu_resource in said
    return ConditionReason.NO_GPUS if no_gpus else ConditionReason.PENDING_PODS


def plan_progressing(look: Look) -> Verdict:
    """True while the fleet is on its way to the target."""
    target = look.plan.target
    missing = pending(look.snapshot, target)
    if target is None or not missing:
        return Verdict("False", ConditionReason.AT_TARGET, "the fleet is what the target says")
    if look.now > target.deadline:
        return Verdict("False", ConditionReason.DEADLINE_EXCEEDED, _named(missing))
    return Verdict("True", ConditionReason.EXECUTING, f"target {target.id} ({target.reason.value}): {_named(missing)}")


def borrowing_active(look: Look) -> Verdict:
    """Whether lent GPUs serve now."""
    if not look.spec.capacity.borrowed.max_gpus:
        return Verdict("False", ConditionReason.DISABLED, "spec.capacity.borrowed.maxGpus is 0")
    if not look.loans_possible:
        return Verdict(
            "False",
            ConditionReason.CLUSTER_SCOPE_MISSING,
            "the operator may not review tokens: install the chart with rbac.clusterScoped=true",
        )
    active = [loan.name for loan in look.loans if loan.status.phase in _ON_LOAN]
    if active:
        return Verdict("True", ConditionReason.LOANS_SERVING, f"{len(active)} of {len(look.loans)} loans are running")
    return Verdict("False", ConditionReason.NO_LOANS, f"none of {len(look.loans)} enrolled loans is running")


def degraded(look: Look) -> Verdict:
    """Something needs a person."""
    broken = [sentence for pod in look.pods if (sentence := _broken(look, pod.address.uid)) is not None]
    broken += look.failing
    lost = [loan.name for loan in look.loans if loan.status.history and loan.status.history[-1].free is False]
    causes = {
        ConditionReason.INVALID_POD_TEMPLATE: look.refusals.template or look.refusals.gateway,
        ConditionReason.GATEWAY_SCALED: look.gateway_scaled,
        ConditionReason.WORKER_FAILED: _named(broken) if broken else None,
        ConditionReason.NOT_RETURNED: f"not returned on time: {_named(lost)}" if lost else None,
        ConditionReason.PLAN_ABANDONED: look.abandoned,
        ConditionReason.UNSUPPORTED: look.engine_problem,
    }
    told = (Verdict("True", reason, sentence) for reason, sentence in causes.items() if sentence is not None)
    return next(told, Verdict("False", ConditionReason.HEALTHY))


def advisory(look: Look) -> Verdict:
    """Whether decisions are carried out."""
    if look.spec.policy.advisory:
        return Verdict("True", ConditionReason.ADVISORY_ONLY, "spec.policy.advisory is true: nothing is changed")
    return Verdict("False", ConditionReason.ENFORCING)


def _gateway_stale(look: Look) -> bool:
    age = look.snapshot.measurements.gateway_age_seconds
    return age is None or age > look.spec.metrics.stale_after_seconds


def _broken(look: Look, uid: str) -> str | None:
    pod = next(pod for pod in look.pods if pod.address.uid == uid)
    worker = next((each for each in look.snapshot.workers if each.uid == uid), None)
    if pod.component != COMPONENT_WORKER or pod.deleting:
        return None
    if pod.waiting is not None and pod.waiting.startswith(_HOPELESS):
        return f"{pod.address.name}: {pod.waiting}"
    if worker is not None and worker.state is WorkerState.FAILED:
        return f"{pod.address.name} is {pod.phase}"
    agent = look.samples.agents.get(uid)
    if agent is not None and agent.phase.value == "WeightsFailed":
        return f"{pod.address.name}: weights failed: {agent.message}"
    return None


def _named(clauses: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(clauses) - _MAX_NAMED
    return "; ".join(clauses[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, with a mark where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"

"""Conditions and status as functions of one look."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from pearl_api import names
from pearl_api.conditions import ConditionType
from pearl_api.loan import GPULoanSpec, GPULoanStatus, LoanPhase
from pearl_api.rollout import PearlRolloutSpec, PearlRolloutStatus
from pearl_operator.conditions import conditions
from pearl_operator.facts import LoanFact, PodFact, RolloutFact
from pearl_operator.look import Look, Refusals
from pearl_operator.metrics import Metrics
from pearl_operator.policy import budget_of, engine_choice, policy_of
from pearl_operator.ports import PodAddress, RolloutKey
from pearl_operator.report import MAX_STATUS_BYTES, status_of, to_wire
from pearl_operator.sources import Samples
from pearl_operator.status_codec import target_from_status, target_to_status
from pearl_planner.types import (
    Activity,
    Batch,
    Measurements,
    Memory,
    Plan,
    Prediction,
    Reason,
    Role,
    RoutingParameters,
    Shape,
    Slot,
    Snapshot,
    Target,
    Worker,
    WorkerState,
    Zone,
)

NOW = 1_800_000_000.0
KEY = RolloutKey("rl", "swe")


def spec_of(**changes: Any) -> PearlRolloutSpec:
    base: dict[str, Any] = {
        "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/x"},
        "engine": {"image": "example/worker:1"},
        "capacity": {"reserved": {"gpus": 2}},
    }
    return PearlRolloutSpec.model_validate(base | changes)


def worker(slot: int, **changes: Any) -> Worker:
    made = Worker(
        uid=f"uid-{slot}",
        pod=f"swe-w{slot}-0",
        slot=slot,
        incarnation=0,
        zone=Zone.RESERVED,
        role=Role.COLOCATED,
        role_epoch=1,
        activity=Activity.ACTIVE,
        state=WorkerState.READY,
        gpus=1,
        acked_epoch=1,
    )
    return replace(made, **changes)


def pod(slot: int, **changes: Any) -> PodFact:
    made = PodFact(
        address=PodAddress("rl", f"swe-w{slot}-0", f"uid-{slot}", "10.0.0.1"),
        resource_version="1",
        rollout=KEY,
        component=names.COMPONENT_WORKER,
        slot=slot,
        phase="Running",
        running=True,
        ready=True,
    )
    return replace(made, **changes)


def target(count: int, role: Role = Role.COLOCATED) -> Target:
    slots = tuple(Slot(slot, Zone.RESERVED, role, 0) for slot in range(count))
    return Target(3, 1, slots, Reason.APPLIED, NOW - 10, NOW + 600)


def look_of(
    workers: tuple[Worker, ...] = (worker(0), worker(1)),
    *,
    spec: PearlRolloutSpec | None = None,
    measurements: Measurements | None = None,
    finalists: tuple[Prediction, ...] = (),
    **changes: Any,
) -> Look:
    spec = spec or spec_of()
    rollout = RolloutFact(
        key=KEY,
        uid="uid",
        resource_version="1",
        generation=4,
        deleting=False,
        hold=False,
        spec=spec,
        status=PearlRolloutStatus(),
    )
    snapshot = Snapshot(
        now=NOW,
        workers=workers,
        loans=(),
        budget=budget_of(spec, loans_enabled=True),
        measurements=measurements or Measurements(gateway_age_seconds=0.5),
        profile=None,
        batch=None,
        target=target(2),
    )
    plan = Plan(
        target=target(2),
        actions=(),
        reason=Reason.WITHIN_DEADBAND,
        message="m",
        shape=Shape(colocated=2),
        finalists=finalists,
        routing=RoutingParameters(64, None),
        memory=Memory(),
        next_look_seconds=5,
    )
    made = Look(
        now=NOW,
        rollout=rollout,
        spec=spec,
        snapshot=snapshot,
        policy=policy_of(rollout, spec, engine_choice(spec), hold=False),
        plan=plan,
        samples=Samples(),
        pods=tuple(pod(each.slot) for each in workers),
    )
    return replace(made, **changes)


def verdict(look: Look, kind: str) -> tuple[str, str]:
    found = {condition.type.value: condition for condition in conditions(look, [])}[kind]
    return (found.status, found.reason.value)


def test_all_are_present_with_the_generation_and_keep_their_transition_time() -> None:
    first = conditions(look_of(), [])
    assert [each.type for each in first] == list(ConditionType)
    assert {each.observed_generation for each in first} == {4}
    assert {each.last_transition_time for each in first} == {"2027-01-15T08:00:00Z"}

    later = look_of((worker(0), worker(1, state=WorkerState.UNREADY)))
    second = {each.type.value: each for each in conditions(replace(later, now=NOW + 60), first)}
    assert second["Ready"].last_transition_time == "2027-01-15T08:01:00Z"
    assert second["MetricsAvailable"].last_transition_time == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ((worker(0), worker(1)), ("True", "AllServing")),
        ((worker(0), worker(1, state=WorkerState.STARTING)), ("False", "WorkersStarting")),
        ((worker(0), worker(1, role_epoch=2)), ("False", "WorkersStarting")),  # not acknowledged
        ((worker(0), worker(1, activity=Activity.DRAINING)), ("False", "WorkersStarting")),
        ((worker(0),), ("False", "WorkersStarting")),
        ((), ("False", "NoWorkers")),
    ],
)
def test_ready_means_that_every_worker_of_the_target_is_routed_to(
    workers: tuple[Worker, ...], expected: tuple[str, str]
) -> None:
    assert verdict(look_of(workers), "Ready") == expected


def test_not_ready_without_a_gateway_or_while_suspended() -> None:
    silent = look_of(measurements=Measurements(gateway_age_seconds=31.0))
    assert verdict(silent, "Ready") == ("False", "GatewayUnavailable")
    assert verdict(look_of(spec=spec_of(suspend=True)), "Ready") == ("False", "Suspended")


def test_engines_that_sleep_since_nobody_asks_are_not_missing() -> None:
    asleep = [worker(slot, state=WorkerState.ASLEEP, activity=Activity.ASLEEP) for slot in (0, 1)]
    look = look_of(
        (asleep[0], asleep[1]),
        spec=spec_of(idle={"action": "Sleep", "afterSeconds": 60}),
        measurements=Measurements(gateway_age_seconds=0.5, asked_seconds=60.0),
    )
    assert verdict(look, "Ready") == ("False", "Idle")
    assert verdict(look, "PlanProgressing") == ("False", "AtTarget")


@pytest.mark.parametrize(
    ("measured", "samples", "expected"),
    [
        ({"gateway_age_seconds": None}, {}, ("Unknown", "NotYetSampled")),
        ({"gateway_age_seconds": 31.0}, {"gateway_error": "refused"}, ("False", "GatewayUnreachable")),
        ({"gateway_age_seconds": 29.0}, {"gateway_error": "refused"}, ("True", "Fresh")),
        ({"prometheus_expected": True}, {}, ("False", "NotYetSampled")),
        ({"prometheus_expected": True}, {"prometheus_error": "refused"}, ("False", "PrometheusUnreachable")),
        ({"prometheus_expected": True, "prometheus_age_seconds": 31.0}, {}, ("False", "Stale")),
        ({"prometheus_expected": True, "prometheus_age_seconds": 5.0}, {}, ("True", "Fresh")),
    ],
)
def test_metrics_available_names_the_source_that_fails(
    measured: dict[str, Any], samples: dict[str, Any], expected: tuple[str, str]
) -> None:
    measurements = Measurements(**{"gateway_age_seconds": 0.5, **measured})
    look = look_of(measurements=measurements, samples=Samples(**samples))
    assert verdict(look, "MetricsAvailable") == expected


def test_capacity_tells_missing_gpus_from_other_waits() -> None:
    gpus = "Unschedulable: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    assert verdict(look_of(pods=(pod(0, unschedulable=gpus),)), "CapacityAvailable") == ("False", "NoGpus")
    taint = "Unschedulable: 0/2 nodes are available: 2 node(s) had untolerated taint."
    assert verdict(look_of(pods=(pod(0, unschedulable=taint),)), "CapacityAvailable") == ("False", "PendingPods")
    gated = look_of(pods=(pod(0, unschedulable="SchedulingGated: Scheduling is blocked due to non-empty gates"),))
    assert verdict(gated, "CapacityAvailable") == ("False", "SchedulingGated")
    quota = look_of(refusals=Refusals(capacity="exceeded quota: gpus"))
    assert verdict(quota, "CapacityAvailable") == ("False", "QuotaOrAdmission")
    assert verdict(look_of(), "CapacityAvailable") == ("True", "Sufficient")


def test_degraded_takes_the_cause_that_needs_a_person_first() -> None:
    pulling = (pod(0), pod(1, ready=False, waiting="ImagePullBackOff: not found"))
    assert verdict(look_of(pods=pulling), "Degraded") == ("True", "WorkerFailed")
    both = look_of(pods=pulling, refusals=Refusals(template="spec: Invalid value"))
    assert verdict(both, "Degraded") == ("True", "InvalidPodTemplate")
    assert verdict(look_of(abandoned="target 2 was not reached"), "Degraded") == ("True", "PlanAbandoned")
    assert verdict(look_of(), "Degraded") == ("False", "Healthy")


def test_progress_follows_the_target_and_its_deadline() -> None:
    moving = look_of((worker(0), worker(1, state=WorkerState.PENDING)))
    assert verdict(moving, "PlanProgressing") == ("True", "Executing")
    assert verdict(replace(moving, now=NOW + 601), "PlanProgressing") == ("False", "DeadlineExceeded")
    assert verdict(look_of(), "PlanProgressing") == ("False", "AtTarget")


def test_borrowing_says_why_it_is_off() -> None:
    assert verdict(look_of(), "BorrowingActive") == ("False", "Disabled")
    spec = spec_of(capacity={"reserved": {"gpus": 2}, "borrowed": {"maxGpus": 2}})
    assert verdict(look_of(spec=spec, loans_possible=False), "BorrowingActive") == ("False", "ClusterScopeMissing")
    assert verdict(look_of(spec=spec), "BorrowingActive") == ("False", "NoLoans")
    loan = LoanFact(
        namespace="train",
        name="trainer-0",
        uid="u",
        resource_version="1",
        deleting=False,
        rollout=KEY,
        spec=GPULoanSpec.model_validate(
            {
                "trainer": {"name": "trainer-0", "uid": "u"},
                "node": "n1",
                "gpus": ["GPU-1"],
                "rolloutRef": {"name": "swe", "namespace": "rl"},
            }
        ),
        status=GPULoanStatus(phase=LoanPhase.SERVING),
    )
    assert verdict(look_of(spec=spec, loans=(loan,)), "BorrowingActive") == ("True", "LoansServing")


def test_counts_of_workers_and_mode() -> None:
    workers = (
        worker(0, role=Role.PREFILL, gpus=2),
        worker(1, role=Role.DECODE, gpus=2),
        worker(2, role=Role.DECODE, gpus=2, state=WorkerState.STARTING, zone=Zone.ELASTIC),
        worker(3, gpus=2, state=WorkerState.TERMINATING),
        worker(1000, gpus=2, state=WorkerState.COLD, zone=Zone.BORROWED),
        worker(1001, gpus=2, state=WorkerState.TERMINATING, zone=Zone.BORROWED),
    )
    status = status_of(look_of(workers), PearlRolloutStatus())
    assert status.mode == "Disaggregated"
    assert status.ready == "2/3"
    assert status.gpus == 8, "an ending worker holds its GPUs, a cold borrower and one whose trainer left hold none"
    counts = status.workers
    assert (counts.prefill, counts.decode, counts.colocated) == (1, 2, 0)
    assert (counts.reserved, counts.elastic, counts.borrowed) == (2, 1, 0)


def test_the_decision_stays_told_while_it_is_carried_out() -> None:
    decided = look_of()
    decided = replace(decided, plan=replace(decided.plan, reason=Reason.APPLIED, message="12 % faster"))
    first = status_of(decided, PearlRolloutStatus())
    moving = replace(decided, plan=replace(decided.plan, reason=Reason.PLAN_IN_PROGRESS, message="on the way"))
    assert status_of(moving, first).last_decision == first.last_decision
    assert first.last_decision is not None
    assert first.last_decision.message == "12 % faster"


def test_a_status_of_four_hundred_workers_with_long_stories_fits_its_limit() -> None:
    workers = tuple(worker(slot, state=WorkerState.PENDING) for slot in range(400))
    finalists = tuple(Prediction(Shape(colocated=400), 1.0, 2.0, 0.0, feasible=True, note="n" * 500) for _ in range(5))
    look = look_of(workers, finalists=finalists)
    look = replace(look, plan=replace(look.plan, target=target(400), message="x" * 5000))
    wire = to_wire(status_of(look, PearlRolloutStatus()))
    assert len(json.dumps(wire, separators=(",", ":"))) <= MAX_STATUS_BYTES
    assert len(wire["target"]["slots"]) == 400


def test_a_target_survives_the_way_through_the_status() -> None:
    there = target(3, Role.DECODE)
    assert target_from_status(target_to_status(there)) == there


def test_a_worker_that_crashes_in_a_loop_is_told_and_the_rollout_is_not_ready() -> None:
    crashing = pod(1, ready=False, running=False, waiting="CrashLoopBackOff: back-off 40s restarting failed container")
    look = look_of((worker(0), worker(1, state=WorkerState.UNREADY)), pods=(pod(0), crashing))
    assert verdict(look, "Ready") == ("False", "WorkersStarting")
    degraded = next(each for each in conditions(look, []) if each.type is ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason.value) == ("True", "WorkerFailed")
    assert degraded.message.startswith("swe-w1-0: CrashLoopBackOff")


def series_of(metrics: Metrics, name: str) -> dict[str, float]:
    """Value by labels, those of the rollout left out; only what is not 0."""
    found = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", generate_latest(metrics.registry).decode(), re.MULTILINE)
    told = {re.sub(r'rollout(_namespace)?="\w+",?', "", labels).rstrip(","): float(value) for labels, value in found}
    return {labels: value for labels, value in told.items() if value}


def test_what_is_wanted_decided_and_predicted_is_told_beside_what_is() -> None:
    metrics = Metrics()
    other = Prediction(Shape(0, 1, 1), 9.0, 99.0, 0.0, feasible=True)
    look = look_of(finalists=(other, Prediction(Shape(colocated=2), 3.5, 40.0, 0.0, feasible=True)))
    batch = Batch(
        7, groups=4, group_size=8, need_groups=4, complete_groups=1, started=20, finished=9, elapsed_seconds=60.0
    )
    look = replace(look, snapshot=replace(look.snapshot, batch=batch))
    metrics.looked(look, 0.1)
    metrics.looked(look, 0.1)
    assert series_of(metrics, "pearl_workers_wanted") == {'role="colocated",zone="reserved"': 2}
    assert series_of(metrics, "pearl_decisions_total") == {'reason="WithinDeadband"': 2}
    assert series_of(metrics, "pearl_predicted_turns_per_second") == {"": 3.5}
    assert series_of(metrics, "pearl_predicted_rest_seconds") == {"": 40}
    assert series_of(metrics, "pearl_batch_open_seconds") == {"": 60}
    expected = {'state="wanted"': 32.0, 'state="started"': 20.0, 'state="finished"': 9.0}
    assert series_of(metrics, "pearl_batch_trajectories") == expected
    assert series_of(metrics, "pearl_reclaim_deadline_seconds") == {"": 10}

    metrics.looked(look_of(), 0.1)  # nothing is predicted, and no batch is open
    for gone in ("predicted_turns_per_second", "predicted_rest_seconds", "batch_open_seconds", "batch_trajectories"):
        assert series_of(metrics, f"pearl_{gone}") == {}
    moved = look_of((worker(0, role=Role.DECODE),))
    metrics.looked(replace(moved, plan=replace(moved.plan, target=target(1, Role.DECODE))), 0.1)
    assert series_of(metrics, "pearl_workers_wanted") == {'role="decode",zone="reserved"': 1}
    assert series_of(metrics, "pearl_workers") == {'role="decode",state="ready",zone="reserved"': 1}
    metrics.forget(KEY)
    assert "swe" not in generate_latest(metrics.registry).decode()


def test_the_reason_of_each_condition_is_told_while_it_lasts() -> None:
    metrics = Metrics()
    waiting = pod(1, running=False, phase="Pending", unschedulable="0/3 nodes: 3 Insufficient nvidia.com/gpu")
    for pods, reason in (((pod(0), waiting), "NoGpus"), ((pod(0), pod(1)), "Sufficient")):
        metrics.reported(KEY, conditions(look_of(pods=pods), []))
        told = [labels for labels in series_of(metrics, "pearl_condition_reason") if "CapacityAvailable" in labels]
        assert told == [f'reason="{reason}",type="CapacityAvailable"']


def test_what_was_forgotten_about_a_table_is_no_series_any_more() -> None:
    metrics, look = Metrics(), look_of()

    def series(**learned: float) -> set[str]:
        metrics.looked(replace(look, plan=replace(look.plan, memory=Memory(**learned))), 0.1)  # type: ignore[arg-type]
        return set(re.findall(r'pearl_model_scale\{.*steps="(\w+)"', generate_latest(metrics.registry).decode()))

    assert series() == set()
    assert series(model_scale=2.0, decode_scale=3.0) == {"all", "decode"}
    assert series(model_scale=2.0) == {"all"}
    assert series() == set()

"""What the closed sets of reasons mean, for the reference pages and for messages to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from pearl_api.conditions import ConditionReason as Why
from pearl_api.conditions import ConditionType


class DecisionReason(StrEnum):
    """Why the last decision is what it is; the planner's `Reason`, word for word."""

    NO_DATA = "NoData"
    STALE_DATA = "StaleData"
    BATCH_UNKNOWN = "BatchUnknown"
    WITHIN_DEADBAND = "WithinDeadband"
    COOLING_DOWN = "CoolingDown"
    SWITCH_COST_TOO_HIGH = "SwitchCostTooHigh"
    PLAN_IN_PROGRESS = "PlanInProgress"
    BUDGET_LIMIT = "BudgetLimit"
    PENDING_CAPACITY = "PendingCapacity"
    RECLAIM_REQUESTED = "ReclaimRequested"
    SPOT_NOTICE = "SpotNotice"
    ENVIRONMENT_BOUND = "EnvironmentBound"
    TRAINER_BOUND = "TrainerBound"
    BORROW_NOT_WORTHWHILE = "BorrowNotWorthwhile"
    COLD_START_TOO_LONG = "ColdStartTooLong"
    INFEASIBLE = "Infeasible"
    HELD = "Held"
    SUSPENDED = "Suspended"
    IDLE = "Idle"
    APPLIED = "Applied"
    ADVISORY_ONLY = "AdvisoryOnly"


DECISIONS: Mapping[DecisionReason, str] = MappingProxyType(
    {
        DecisionReason.NO_DATA: "Nothing was measured yet: the fleet is brought to its size, and mode and ratio stay.",
        DecisionReason.STALE_DATA: "Measurements are older than `metrics.staleAfterSeconds`: no optional change.",
        DecisionReason.BATCH_UNKNOWN: "No batch is open at the gateway: planned for steady state only.",
        DecisionReason.WITHIN_DEADBAND: "Another shape would be better, but by too little to be sure of.",
        DecisionReason.COOLING_DOWN: "The last change is younger than `policy.hysteresis.minDwellSeconds`.",
        DecisionReason.SWITCH_COST_TOO_HIGH: "A better shape would not earn back what changing to it costs.",
        DecisionReason.PLAN_IN_PROGRESS: "A target is being carried out; the next decision waits for it.",
        DecisionReason.BUDGET_LIMIT: "The better shape needs more GPUs than `spec.capacity` allows.",
        DecisionReason.PENDING_CAPACITY: "Pods wait for GPUs: what exists is shaped, the rest follows when it comes.",
        DecisionReason.RECLAIM_REQUESTED: "A trainer wants its GPUs back; this is obeyed before anything else.",
        DecisionReason.SPOT_NOTICE: "A node is about to be taken away: its workers drain.",
        DecisionReason.ENVIRONMENT_BOUND: "Trajectories wait for their environments: other workers do not help.",
        DecisionReason.TRAINER_BOUND: "The rollout is already faster than training: extra GPUs are given back.",
        DecisionReason.BORROW_NOT_WORTHWHILE: "The trainer would want its GPUs back before their start had paid.",
        DecisionReason.COLD_START_TOO_LONG: (
            "The engine would have to start from nothing, and the trainer would want its GPUs back before it served."
        ),
        DecisionReason.INFEASIBLE: "The wanted shape cannot be made, for example two stages with one worker.",
        DecisionReason.HELD: "The annotation `pearl.dev/hold=true` freezes optional changes.",
        DecisionReason.SUSPENDED: "`spec.suspend` is true: workers are drained and removed.",
        DecisionReason.IDLE: "Nothing was asked for `idle.afterSeconds`.",
        DecisionReason.APPLIED: "The best shape was chosen and is the target, or is already in place.",
        DecisionReason.ADVISORY_ONLY: "`policy.advisory` is true: decided and explained, nothing is changed.",
    }
)

CONDITIONS: Mapping[ConditionType, str] = MappingProxyType(
    {
        ConditionType.READY: "The gateway answers and every worker of the target serves.",
        ConditionType.METRICS_AVAILABLE: "Every configured source of measurements is fresh enough to decide on.",
        ConditionType.CAPACITY_AVAILABLE: "Every wanted worker pod got its GPUs.",
        ConditionType.PLAN_PROGRESSING: "A target is being carried out and is within its deadline.",
        ConditionType.BORROWING_ACTIVE: "At least one lent GPU serves.",
        ConditionType.DEGRADED: "Something is wrong that needs a person, or cost a plan.",
        ConditionType.ADVISORY: "Decisions are explained and not carried out.",
    }
)

CONDITION_REASONS: Mapping[ConditionType, Mapping[Why, str]] = MappingProxyType(
    {
        ConditionType.READY: {
            Why.ALL_SERVING: "Every worker of the target served a token.",
            Why.WORKERS_STARTING: "Some workers start or load weights.",
            Why.NO_WORKERS: "The fleet has no worker.",
            Why.GATEWAY_UNAVAILABLE: "The gateway's pod is not ready.",
            Why.SUSPENDED: "`spec.suspend` is true.",
            Why.IDLE: "Nothing was asked for in `spec.idle.afterSeconds`; the next request brings the workers back.",
        },
        ConditionType.METRICS_AVAILABLE: {
            Why.FRESH: "All sources are fresh.",
            Why.GATEWAY_UNREACHABLE: "The gateway's statistics could not be read.",
            Why.PROMETHEUS_UNREACHABLE: "Prometheus could not be queried.",
            Why.STALE: "A source answers with samples that are too old.",
            Why.NOT_YET_SAMPLED: "Nothing was sampled since the operator started, or fewer than half of the workers.",
            Why.SOURCES_DISAGREE: "Sources are fresh, but engines and gateway tell different numbers of requests.",
        },
        ConditionType.CAPACITY_AVAILABLE: {
            Why.SUFFICIENT: "Every wanted pod is scheduled.",
            Why.PENDING_PODS: "Worker pods wait for a node with free GPUs.",
            Why.SCHEDULING_GATED: "A queue (for example Kueue) holds worker pods back and has not admitted them.",
            Why.QUOTA_OR_ADMISSION: "A quota or admission refused a worker pod; the message says which.",
            Why.NO_GPUS: "No node offers the GPU resource.",
        },
        ConditionType.PLAN_PROGRESSING: {
            Why.AT_TARGET: "The fleet is what the last target asked for.",
            Why.EXECUTING: "Steps towards the target are under way.",
            Why.DEADLINE_EXCEEDED: "The target missed its deadline and was dropped.",
        },
        ConditionType.BORROWING_ACTIVE: {
            Why.LOANS_SERVING: "Lent GPUs serve.",
            Why.NO_LOANS: "No trainer lends now.",
            Why.DISABLED: "`capacity.borrowed.maxGpus` is 0.",
            Why.CLUSTER_SCOPE_MISSING: "The chart's `rbac.clusterScoped` is false: no loans, no spot notices.",
        },
        ConditionType.DEGRADED: {
            Why.HEALTHY: "Nothing is wrong.",
            Why.WORKER_FAILED: "A worker will not come back by itself; the message names pod and cause.",
            Why.INVALID_POD_TEMPLATE: "The API server refused a worker pod made from the pod template.",
            Why.GATEWAY_SCALED: "Somebody else sets the gateway's replicas; the message says what to change.",
            Why.PLAN_ABANDONED: "A target was dropped; the next look starts from what is there.",
            Why.NOT_RETURNED: "A lent GPU was not free at the reclaim's hard deadline.",
            Why.UNSUPPORTED: "The spec asks for something that v1alpha1 does not do.",
            Why.INTERNAL_ERROR: "The operator met a bug; its log has the trace.",
        },
        ConditionType.ADVISORY: {
            Why.ADVISORY_ONLY: "`policy.advisory` is true.",
            Why.ENFORCING: "Decisions are carried out.",
        },
    }
)
"""`Unknown` is a reason of every condition: the fact could not be observed."""

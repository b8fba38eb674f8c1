"""Condition types and the closed sets of reasons, all in one place so that they can be documented and tested."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from pearl_api.base import Model


class ConditionType(StrEnum):
    """Conditions of a PearlRollout; every one is always present."""

    READY = "Ready"
    METRICS_AVAILABLE = "MetricsAvailable"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    PLAN_PROGRESSING = "PlanProgressing"
    BORROWING_ACTIVE = "BorrowingActive"
    DEGRADED = "Degraded"
    ADVISORY = "Advisory"


class ConditionReason(StrEnum):
    """Reasons of conditions."""

    # Ready
    ALL_SERVING = "AllServing"
    WORKERS_STARTING = "WorkersStarting"
    NO_WORKERS = "NoWorkers"
    GATEWAY_UNAVAILABLE = "GatewayUnavailable"
    SUSPENDED = "Suspended"
    IDLE = "Idle"
    # MetricsAvailable
    FRESH = "Fresh"
    GATEWAY_UNREACHABLE = "GatewayUnreachable"
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable"
    STALE = "Stale"
    SOURCES_DISAGREE = "SourcesDisagree"
    NOT_YET_SAMPLED = "NotYetSampled"
    # CapacityAvailable
    SUFFICIENT = "Sufficient"
    PENDING_PODS = "PendingPods"
    SCHEDULING_GATED = "SchedulingGated"
    QUOTA_OR_ADMISSION = "QuotaOrAdmission"
    NO_GPUS = "NoGpus"
    # PlanProgressing
    AT_TARGET = "AtTarget"
    EXECUTING = "Executing"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    # BorrowingActive
    LOANS_SERVING = "LoansServing"
    NO_LOANS = "NoLoans"
    DISABLED = "Disabled"
    CLUSTER_SCOPE_MISSING = "ClusterScopeMissing"
    # Degraded
    HEALTHY = "Healthy"
    WORKER_FAILED = "WorkerFailed"
    INVALID_POD_TEMPLATE = "InvalidPodTemplate"
    GATEWAY_SCALED = "GatewayScaled"
    PLAN_ABANDONED = "PlanAbandoned"
    NOT_RETURNED = "NotReturned"
    UNSUPPORTED = "Unsupported"
    INTERNAL_ERROR = "InternalError"
    # Advisory
    ADVISORY_ONLY = "AdvisoryOnly"
    ENFORCING = "Enforcing"
    # shared
    UNKNOWN = "Unknown"


class Condition(Model):
    """One condition, as `metav1.Condition`."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: ConditionReason
    message: str = Field(default="", max_length=32768)
    observed_generation: int = Field(ge=0)
    last_transition_time: str = Field(description="RFC 3339.")

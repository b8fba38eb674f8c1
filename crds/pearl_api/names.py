"""Names that several rooms must agree on: labels, annotations, ports, secrets, environment variables."""

from enum import StrEnum
from typing import Final

GROUP: Final = "pearl.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

LABEL_ROLLOUT: Final = "pearl.dev/rollout"
"""Name of the PearlRollout a pod belongs to."""
LABEL_COMPONENT: Final = "pearl.dev/component"
"""`worker` or `gateway`."""
LABEL_ZONE: Final = "pearl.dev/zone"
"""`reserved`, `elastic` or `borrowed`: where the worker's GPUs come from."""
LABEL_SLOT: Final = "pearl.dev/slot"
"""Number of the worker's place in the fleet; stays when its pod is replaced."""
LABEL_ROLE: Final = "pearl.dev/role"
"""`colocated`, `prefill` or `decode`: what the gateway routes to the worker. Changing it restarts nothing."""
LABEL_ROLE_EPOCH: Final = "pearl.dev/role-epoch"
"""Id of the target that set the role; a flip is done when the gateway acknowledged it."""
LABEL_ACTIVITY: Final = "pearl.dev/activity"
"""`active`, `draining` or `asleep`: whether anything is routed to the worker."""
LABEL_SHAPE: Final = "pearl.dev/shape"
"""Hash of the worker template; a change of it replaces the pod."""
LABEL_LOAN: Final = "pearl.dev/loan"
"""Name of the GPULoan of a borrower pod."""
LABEL_GROUP: Final = "pearl.dev/group"
"""On borrower pods and GPULoans of a trainer of several pods: its group."""
LABEL_ROLLOUT_NAMESPACE: Final = "pearl.dev/rollout-namespace"
"""Namespace of the PearlRollout; on borrower pods, which live in the trainer's namespace."""
ANNOTATION_HOLD: Final = "pearl.dev/hold"
"""On a PearlRollout, `true`: no optional change until it is removed."""

COMPONENT_WORKER: Final = "worker"
COMPONENT_GATEWAY: Final = "gateway"

PORT_ENGINE: Final = 8000
"""Engine: inference, with the `engine` token."""
PORT_AGENT: Final = 8001
"""Worker agent: health, state, activity, weights, loans."""
PORT_GATEWAY: Final = 8080
"""Gateway: inference, batches, trajectories, statistics."""
PORT_OPERATOR: Final = 8090
"""Health, metrics, debug and the loan API of the operator."""
PORT_NIXL: Final = 5600
"""KV transfer between workers; NIXL uses random ports too."""

PORT_NAME_ENGINE: Final = "engine"
"""Name of the engine's container port."""
PORT_NAME_AGENT: Final = "agent"
"""Name of the worker agent's container port."""
PORT_NAME_HTTP: Final = "http"
"""Name of the one port of gateway and operator."""

FIELD_MANAGER: Final = "pearl"
"""Owns everything else that the operator applies."""
FIELD_MANAGER_ROLE: Final = "pearl-role"
"""Owns the role, role-epoch and activity labels of worker pods, and nothing else."""
RELEASE_SECRET: Final = "pearl-operator-keys"  # noqa: S105 - a name
"""Name of the Secret with the HMAC key of a release; only the operator reads it, and it reads no other."""


class Zone(StrEnum):
    """Where a worker's GPUs come from."""

    RESERVED = "reserved"
    ELASTIC = "elastic"
    BORROWED = "borrowed"


class Role(StrEnum):
    """What turns are routed to a worker."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"


class Activity(StrEnum):
    """Whether turns are routed to a worker at all."""

    ACTIVE = "active"
    DRAINING = "draining"
    ASLEEP = "asleep"


def worker_secret(rollout: str) -> str:
    """Name of the Secret that worker pods mount: keys `agent`, `engine`, and on borrowers `loan` (see `tokens`)."""
    return f"{rollout}-pearl-worker"


def gateway_secret(rollout: str) -> str:
    """Name of the Secret that the gateway mounts: keys `agent`, `engine`, `gateway`, `client`."""
    return f"{rollout}-pearl-gateway"


def client_secret(rollout: str) -> str:
    """Name of the Secret for RL frameworks and agents: key `token`, the gateway's bearer token."""
    return f"{rollout}-pearl-client"


def gateway_name(rollout: str) -> str:
    """Name of the gateway's Deployment, Service and ServiceAccount."""
    return f"{rollout}-gateway"


def worker_pod(rollout: str, slot: int, incarnation: int) -> str:
    """Deterministic name of a worker pod: a stale index gives AlreadyExists, not a duplicate."""
    return f"{rollout}-w{slot}-{incarnation}"


def borrower_pod(loan: str, index: int) -> str:
    """Deterministic name of the borrower pod number `index` (from 0) of a loan."""
    return f"{loan}-borrower-{index}"

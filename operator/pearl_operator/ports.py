"""Everything the operator may do to the outside, as protocols.

The adapters are `kube`, `gateway_client`, `prometheus`, `agents` and `clock`; tests and the simulator put fakes on
a virtual clock here. Kubernetes objects are plain dicts as the API server sends them. Every method may raise
`errors.RetryAfter` (with its subclasses) and `errors.Permanent`; nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_api.rollout import PrometheusSpec
    from pearl_api.wire.gateway import GatewayStats
    from pearl_api.wire.worker import ActivityRequest, GrantRequest, LoanState, WorkerState
    from pearl_operator.dcgm import GpuSample
    from pearl_operator.kinds import Kind
    from pearl_planner.types import WorkerMetrics

Object = dict[str, Any]
"""A Kubernetes object."""


@dataclass(frozen=True, slots=True, order=True)
class RolloutKey:
    """A PearlRollout by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """`namespace/name`, as people write it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A pod and where it answers."""

    namespace: str
    name: str
    uid: str
    ip: str | None
    """None until it was started."""
    lender: str | None = None
    """Of a borrower: whose loan its tokens are limited to (`pearl_api.tokens.lender`)."""

    @property
    def path(self) -> str:
        """`namespace/name`, as Prometheus' series are found by."""
        return f"{self.namespace}/{self.name}"


class Kube(Protocol):
    """The Kubernetes API. The namespace of `create`, `apply` and `apply_status` is the body's."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None where it does not exist."""

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        heads: bool = False,
    ) -> list[Object]:
        """All objects with these labels and fields, of one namespace or (None) of the whole cluster.

        `heads`: only their `metadata`.
        """

    async def create(self, kind: Kind, body: Object) -> Object:
        """A new object as stored; raises `AlreadyExists`. Also for reviews, which answer in `status`."""

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        """Runs defaulting, validation and admission without storing; raises `Refused` with the API's sentence."""

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        """Server-side apply: `manager` owns exactly the fields of `body`.

        With `metadata.uid` in the body the object must be that one, else `Conflict`.
        """

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        """Server-side apply of the status; with `metadata.resourceVersion` in the body `Conflict` if it is older."""

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes it; a missing object is fine, another `uid` raises `Conflict`."""


class Keys(Protocol):
    """The root HMAC keys of the rollouts."""

    async def root_key(self, rollout: RolloutKey) -> str:
        """The key, to derive tokens from (`pearl_api.tokens`); raises `RetryAfter` while its Secret is missing."""


class Gateway(Protocol):
    """The rollouts' gateways."""

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        """One merged read of all gateway processes."""


@dataclass(frozen=True, slots=True)
class EngineSamples:
    """Engine series of worker pods."""

    by_pod: dict[str, WorkerMetrics]
    """By `namespace/pod`; may hold strangers and the dead (look-back windows): the caller joins with live pods."""
    sampled_at: dict[str, float]
    """Wall-clock time of each pod's newest sample, by the same names."""


class Prometheus(Protocol):
    """A Prometheus server."""

    async def engines(self, rollout: RolloutKey, spec: PrometheusSpec) -> EngineSamples:
        """The engine series of one rollout."""

    async def gpus(self, rollout: RolloutKey, spec: PrometheusSpec) -> list[GpuSample]:
        """What DCGM's exporter tells of its GPUs; may hold strangers and the dead."""


class Agents(Protocol):
    """The worker agents. A pod without address raises `RetryAfter`."""

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        """What the agent observes."""

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        """Asks it to drain, sleep or be active; harmless to repeat."""

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        """Lets it run its engine under a loan; raises `Refused` where the epoch is fenced or older."""


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch; for what is written down."""

    def monotonic(self) -> float:
        """Seconds that never go back; for durations and deadlines."""

    async def sleep(self, seconds: float) -> None:
        """Lets this much time pass."""


class Resolver(Protocol):
    """Where things answer; another one makes fakes on the loopback look like pods."""

    def agent(self, pod: PodAddress) -> str | None:
        """Base URL of the pod's agent; None until it has an address."""

    def gateway(self, rollout: RolloutKey) -> str:
        """Base URL of the rollout's gateway."""

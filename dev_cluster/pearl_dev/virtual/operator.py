"""One operator process over its ports: index, loops, loan service and resync. No kopf, no Lease, no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pearl_operator import kinds
from pearl_operator.core import Core, Ports, assemble_core
from pearl_operator.index import Index, key_of
from pearl_operator.keys import SecretKeys
from pearl_operator.loans import LoanService
from pearl_operator.resync import Resync

if TYPE_CHECKING:
    from pearl_dev.virtual.clock import VirtualClock
    from pearl_dev.virtual.kube import FakeKube, Object
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Agents, Gateway, PodAddress, Prometheus, RolloutKey
    from pearl_operator.settings import Settings

WATCHED = (kinds.POD, kinds.ROLLOUT, kinds.LOAN, kinds.NODE)


class Resolver:
    """Where agents and gateways would answer."""

    def agent(self, pod: PodAddress) -> str | None:
        """Of a pod, once it has an address."""
        return pod.ip

    def gateway(self, rollout: RolloutKey) -> str:
        """Of a rollout."""
        return f"http://{rollout.name}-gateway"


@dataclass(frozen=True)
class Operator:
    """Its parts; `watch` takes events of the API server, and the three `run` for ever."""

    core: Core
    service: LoanService
    resync: Resync

    def watch(self, event: str, kind: Kind, body: Object) -> None:
        """As kopf's handlers do."""
        if kind not in WATCHED:
            return
        if event == "DELETED":
            self.core.index.forget(kind, key_of(kind, body["metadata"]), body["metadata"].get("uid"))
        else:
            self.core.index.put(kind, body)


def assembled(  # noqa: PLR0913 - one argument per port
    *,
    kube: FakeKube,
    gateway: Gateway,
    prometheus: Prometheus,
    agents: Agents,
    clock: VirtualClock,
    settings: Settings,
) -> Operator:
    """A new process that has seen nothing yet."""
    index, resolver = Index(clock), Resolver()
    keys = SecretKeys(kube, settings.namespace, index.uid_of)
    ports = Ports(
        kube=kube,
        gateway=gateway,
        prometheus=prometheus,
        agents=agents,
        clock=clock,
        resolver=resolver,
        keys=keys,
    )
    service = LoanService(
        kube=kube, index=index, agents=agents, keys=keys, clock=clock, resolver=resolver, settings=settings
    )
    core = assemble_core(ports, index, service, settings)
    core.metrics.registry.register(service.metrics)
    return Operator(core, service, Resync(kube, index, clock, settings))

"""The `Agents` port over HTTP, and the resolver of addresses inside a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api import names, tokens
from pearl_api.wire.worker import ActivityRequest, GrantRequest, LoanState, WorkerState
from pearl_operator.calls import Receiver
from pearl_operator.errors import Unavailable
from pearl_operator.http_json import HttpJson, parse

if TYPE_CHECKING:
    from pydantic import BaseModel

    from pearl_operator.ports import Keys, PodAddress, Resolver, RolloutKey


class ClusterResolver:
    """Pods by their IP, which is never remembered; gateways by their Service's name."""

    def agent(self, pod: PodAddress) -> str | None:
        """Base URL of the agent."""
        if pod.ip is None:
            return None
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        return f"http://{host}:{names.PORT_AGENT}"

    def gateway(self, rollout: RolloutKey) -> str:
        """Base URL of the gateway's Service."""
        return f"http://{names.gateway_name(rollout.name)}.{rollout.namespace}.svc:{names.PORT_GATEWAY}"


class AgentClient:
    """See `ports.Agents`."""

    def __init__(self, http: HttpJson, keys: Keys, resolver: Resolver) -> None:
        self._http = http
        self._keys = keys
        self._resolver = resolver

    async def _call(
        self, method: str, rollout: RolloutKey, pod: PodAddress, path: str, body: BaseModel | None = None
    ) -> bytes:
        base = self._resolver.agent(pod)
        if base is None:
            raise Unavailable(f"pod {pod.namespace}/{pod.name} has no address yet")
        token = tokens.of_borrower(tokens.derive(await self._keys.root_key(rollout), "agent"), pod.lender)
        return await self._http.call(Receiver.AGENT, method, base + path, token=token, body=body)

    async def state(self, rollout: RolloutKey, pod: PodAddress) -> WorkerState:
        """What the agent observes."""
        raw = await self._call("GET", rollout, pod, "/v1/state")
        return parse(WorkerState, raw, f"state of {pod.name}")

    async def set_activity(self, rollout: RolloutKey, pod: PodAddress, request: ActivityRequest) -> WorkerState:
        """Drain, sleep or be active."""
        raw = await self._call("POST", rollout, pod, "/v1/activity", request)
        return parse(WorkerState, raw, f"activity of {pod.name}")

    async def grant(self, rollout: RolloutKey, pod: PodAddress, request: GrantRequest) -> LoanState:
        """Lets the engine run under a loan."""
        raw = await self._call("POST", rollout, pod, "/v1/loan/grant", request)
        return parse(LoanState, raw, f"grant to {pod.name}")

"""One PearlRollout on a running cluster, as the tests and the demo look at it and shake it.

Plain dicts from the API server and models from the gateway; every wait has a deadline and says what it last saw.
"""

from __future__ import annotations

import base64
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import yaml

from pearl_api import names, tokens
from pearl_api.wire.gateway import GatewayStats, TrajectoryExport
from pearl_api.wire.worker import WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
Object = dict[str, Any]

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
POLL_SECONDS = 0.2


class Api:
    """The Kubernetes API by path, with the credentials of a kubeconfig file."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read cluster and token of the current context.

        Args:
            kubeconfig: a file as the cluster writes it: one cluster with CA data, one user with a token.
        """
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._http = httpx.Client(
            base_url=cluster["server"],
            headers={"Authorization": f"Bearer {user['token']}"},
            verify=context,
            timeout=30,
            trust_env=False,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def get(self, path: str, **params: str) -> Object | None:
        """The object or list at `path`; None where there is none."""
        answer = self._http.get(path, params=params)
        return None if answer.status_code == httpx.codes.NOT_FOUND else _checked(answer)

    def items(self, path: str, **params: str) -> list[Object]:
        """Objects of the list at `path`."""
        found = self.get(path, **params)
        return list(found["items"]) if found else []

    def patch(self, path: str, body: Object, *, kind: str = MERGE, **params: str) -> Object:
        """A merge patch, or a server-side apply with `kind=APPLY` and `fieldManager=…`."""
        answer = self._http.patch(path, json=body, headers={"Content-Type": kind}, params=params)
        return _checked(answer)

    def create(self, path: str, body: Object, **params: str) -> Object:
        """A new object."""
        return _checked(self._http.post(path, json=body, params=params))

    def delete(self, path: str, **params: str) -> None:
        """Delete; a missing object is fine."""
        answer = self._http.delete(path, params=params)
        if answer.status_code != httpx.codes.NOT_FOUND:
            _checked(answer)


def _checked(answer: httpx.Response) -> Object:
    if answer.is_error:
        raise RuntimeError(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:2000]}")
    body: Object = answer.json()
    return body


def wait_for(look: Callable[[], T | None], *, seconds: float, what: str, last: Callable[[], object] = str) -> T:
    """Look until the answer is true in the sense of `if`: neither None nor False, zero or empty.

    Raises:
        TimeoutError: not within `seconds`; the message tells what `last` saw.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s; last seen: {last()}")
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Turn:
    """One answer of the token-id path."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[Object]
    finish_reason: str
    raw: Object = field(repr=False)


@dataclass(slots=True)
class Fleet:
    """A PearlRollout by namespace and name."""

    api: Api
    namespace: str
    name: str
    # A connection to a pod that is just going gets no answer at all: try again soon.
    http: httpx.Client = field(
        default_factory=lambda: httpx.Client(timeout=httpx.Timeout(120, connect=2), trust_env=False)
    )

    @property
    def path(self) -> str:
        """API path of the custom resource."""
        return f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/pearlrollouts/{self.name}"

    def close(self) -> None:
        """Give the connections back."""
        self.http.close()

    def resource(self) -> Object:
        """The custom resource as stored; raises if it is gone."""
        found = self.api.get(self.path)
        if found is None:
            raise RuntimeError(f"PearlRollout {self.namespace}/{self.name} does not exist")
        return found

    def status(self) -> Object:
        """Its status; empty before the first report."""
        status: Object = self.resource().get("status", {})
        return status

    def condition(self, kind: str) -> Object:
        """One condition; empty before the first report."""
        return next((c for c in self.status().get("conditions", []) if c["type"] == kind), {})

    def apply(self, manifest: Object) -> Object:
        """Server-side apply of the custom resource."""
        return self.api.patch(self.path, manifest, kind=APPLY, fieldManager="test", force="true")

    def patch(self, spec: Object, **metadata: object) -> Object:
        """Merge `spec` (and metadata) into the custom resource."""
        body: Object = {"spec": spec} if spec else {}
        if metadata:
            body["metadata"] = metadata
        return self.api.patch(self.path, body)

    def workers(self) -> list[Object]:
        """Worker pods that are not being deleted, oldest slot first; borrowers in other namespaces too."""
        selector = f"{names.LABEL_ROLLOUT}={self.name},{names.LABEL_COMPONENT}={names.COMPONENT_WORKER}"
        pods = self.api.items("/api/v1/pods", labelSelector=selector)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: pod["metadata"]["name"])

    def uids(self) -> dict[str, str]:
        """Pod UIDs by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.workers()}

    def roles(self) -> dict[str, str]:
        """Role labels by pod name."""
        return {pod["metadata"]["name"]: pod["metadata"]["labels"][names.LABEL_ROLE] for pod in self.workers()}

    def engines(self) -> dict[str, int | None]:
        """Process ids of the engines by pod name; another one is another engine."""
        return {pod["metadata"]["name"]: self.agent(pod).engine_pid for pod in self.workers()}

    def wait(self, what: str, look: Callable[[Object], T | None], *, seconds: float) -> T:
        """Look at the custom resource until `look` answers."""
        return wait_for(lambda: look(self.resource()), seconds=seconds, what=what, last=self._summary)

    def wait_ready(self, workers: int, *, seconds: float = 300) -> Object:
        """Until Ready is True and exactly `workers` workers are ready."""

        def ready(found: Object) -> Object | None:
            status = found.get("status", {})
            counts = status.get("workers", {})
            true = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            right = counts.get("ready") == workers == counts.get("total")
            return found if true and current and right else None

        found = self.wait(f"{self.name} ready with {workers} workers", ready, seconds=seconds)
        wait_for(self._gateway_answers, seconds=60, what=f"the gateway of {self.name} answers", last=self._summary)
        return found

    def _gateway_answers(self) -> bool:
        try:
            return bool(self.stats().rollout)
        except httpx.TransportError:  # it restarts when its image or template changes
            return False

    def wait_roles(self, wanted: Mapping[str, int], *, seconds: float = 60) -> GatewayStats:
        """Until the gateway routes by exactly these roles (role → number of ready, active workers)."""

        def routed() -> GatewayStats | None:
            try:
                stats = self.stats()
            except httpx.TransportError:  # the gateway restarts when its image or template changes
                return None
            live = [worker for worker in stats.workers if worker.ready and worker.activity == names.Activity.ACTIVE]
            seen = {role: sum(w.role == role for w in live) for role in {w.role for w in live}}
            return stats if seen == dict(wanted) else None

        return wait_for(routed, seconds=seconds, what=f"{self.name} with roles {dict(wanted)}", last=self._summary)

    def _summary(self) -> object:
        status = self.status()
        pods = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in self.workers()}
        shown = ("mode", "workers", "lastDecision", "conditions")
        return {"pods": pods, "roles": self.roles(), **{key: status.get(key) for key in shown}}

    def gateway_url(self) -> str:
        """Base URL by Service address, which this machine reaches through the cluster's cable."""
        path = f"/api/v1/namespaces/{self.namespace}/services/{names.gateway_name(self.name)}"
        service = self.api.get(path)
        if service is None:
            raise RuntimeError(f"the gateway's Service {names.gateway_name(self.name)} does not exist yet")
        return f"http://{service['spec']['clusterIP']}:{names.PORT_GATEWAY}"

    def secret(self, name: str) -> dict[str, str]:
        """Decoded values of a Secret in the rollout's namespace."""
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        if found is None:
            raise RuntimeError(f"Secret {self.namespace}/{name} does not exist")
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    def client_token(self) -> str:
        """Bearer token for agents and RL frameworks."""
        return self.secret(names.client_secret(self.name))["token"]

    def call(self, method: str, path: str, body: Object | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """One authorized call of the gateway; JSON in, JSON out."""
        every = {"Authorization": f"Bearer {self.client_token()}", **(headers or {})}
        answer = self.http.request(method, self.gateway_url() + path, json=body, headers=every)
        return _checked(answer)

    def stats(self) -> GatewayStats:
        """What the gateway measured."""
        return GatewayStats.model_validate(self.call("GET", "/v1/stats"))

    def trajectory(self, trajectory: str) -> TrajectoryExport:
        """The export of one trajectory."""
        return TrajectoryExport.model_validate(self.call("GET", f"/v1/trajectories/{trajectory}"))

    def generate(self, token_ids: Sequence[int], max_tokens: int, headers: Mapping[str, str] | None = None) -> Turn:
        """Greedy token ids through the gateway, without stopping at the end-of-sequence token."""
        body = generate_body(token_ids, max_tokens)
        return turn(self.call("POST", "/inference/v1/generate", body, headers))

    def worker_token(self, pod: Object, purpose: str) -> str:
        """What opens one worker's `agent` or `engine`; a borrower's is limited to its loan."""
        return tokens.of_borrower(
            self.secret(names.worker_secret(self.name))[purpose], tokens.lender_of(pod["metadata"])
        )

    def generate_on(self, pod: Object, token_ids: Sequence[int], max_tokens: int) -> Turn:
        """The same straight on one worker's engine: the undisturbed reference."""
        token = self.worker_token(pod, "engine")
        url = f"http://{pod['status']['podIP']}:{names.PORT_ENGINE}/inference/v1/generate"
        body = {**generate_body(token_ids, max_tokens), "model": self.resource()["spec"]["model"]["name"]}
        answer = self.http.post(url, json=body, headers={"Authorization": f"Bearer {token}"})
        return turn(_checked(answer))

    def agent(self, pod: Object) -> WorkerState:
        """State of one worker's agent."""
        token = self.worker_token(pod, "agent")
        url = f"http://{pod['status']['podIP']}:{names.PORT_AGENT}/v1/state"
        answer = self.http.get(url, headers={"Authorization": f"Bearer {token}"})
        return WorkerState.model_validate(_checked(answer))


def generate_body(token_ids: Sequence[int], max_tokens: int) -> Object:
    """A greedy request of the token-id path."""
    sampling = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    return {"token_ids": list(token_ids), "sampling_params": sampling}


def turn(answer: Object) -> Turn:
    """The first choice of a token-id answer."""
    choice = answer["choices"][0]
    content = (choice.get("logprobs") or {}).get("content") or []
    logprobs = [entry["logprob"] for entry in content]
    return Turn(choice["token_ids"], logprobs, choice.get("weight_versions") or [], choice["finish_reason"], answer)

"""A plain operator to compare with: every few seconds it lists the pods of each PearlRollout, and creates or deletes.

    python tests/bench/scale_plain.py KUBECONFIG METRICS_PORT [--every 2]

It knows no watches, no roles, no gateways and no notices, and takes over the worker pods that it finds. Its calls are
counted like those of the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Histogram, start_http_server

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bench")]

from scale_api import APPLY, PODS, ROLLOUTS, Answered, Api, connected  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]
ROLLOUT, COMPONENT, SLOT = "pearl.dev/rollout", "pearl.dev/component", "pearl.dev/slot"


class Plain:
    """One loop per rollout over the API server."""

    def __init__(self, api: Api, calls: Histogram) -> None:
        self._api = api
        self._calls = calls
        self._made = 0
        self._templates: dict[str, Object] = {}
        """A pod of each rollout, to make others like it."""

    async def run(self, every: float) -> None:
        """For ever; a rollout that fails is tried again in the next round."""
        loops: dict[str, asyncio.Task[None]] = {}
        while True:
            for rollout in await self._list(ROLLOUTS):
                name = rollout["metadata"]["name"]
                if name not in loops or loops[name].done():
                    loops[name] = asyncio.create_task(self._look(rollout))
            await asyncio.sleep(every)

    async def _look(self, rollout: Object) -> None:
        try:
            await self._reconcile(rollout)
        except (Answered, OSError, TimeoutError) as error:
            print(f"{rollout['metadata']['name']}: {error}", file=sys.stderr)

    async def _reconcile(self, rollout: Object) -> None:
        """Lists, compares, acts, reports."""
        name, spec = rollout["metadata"]["name"], rollout["spec"]
        pods = await self._list(PODS, labelSelector=f"{ROLLOUT}={name},{COMPONENT}=worker")
        capacity = spec["capacity"]
        gpus = capacity["reserved"]["gpus"] + capacity.get("elastic", {}).get("maxGpus", 0)
        wanted = gpus // spec["engine"]["tensorParallel"]
        taken = {int(pod["metadata"]["labels"][SLOT]): pod for pod in pods}
        if pods:
            self._templates[name] = pods[0]
        missing = [slot for slot in range(wanted) if slot not in taken]
        for slot in missing:
            await self._create(name, slot)
        for slot in sorted(taken)[wanted:]:
            await self._call("DELETE", f"{PODS}/{taken[slot]['metadata']['name']}")
        ready = f"{sum(map(is_ready, pods))}/{wanted}"
        if rollout.get("status", {}).get("ready") != ready:
            await self._report(name, ready)

    async def _create(self, rollout: str, slot: int) -> None:
        body = copy_of(self._templates[rollout])
        body["metadata"]["name"] = f"{rollout}-w{slot}-{self._made + 1_000_000}"
        body["metadata"]["labels"][SLOT] = str(slot)
        self._made += 1
        await self._call("POST", PODS, body)

    async def _report(self, rollout: str, ready: str) -> None:
        body = {
            "apiVersion": "pearl.dev/v1alpha1",
            "kind": "PearlRollout",
            "metadata": {"name": rollout},
            "status": {"ready": ready},
        }
        await self._call("PATCH", f"{ROLLOUTS}/{rollout}/status", body, kind=APPLY, fieldManager="plain", force="true")

    async def _list(self, path: str, **params: str) -> list[Object]:
        with self._counted("GET"):
            return (await self._api.list(path, **params))[0]

    async def _call(self, method: str, path: str, body: Object | None = None, **options: str) -> None:
        with self._counted(method):
            await self._api.call(method, path, body, **options)

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._calls.labels("apiserver", method).observe(time.monotonic() - began)


def is_ready(pod: Object) -> bool:
    """By its condition."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def copy_of(pod: Object) -> Object:
    """A new pod like this one."""
    meta = pod["metadata"]
    kept = {"labels": dict(meta["labels"]), "ownerReferences": meta["ownerReferences"]}
    dropped = ("nodeName", "serviceAccount", "serviceAccountName", "priority", "preemptionPolicy")
    spec = {key: value for key, value in pod["spec"].items() if key not in dropped}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


async def main(kubeconfig: Path, port: int, every: float) -> None:
    """For ever."""
    registry = CollectorRegistry()
    calls = Histogram("pearl_call_seconds", "Of calls.", ("to", "method"), registry=registry)
    start_http_server(port, addr="127.0.0.1", registry=registry)
    async with connected(kubeconfig) as api:
        await Plain(api, calls).run(every)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--every", type=float, default=2.0)
    options = parser.parse_args()
    asyncio.run(main(options.kubeconfig, options.port, options.every))

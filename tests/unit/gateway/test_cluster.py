"""Lists and watches against an API server that breaks off, forgets and comes back."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from pearl_api.names import Role
from pearl_gateway.cluster import PodMembership, RolloutWatch
from pearl_gateway.fleet import Fleet
from pearl_gateway.gateway import Routing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FakeApiServer:
    """Lists what it has; watches send what is put into the queue, `None` ends one, an int is an error code."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.lists = 0
        self.selectors: set[str] = set()
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/ns/pods", self.handle)
        app.router.add_get("/apis/pearl.dev/v1alpha1/namespaces/ns/pearlrollouts", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.selectors.add(request.query.get("labelSelector") or request.query.get("fieldSelector") or "")
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"metadata": {"resourceVersion": "5"}, "items": self.items})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            event = await self.events.get()
            if event is None:
                return response
            await response.write(json.dumps(event).encode() + b"\n")


def pod(uid: str, role: str = "colocated") -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "name": uid, "resourceVersion": "6", "labels": {"pearl.dev/role": role}},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer()
    runner = await made.start()
    yield made
    await runner.cleanup()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


def api(server: FakeApiServer) -> client.ApiClient:
    configuration = client.Configuration(host=server.url)
    return client.ApiClient(configuration)


async def test_pods_follow_the_watch_and_after_an_error_the_list(server: FakeApiServer) -> None:
    fleet = Fleet(time.monotonic)
    server.items = [pod("a"), pod("b")]
    known = []
    async with api(server) as connection:
        membership = PodMembership(client.CoreV1Api(connection), "r", "ns", "ns")
        task = asyncio.create_task(membership.run(fleet, lambda: known.append(1)))
        await until(lambda: set(fleet.workers) == {"a", "b"})
        server.events.put_nowait({"type": "MODIFIED", "object": pod("a", "decode")})
        await until(lambda: fleet.workers["a"].facts.role is Role.DECODE)
        server.events.put_nowait({"type": "DELETED", "object": pod("b")})
        await until(lambda: set(fleet.workers) == {"a"})
        # What happened while the watch was broken is in the list only.
        server.items = [pod("c")]
        gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "message": "too old", "reason": "Expired"}
        server.events.put_nowait({"type": "ERROR", "object": gone})
        server.events.put_nowait(None)
        await until(lambda: set(fleet.workers) == {"c"})
        assert (server.lists, len(known)) == (2, 2)
        assert server.selectors == {"pearl.dev/rollout=r,pearl.dev/component=worker"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_borrowers_of_another_namespace_are_told_apart_by_the_rollouts_namespace(server: FakeApiServer) -> None:
    async with api(server) as connection:
        membership = PodMembership(client.CoreV1Api(connection), "r", "ns", "release")
        task = asyncio.create_task(membership.run(Fleet(time.monotonic), lambda: None))
        await until(lambda: server.lists == 1)
        assert "pearl.dev/rollout-namespace=release" in next(iter(server.selectors))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_routing_parameters_follow_the_rollout(server: FakeApiServer) -> None:
    routing = Routing(local_append_tokens=64, window=None, max_staleness=1)
    rollout: dict[str, Any] = {
        "metadata": {"name": "r", "resourceVersion": "6"},
        "spec": {},
        "status": {"routing": {"localAppendTokens": 7}},
    }
    server.items = [rollout]
    async with api(server) as connection:
        task = asyncio.create_task(RolloutWatch(client.CustomObjectsApi(connection), "r", "ns", routing).run())
        await until(lambda: routing.local_append_tokens == 7)
        changed = {**rollout, "status": {"routing": {"localAppendTokens": 7, "inFlightWindow": 9}}}
        server.events.put_nowait({"type": "MODIFIED", "object": changed})
        await until(lambda: routing.window == 9)
        assert server.selectors == {"metadata.name=r"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

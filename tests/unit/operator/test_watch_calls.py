"""kopf itself, on an API server that is not there: what it sends is told, and what its watches bring is counted."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import aiohttp
import kopf
import pytest
import yaml
from aiohttp import web
from prometheus_client import generate_latest

from pearl_operator import logs
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.index import Index
from pearl_operator.settings import Settings
from pearl_operator.watch import build_registry, kopf_settings
from pearl_operator.watch_calls import session_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SETTINGS = Settings(namespace="rl", gateway_image="x", cluster_scoped=False)
RESOURCES = {
    "/api/v1": ["pods", "namespaces", "events"],
    "/apis/pearl.dev/v1alpha1": ["pearlrollouts", "gpuloans"],
    "/apis/coordination.k8s.io/v1": ["leases"],
    "/apis/apiextensions.k8s.io/v1": ["customresourcedefinitions"],
}
"""Watched ones, and those that kopf looks for before it begins."""
POD = {"metadata": {"name": "swe-w0-0", "namespace": "rl", "uid": "u", "resourceVersion": "2", "labels": {}}}
EVENT = json.dumps({"type": "ADDED", "object": POD}) + "\n"


class ApiServer:
    """Knows what kopf asks for; a watch of pods brings two events, and all watches end when `ends` is set."""

    def __init__(self) -> None:
        self.url = ""
        self.ends = asyncio.Event()
        self.watched: set[str] = set()
        self.breaks = False
        self.headers: list[str | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.get("Authorization"))
        path, plural = request.path, request.path.rpartition("/")[2]
        if path in RESOURCES:
            return web.json_response({"resources": [self._resource(each) for each in RESOURCES[path]]})
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            return web.json_response({"groups": [self._group(each) for each in list(RESOURCES)[1:]]})
        if request.query.get("watch") == "true":
            return await self._watch(request, plural)
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    def _resource(self, plural: str) -> dict[str, Any]:
        known = {"name": plural, "singularName": "", "kind": plural.title(), "namespaced": True}
        return {**known, "verbs": ["list", "watch", "patch"]}

    def _group(self, path: str) -> dict[str, Any]:
        _, _, group, version = path.split("/")
        known = {"groupVersion": f"{group}/{version}", "version": version}
        return {"name": group, "versions": [known], "preferredVersion": known}

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        if plural == "pods" and plural not in self.watched:
            await stream.write((EVENT * 2).encode())
        self.watched.add(plural)
        await self.ends.wait()
        if self.breaks and request.transport is not None:
            request.transport.abort()
        return stream


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server, app = ApiServer(), web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    server.ends.set()
    await runner.cleanup()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "pearl.calls")
    return lambda message: [
        line
        for each in caplog.records
        if each.name == "pearl.calls" and (line := json.loads(logs.JsonFormatter().format(each)))["message"] == message
    ]


def kubeconfig(server: ApiServer, folder: Path) -> str:
    path, name = folder / "kubeconfig", "x"
    known = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server.url}}],
        "users": [{"name": name, "user": {"token": "secret-token"}}],
    }
    path.write_text(yaml.safe_dump(known))
    return str(path)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - conditions of any kind
            await asyncio.sleep(0.02)


async def test_kopfs_lists_and_watches_are_told_and_counted(
    server: ApiServer, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(server, tmp_path))
    calls, stop = Calls(SystemClock()), asyncio.Event()
    registry = build_registry(Index(SystemClock()), SETTINGS, calls)
    works = asyncio.create_task(
        kopf.operator(
            registry=registry, settings=kopf_settings(SETTINGS), namespaces=["rl"], standalone=True, stop_flag=stop
        )
    )
    await until(lambda: len(server.watched) == 4)
    pods = "/api/v1/namespaces/rl/pods"

    def series() -> str:
        return generate_latest(calls.registry).decode()

    await until(lambda: 'pearl_watch_events_total{resource="pods"} 2.0' in series())  # while it runs
    assert f'pearl_watch_bytes_total{{resource="pods"}} {2 * len(EVENT)}.0' in series()
    assert 'pearl_watch_seconds_count{resource="pods"}' not in series()
    (began,) = [line for line in told("watch began") if line["url"] == pods]
    assert began.items() >= {"to": "apiserver", "method": "GET"}.items()
    assert began["seconds"] >= 0
    lists = [line for line in told("call") if line["url"] == pods]
    assert [(line["answer"], line["method"]) for line in lists] == [("200", "GET")]
    server.ends.set()
    await until(lambda: any(line["url"] == pods for line in told("watch ended")))
    ended = next(line for line in told("watch ended") if line["url"] == pods)
    assert ended["events"] == 2
    assert ended["started"] == began["started"]
    assert ended["seconds"] >= began["seconds"]
    assert "error" not in ended
    assert 'pearl_watch_seconds_count{resource="pods"}' in series()
    assert set(server.headers) == {"Bearer secret-token"}
    assert "secret-token" not in json.dumps([told("call"), told("watch began"), told("watch ended")])
    stop.set()
    await works


async def test_a_watch_that_breaks_is_told_with_what_went_wrong(server: ApiServer, told: Any) -> None:
    server.breaks = True
    server.ends.set()
    calls = Calls(SystemClock())
    async with session_of(kopf.ConnectionInfo(server=server.url), calls).aiohttp_session as session:
        with pytest.raises(aiohttp.ClientError):
            async with session.get(f"{server.url}/api/v1/pods", params={"watch": "true"}) as answer:
                assert [chunk async for chunk in answer.content.iter_chunked(1024)]
    (ended,) = told("watch ended")
    assert ended["events"] == 2
    assert ended["error"].startswith("ClientPayloadError")


async def test_an_api_server_that_is_not_there_is_a_call_without_an_answer(server: ApiServer, told: Any) -> None:
    calls = Calls(SystemClock())
    async with session_of(kopf.ConnectionInfo(server=server.url), calls).aiohttp_session as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get("http://127.0.0.1:1/api/v1/pods", params={"watch": "true"})
    (line,) = told("call")
    assert line["answer"] == "none"
    assert line["error"].startswith("ClientConnectorError")
    assert told("watch began") == []


async def test_credentials_that_were_refused_are_known_again(server: ApiServer) -> None:
    calls = Calls(SystemClock())
    first, again, other = (
        session_of(kopf.ConnectionInfo(server=server.url, token=token), calls) for token in ("a", "a", "b")
    )
    assert first == again  # else kopf would try them for ever
    assert first != other
    for each in (first, again, other):
        await each.aiohttp_session.close()

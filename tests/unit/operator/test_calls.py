"""Every call to others leaves a line with its start and duration, and counts."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client
from prometheus_client import generate_latest

from pearl_dev.virtual.clock import VirtualClock
from pearl_operator import kinds, logs
from pearl_operator.agents import AgentClient
from pearl_operator.calls import Calls, Receiver
from pearl_operator.errors import Refused, Unavailable
from pearl_operator.gateway_client import GatewayClient
from pearl_operator.http_json import HttpJson
from pearl_operator.kube import KubeClient
from pearl_operator.ports import PodAddress, RolloutKey
from pearl_operator.prometheus import PrometheusClient, by_pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

ROLLOUT = RolloutKey("rl", "swe")
POD = PodAddress("rl", "swe-w0-0", "u", "127.0.0.1")
ANSWERS = {
    "/api/v1/namespaces/rl/pods/a": 404,
    "/swe/v1/stats": 503,
    "/swe-w0-0/v1/state": 429,
    "/api/v1/query": 200,
}


class TickingClock(VirtualClock):
    """Each reading of the monotonic clock is a quarter of a second later."""

    def __init__(self) -> None:
        self.read = 0

    def now(self) -> float:
        return 1_800_000_000.5

    def monotonic(self) -> float:
        self.read += 1
        return self.read / 4


class Keys:
    async def root_key(self, rollout: RolloutKey) -> str:
        return f"key of {rollout}"


class Everybody:
    def __init__(self, base: str) -> None:
        self.base = base

    def agent(self, pod: PodAddress) -> str:
        return f"{self.base}/{pod.name}"

    def gateway(self, rollout: RolloutKey) -> str:
        return f"{self.base}/{rollout.name}"


@pytest.fixture
async def base() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/dies" and request.transport is not None:
            request.transport.abort()
        return web.json_response({}, status=ANSWERS.get(request.path, 200))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, "pearl.calls")
    return lambda: [
        json.loads(logs.JsonFormatter().format(each)) for each in caplog.records if each.name == "pearl.calls"
    ]


async def parsed(answer: Awaitable[bytes]) -> None:
    by_pod(await answer)


async def test_each_kind_of_call_is_told_with_start_and_duration(base: str, lines: Any) -> None:
    calls = Calls(TickingClock())
    async with (
        aiohttp.ClientSession() as session,
        client.ApiClient(client.Configuration(host=base)) as api,
    ):
        http = HttpJson(session, 5.0, calls)
        assert await KubeClient(api, calls, timeout_seconds=5.0).get(kinds.POD, "a", "rl") is None
        for work in (
            GatewayClient(http, Keys(), Everybody(base)).stats(ROLLOUT),
            AgentClient(http, Keys(), Everybody(base)).state(ROLLOUT, POD),
            parsed(PrometheusClient(http)._query(base, "up")),
        ):
            with pytest.raises(Unavailable):
                await work
    told = {"level": "debug", "logger": "pearl.calls", "message": "call", "method": "GET", "seconds": 0.25}
    told |= {"started": "2027-01-15T08:00:00.500Z"}
    found = [{key: line[key] for key in line if key not in ("time", "to", "url", "answer")} for line in lines()]
    assert found == [told] * 4
    assert [line["to"] for line in lines()] == ["apiserver", "gateway", "agent", "prometheus"]
    assert {line["url"].removeprefix(base): int(line["answer"]) for line in lines()} == ANSWERS
    series = generate_latest(calls.registry).decode()
    for labels in ('answer="404",method="GET",to="apiserver"', 'answer="429",method="GET",to="agent"'):
        assert f"pearl_call_seconds_count{{{labels}}} 1.0" in series
        assert f"pearl_call_seconds_sum{{{labels}}} 0.25" in series


async def test_a_call_without_an_answer_is_told_with_what_went_wrong(base: str, lines: Any) -> None:
    calls = Calls(TickingClock())
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unavailable):
            await HttpJson(session, 5.0, calls).call(Receiver.AGENT, "POST", base + "/dies")
    (line,) = lines()
    assert (line["answer"], line["error"], line["seconds"]) == (
        "none",
        "ServerDisconnectedError: Server disconnected",
        0.25,
    )
    count = 'pearl_call_seconds_count{answer="none",method="POST",to="agent"} 1.0'
    assert count in generate_latest(calls.registry).decode()


def test_calls_are_told_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("pearl")
    before = logger.level
    calls = Calls(TickingClock())
    try:
        for level, expected in (("info", 0), ("debug", 1)):
            logs.set_level(level)
            with calls.told(Receiver.GATEWAY, "GET", "http://x"), pytest.raises(Refused):
                raise Refused("no")
            assert len(caplog.records) == expected
    finally:
        logger.setLevel(before)

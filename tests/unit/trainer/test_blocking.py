"""The blocking client: the same flows on threads, over an in-process transport."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from pearl_trainer import ConfigurationError, PearlClient, Rejected, Turn, Unavailable
from pearl_trainer.settings import Settings, from_env

if TYPE_CHECKING:
    from pathlib import Path


class Pearl:
    """Grants everything; counts heartbeats. Handlers run on the SDK's threads."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.beat = threading.Event()
        self.both_reclaiming = threading.Barrier(2, timeout=10)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.calls.append(f"{request.url.host}{path}")
        body = json.loads(request.content) if request.content else {}
        return httpx2.Response(200, json=self._answer(path, body))

    def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        agents = [{"pod": f"b-{n}", "uid": f"u-{n}", "url": f"http://agent-{n}"} for n in (0, 1)]
        loan = {"namespace": "ml", "name": "t", "epoch": 1, "agents": agents}
        if path.endswith("register"):
            known = {"token": "x", "slots": 2, "gatewayUrl": "http://gw", "gatewayToken": "y", "weightsSource": None}
            return {**loan, "epoch": 0, **known, "reclaimSeconds": 5, "heartbeatSeconds": 0.01, "ttlSeconds": 3}
        if path.endswith("lend"):
            return {**loan, "epoch": body["afterEpoch"] + 1, "granted": True, "reason": "Applied"}
        if path == "/v1/loan/heartbeat":
            self.beat.set()
            return {"epoch": 1, "fenced": False, "granted": True}
        if path == "/v1/loan/reclaim":
            self.both_reclaiming.wait()  # both agents are asked at the same time, or this breaks
            done = {"drainSeconds": 0, "sleepSeconds": 0, "totalSeconds": 0}
            return {"epoch": body["epoch"], "free": True, "killed": True, **done}
        return {**loan, "phase": "Draining"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    token = tmp_path / "token"
    token.write_text("t")
    return Settings(operator_url="http://operator", token_file=str(token))


def test_a_training_loop_with_threads(settings: Settings) -> None:
    pearl, order = Pearl(), []
    with (
        PearlClient(settings, transport=httpx2.MockTransport(pearl)) as client,
        client.register(
            rollout="swe",
            gpus=["GPU-1", "GPU-2"],
            offload=lambda: order.append("offload"),
            onload=lambda: order.append("onload"),
        ) as loan,
    ):
        assert loan.lent
        assert pearl.beat.wait(10)
        with loan.training():
            assert not loan.lent
            order.append("train")
        free = loan.reclaim()
        assert free.via == "agents"
        assert free.killed
        assert loan.reclaim().via == "notLent"
    assert order == ["offload", "onload", "train", "offload"]
    assert "operator/v1/loans/ml/t" in pearl.calls  # deregistered
    assert not any(thread.name == "pearl-loan" for thread in threading.enumerate())


def test_gateway_calls_need_to_know_the_gateway() -> None:
    with PearlClient(Settings()) as client, pytest.raises(ConfigurationError, match="set PEARL_GATEWAY_URL"):
        client.batches.open(0, groups=4, group_size=16)


def test_generate_speaks_token_ids_with_the_turns_identity(tmp_path: Path) -> None:
    seen: list[httpx2.Request] = []

    def gateway(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        content = [{"token_id": 7, "logprob": -0.5}, {"token_id": 9, "logprob": -1.5}]
        choice = {"token_ids": [7, 9], "logprobs": {"content": content}, "finish_reason": "length"}
        return httpx2.Response(200, json={"choices": [choice]})

    (tmp_path / "token").write_text("secret")
    settings = Settings(gateway_url="http://gw", gateway_token_file=str(tmp_path / "token"))
    with PearlClient(settings, transport=httpx2.MockTransport(gateway)) as client:
        made = client.generate([1, 2, 3], Turn("t-1", 2, group="g", step=5), max_tokens=2, temperature=0)
    assert (made.token_ids, made.logprobs, made.finish_reason) == ((7, 9), (-0.5, -1.5), "length")
    headers = {name: value for name, value in seen[0].headers.items() if name.startswith("x-pearl")}
    assert headers == {
        "x-pearl-trajectory": "t-1",
        "x-pearl-turn": "2",
        "x-pearl-attempt": "0",
        "x-pearl-class": "train",
        "x-pearl-group": "g",
        "x-pearl-step": "5",
    }
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert json.loads(seen[0].content)["token_ids"] == [1, 2, 3]


def test_a_rank_that_has_not_registered_is_told_where_the_gateway_is(settings: Settings) -> None:
    with PearlClient(settings, transport=httpx2.MockTransport(Pearl())) as first:
        first.register(rollout="swe", gpus=["GPU-1"], lend=False).close()
        address = first.gateway_address()
    assert address == ("http://gw", "y")
    seen: list[httpx2.Request] = []

    def gateway(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"window": 64})

    with PearlClient(Settings(), transport=httpx2.MockTransport(gateway)) as other:
        other.use_gateway(*address)
        assert other.recommended_in_flight() == 64
    assert (str(seen[0].url), seen[0].headers["authorization"]) == ("http://gw/v1/stats", "Bearer y")


def test_idle_fractions_count_the_ready_workers_of_each_pool() -> None:
    def worker(role: str, in_flight: int, *, ready: bool = True) -> dict[str, Any]:
        return {"role": role, "inFlight": in_flight, "ready": ready, "activity": "active"}

    workers = [worker("decode", 0), worker("decode", 3), worker("decode", 0, ready=False), worker("prefill", 1)]
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"workers": workers}))
    with PearlClient(Settings(gateway_url="http://gw"), transport=transport) as client:
        assert client.idle_fractions() == {"decode": 0.5, "prefill": 0.0}


def test_a_turn_is_asked_for_again_while_no_worker_serves_it() -> None:
    error = {"message": "6 workers in a row failed", "type": "WorkerLost", "code": 503, "retryAfterSeconds": 0.001}
    answers = [
        httpx2.Response(503, json={"error": error}),
        httpx2.Response(200, json={"choices": [{"token_ids": [7], "finish_reason": "stop"}]}),
    ]
    transport = httpx2.MockTransport(lambda _: answers.pop(0))
    with PearlClient(Settings(gateway_url="http://gw"), transport=transport) as client:
        assert client.generate([1], Turn("t-1", 0)).token_ids == (7,)


def test_a_turn_that_can_never_succeed_is_refused_with_the_gateways_words() -> None:
    error = {"message": "the prompt has 9000 tokens, the model takes 2048", "type": "TooLong", "code": 400}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(400, json={"error": error}))
    with (
        PearlClient(Settings(gateway_url="http://gw"), transport=transport) as client,
        pytest.raises(Rejected, match="the model takes 2048"),
    ):
        client.generate([1], Turn("t-1", 0))


def test_a_permit_is_asked_for_until_the_group_is_admitted() -> None:
    answers = [
        httpx2.Response(503, json={"error": "NoWorkers", "message": "no worker is ready", "retryAfterSeconds": 0.001}),
        httpx2.Response(200, json=_permit(granted=False)),
        httpx2.Response(200, json=_permit(granted=True)),
    ]
    transport = httpx2.MockTransport(lambda _: answers.pop(0))
    with PearlClient(Settings(gateway_url="http://gw"), transport=transport) as client:
        assert client.batches.permit("g-1", 16, step=3).granted
    assert answers == []


def test_a_permit_ends_when_its_time_is_over() -> None:
    busy = httpx2.MockTransport(lambda _: httpx2.Response(503, json={"error": "NoWorkers", "message": "no worker"}))
    with (
        PearlClient(Settings(gateway_url="http://gw"), transport=busy) as client,
        pytest.raises(Unavailable, match="no worker") as caught,
    ):
        client.batches.permit("g-1", 16, wait_seconds=0)
    assert caught.value.reason == "NoWorkers"


def _permit(*, granted: bool) -> dict[str, Any]:
    return {"granted": granted, "reason": "WindowFull", "inFlight": 64, "window": 64, "weightVersion": 2}


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"PEARL_OPERATOR_URL": "pearl-operator:8090"}, "PEARL_OPERATOR_URL is 'pearl-operator:8090'"),
        ({"PEARL_GATEWAY_URL": "gw"}, "PEARL_GATEWAY_URL"),
        ({"LOCAL_RANK": "first"}, "LOCAL_RANK is 'first'"),
    ],
)
def test_a_wrong_variable_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        from_env(environment)


def test_a_missing_token_says_how_to_mount_it(tmp_path: Path) -> None:
    settings = Settings(operator_url="http://operator", token_file=str(tmp_path / "none"), visible_devices="GPU-1")
    with PearlClient(settings) as client, pytest.raises(ConfigurationError, match="projected ServiceAccount token"):
        client.register(rollout="swe")

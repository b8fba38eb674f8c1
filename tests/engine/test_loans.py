"""A real engine that is lent, called back and lent again, with a gateway before it; on the workers of `test_engine`.

The tests follow one another; the file can be run without `test_engine`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest

from pearl_api.names import Activity, Role
from pearl_gateway.app import create_app
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.gateway import Gateway
from pearl_gateway.serving import poll_agents
from pearl_gateway.settings import Limits, Settings, Tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.engine

PROMPT = [(37 * at + 5) % 200 + 32 for at in range(50)]
TOKENS = 1800
VERSION = 20


def facts(worker: Any, activity: Activity) -> WorkerFacts:
    return WorkerFacts(
        uid=worker.name,
        pod=worker.name,
        url=f"http://127.0.0.1:{worker.engine_port}",
        agent_url=f"http://127.0.0.1:{worker.agent_port}",
        role=Role.COLOCATED,
        role_epoch=0,
        activity=activity,
        ready=True,
        borrowed=worker.name == "borrowed",
    )


@asynccontextmanager
async def gateway(worker: Any) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """The gateway in this process, and a client of it."""
    tokens = Tokens(client="client", engine=worker.secret("engine"), agent=worker.secret("agent"))
    settings = Settings(rollout="r", tokens=tokens, limits=Limits(max_model_len=2048, queue_seconds=60), model="tiny")
    async with aiohttp.ClientSession() as session:
        made = Gateway(
            settings=settings, session=session, clock=time.monotonic, wall=time.time, new_id=lambda: uuid.uuid4().hex
        )
        polling = asyncio.create_task(poll_agents(made))
        transport, headers = httpx.ASGITransport(create_app(made)), {"Authorization": "Bearer client"}
        async with httpx.AsyncClient(transport=transport, base_url="http://g", headers=headers, timeout=120) as client:
            yield made, client
        polling.cancel()
        await made.close()


async def begun(made: Gateway) -> None:
    """Wait until a token of a turn came."""
    async with asyncio.timeout(60):
        while not received(made):  # noqa: ASYNC110 - the turn's own event is for its reader
            await asyncio.sleep(0.002)


def received(made: Gateway) -> int:
    return sum(len(turn.token_ids) for one in made.sessions.live.values() for turn in one.turns.values())


def lend(worker: Any, epoch: int) -> None:
    granted = worker.call("POST", "/v1/loan/grant", {"epoch": epoch, "ttlSeconds": 600})
    assert granted.status_code == httpx.codes.OK, granted.text


def reclaim(worker: Any, epoch: int) -> dict[str, Any]:
    body = {"epoch": epoch, "withinSeconds": 10}
    answer: dict[str, Any] = worker.call("POST", "/v1/loan/reclaim", body, purpose="loan").json()
    return answer


def reclaim_a_stopped_engine(worker: Any, epoch: int) -> dict[str, Any]:
    """The engine stands still until the reclaim has reached its agent: it cannot be done before, on a busy machine."""
    group = worker.state().engine_pid
    os.killpg(group, signal.SIGSTOP)
    threading.Timer(0.5, os.killpg, (group, signal.SIGCONT)).start()
    return reclaim(worker, epoch)


def test_a_lent_engine_wakes_with_the_weights_that_were_published_while_it_slept(
    workers: Any,
    publish: Callable[..., Path],
    models: dict[str, Path],
    greedy: Callable[[Path, Sequence[int], int], list[int]],
) -> None:
    reserved, borrowed = workers
    if borrowed.state().phase == "Ready":  # alone; else `test_engine` has called it back
        assert reclaim(borrowed, 1)["free"]
    before = borrowed.state()
    assert (before.phase, before.loan.memory_free, before.weight_version) == ("Asleep", True, None)
    publish(VERSION, "tiny-b", to="reserved")
    publish(VERSION, "tiny-b", to="borrowed")
    borrowed.wait(lambda: borrowed.state().wanted_version == VERSION, "the manifest")
    lend(borrowed, 2)
    state = borrowed.wait_for_phase("Ready")
    assert (state.weight_version, state.engine_starts) == (VERSION, before.engine_starts)
    reserved.wait(lambda: reserved.state().weight_version == VERSION and reserved.state().phase == "Ready", "the other")
    fresh = greedy(models["tiny-b"], PROMPT, 24)
    assert borrowed.tokens(PROMPT, 24) == fresh


async def test_a_generation_that_a_reclaim_cuts_goes_on_elsewhere_as_if_nothing_had_happened(workers: Any) -> None:
    reserved, borrowed = workers
    uninterrupted = await asyncio.to_thread(reserved.tokens, PROMPT, TOKENS)
    sampling = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body, headers = {"token_ids": PROMPT, "sampling_params": sampling}, {"X-Pearl-Trajectory": "t"}
    async with gateway(borrowed) as (made, client):
        made.fleet.upsert(facts(borrowed, Activity.ACTIVE))
        asking = asyncio.create_task(client.post("/inference/v1/generate", json=body, headers=headers))
        await begun(made)
        # The operator's side of a reclaim: nothing new goes there, and the reserved worker is at hand.
        made.fleet.upsert(facts(borrowed, Activity.DRAINING))
        made.fleet.upsert(facts(reserved, Activity.ACTIVE))
        given_back = await asyncio.to_thread(reclaim_a_stopped_engine, borrowed, 2)
        response = await asking
        export = (await client.get("/v1/trajectories/t")).json()
    assert (given_back["free"], given_back["killed"], given_back["abortedRequests"]) == (True, False, 1)
    assert given_back["totalSeconds"] < 5
    assert response.json()["choices"][0]["token_ids"] == uninterrupted
    first, second = export["segments"]
    assert (first["worker"], first["reason"]) == ("borrowed", "reclaimed")
    assert (second["worker"], second["reason"]) == ("reserved", "complete")
    assert 0 < first["end"] - len(PROMPT) < TOKENS
    assert set(export["versions"][len(PROMPT) :]) == {VERSION}


def test_a_reclaim_while_the_engine_wakes_is_free_and_stays_free(workers: Any) -> None:
    borrowed = workers[1]
    lend(borrowed, 3)
    borrowed.wait(lambda: borrowed.state().phase in ("Waking", "Ready"), "the wake-up")
    answer = reclaim(borrowed, 3)
    assert answer["free"], answer
    assert answer["totalSeconds"] < 10
    time.sleep(1)  # a wake-up that was only forgotten would take the memory now
    state = borrowed.state()
    assert (state.loan.memory_free, state.loan.granted) == (True, False)
    assert state.phase in ("Asleep", "Stopped")
    assert borrowed.call("POST", "/v1/loan/grant", {"epoch": 3, "ttlSeconds": 60}).status_code == httpx.codes.CONFLICT

"""The agent's HTTP interface: tokens, status codes, bodies."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pearl_api.wire.worker import LoanState, Problem, WorkerPhase, WorkerState
from pearl_worker.api import Tokens, build_api

AGENT, LOAN = "agent-token", "loan-token"


@pytest.fixture
def client(make_world: Any) -> Any:
    """Makes a client of the API of a worker."""

    def make(*, borrowed: bool = False) -> httpx.AsyncClient:
        world = make_world(borrowed=borrowed)
        app = build_api(world.worker, Tokens(AGENT, LOAN if borrowed else None), world.now)
        transport = httpx.ASGITransport(app=app)
        return httpx.AsyncClient(transport=transport, base_url="http://agent")

    return make


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_probes_need_no_token_and_readiness_waits_for_the_engine(client: Any) -> None:
    async with client() as http:
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["phase"]) == (503, "Starting")
        assert 'pearl_worker_phase{phase="Starting"} 1.0' in (await http.get("/metrics")).text


async def test_each_call_takes_its_own_token_only(client: Any) -> None:
    async with client(borrowed=True) as http:
        for path, right, wrong in (
            ("/v1/activity", AGENT, LOAN),
            ("/v1/loan/grant", AGENT, LOAN),
            ("/v1/loan/heartbeat", LOAN, AGENT),
            ("/v1/loan/reclaim", LOAN, AGENT),
        ):
            for headers in ({}, bearer(wrong), bearer("")):
                answer = await http.post(path, json={}, headers=headers)
                assert (path, answer.status_code) == (path, 401)
                assert Problem.model_validate(answer.json()).error == "Unauthorized"
            assert (await http.post(path, json={}, headers=bearer(right))).status_code in (200, 422)


async def test_state_is_what_the_wire_says(client: Any) -> None:
    async with client() as http:
        state = WorkerState.model_validate((await http.get("/v1/state", headers=bearer(AGENT))).json())
    assert (state.phase, state.engine_starts, state.loan) == (WorkerPhase.STARTING, 0, None)


async def test_a_wrong_body_names_its_field(client: Any) -> None:
    async with client() as http:
        answer = await http.post("/v1/activity", json={"activity": "dancing"}, headers=bearer(AGENT))
    assert answer.status_code == 422
    assert "body.activity" in Problem.model_validate(answer.json()).message


async def test_an_old_epoch_is_refused_and_a_worker_that_is_not_borrowed_says_so(client: Any) -> None:
    grant = {"epoch": 2, "ttlSeconds": 9}
    async with client(borrowed=True) as http:
        granted = await http.post("/v1/loan/grant", json=grant, headers=bearer(AGENT))
        assert LoanState.model_validate(granted.json()).granted
        older = await http.post("/v1/loan/grant", json=grant | {"epoch": 1}, headers=bearer(AGENT))
        assert (older.status_code, older.json()["error"]) == (409, "Fenced")
    async with client() as http:
        answer = await http.post("/v1/loan/grant", json=grant, headers=bearer(AGENT))
        assert (answer.status_code, answer.json()["error"]) == (409, "NotBorrowed")


async def test_recorded_steps_are_read_with_the_agents_token(make_world: Any, tmp_path: Any) -> None:
    (tmp_path / "steps-0.jsonl").write_text('{"at": 5.0, "decodes": 1}\n{"at": 6.0, "decodes": 2}\n')
    world = make_world(steps_directory=tmp_path)
    app = build_api(world.worker, Tokens(AGENT, None), world.now)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://agent") as http:
        assert (await http.get("/v1/steps")).status_code == 401
        newer = await http.get("/v1/steps", params={"since": 5.5}, headers=bearer(AGENT))
        assert newer.json() == {"steps": [{"at": 6.0, "decodes": 2}]}

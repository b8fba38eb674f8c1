"""The gateway before real vLLM and before the emulated engine: the same answers, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Role

if TYPE_CHECKING:
    import httpx

    from conftest import RealBench

pytestmark = pytest.mark.timeout(600)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(37 * at + 11 * length + seed) % 200 + 32 for at in range(length)]


def tokens(response: httpx.Response) -> list[int]:
    found: list[int] = response.json()["choices"][0]["token_ids"]
    return found


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(event[6:]) for event in response.text.split("\n\n") if event.startswith("data: {")]


OPENAI = [
    ("/v1/completions", {"prompt": "Once upon a time"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello there"}]}),
]


def said(choice: dict[str, Any]) -> str:
    message = choice.get("message") or choice.get("delta") or {}
    return choice.get("text") or message.get("content") or ""


@pytest.mark.parametrize(("path", "body"), OPENAI)
@pytest.mark.parametrize("more", [{}, {"stop": ["%", "q"]}, {"logprobs": 1}], ids=["plain", "stop", "logprobs"])
async def test_openai_paths_answer_like_the_engine(
    real: RealBench, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    if path.endswith("chat/completions") and "logprobs" in more:
        more = {"logprobs": True, "top_logprobs": 1}
    request = {"model": "tiny", "max_tokens": 24, "temperature": 0.0, **body, **more}
    direct = real.engines[0].ask(path, request).json()
    through = (await real.client.post(path, json=request)).json()
    for name in ("finish_reason", "stop_reason", "logprobs"):
        assert through["choices"][0][name] == direct["choices"][0][name]
    assert said(through["choices"][0]) == said(direct["choices"][0])
    assert through["usage"] == {name: direct["usage"][name] for name in through["usage"]}
    events = streamed(await real.client.post(path, json={**request, "stream": True}))
    assert "".join(said(one) for event in events for one in event["choices"]) == said(direct["choices"][0])


async def test_token_path_answers_like_the_engine(real: RealBench) -> None:
    sampling = {"max_tokens": 16, "temperature": 0.0, "logprobs": 1}
    body = {"token_ids": prompt(40), "sampling_params": sampling}
    direct = real.engines[0].ask("/inference/v1/generate", body).json()["choices"][0]
    through = (await real.client.post("/inference/v1/generate", json=body)).json()["choices"][0]
    for name in ("token_ids", "logprobs", "finish_reason", "stop_reason"):
        assert through[name] == direct[name]
    assert through["weight_versions"] == [{"version": 0, "start": 0, "end": len(through["token_ids"])}]


async def test_disaggregated_equals_colocated(real: RealBench) -> None:
    lengths = (7, 64, 100, 513, 1025)
    expected = [real.engines[0].answer(prompt(length), 24) for length in lengths]
    for roles in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        real.place(*roles)
        answers = await asyncio.gather(*(real.generate(prompt(length), 24) for length in lengths))
        assert [tokens(one) for one in answers] == expected
    counters = await real.counters()
    assert (counters["handoffs"], counters["handoffFailures"], counters["degradedTurns"]) == (10, 0, 0)


async def test_roles_that_flip_in_mid_answer_cost_no_token(real: RealBench) -> None:
    ids = prompt(90, seed=2)
    expected = real.engines[0].answer(ids, 600)
    real.place(Role.PREFILL, Role.DECODE)
    task = asyncio.create_task(real.generate(ids, 600, headers={"X-Pearl-Trajectory": "flipped"}))
    await real.received("flipped", 20)
    real.place(Role.DECODE, Role.PREFILL)
    next_one = await real.generate(ids + expected[:10], 30)
    assert tokens(next_one) == expected[10:40]
    assert tokens(await task) == expected


async def test_chat_history_keeps_the_generated_ids(real: RealBench) -> None:
    headers = {"X-Pearl-Trajectory": "chat"}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "brief"}, {"role": "user", "content": "hi"}]
    for turn in range(3):
        request = {"messages": messages, "max_tokens": 9, "temperature": 0.0}
        answer = (await real.client.post("/v1/chat/completions", json=request, headers=headers)).json()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"next {turn}"}]
    export = (await real.client.get("/v1/trajectories/chat")).json()
    assert {one["reason"] for one in export["segments"]} == {"complete"}
    # The first prompt as the engine renders it, then what was generated, exactly.
    first = real.engines[0].ask("/v1/chat/completions/render", {"messages": messages[:2]}).json()["token_ids"]
    assert export["tokenIds"][: len(first)] == first
    assert export["tokenIds"][len(first) : len(first) + 9] == real.engines[0].answer(first, 9)


async def test_paused_engine_gives_back_its_tokens_and_the_turn_goes_on(real: RealBench) -> None:
    ids = prompt(50, seed=3)
    expected = real.engines[1].answer(ids, 600)
    task = asyncio.create_task(real.generate(ids, 600, headers={"X-Pearl-Trajectory": "paused"}))
    await real.received("paused", 20)
    holder = next(one for one in real.engines if real.gateway.fleet.workers[one.name].in_flight)
    holder.ask("/pause?mode=abort", token="admin")  # noqa: S106
    holder.ask("/resume", token="admin")  # noqa: S106
    assert tokens(await task) == expected
    assert (await real.counters())["resumes"] == 1


async def test_new_weights_in_mid_answer_change_it_and_the_segments_say_where(real: RealBench) -> None:
    first, second = real.engines
    real.gateway.fleet.remove("b")
    ids = prompt(50, seed=7)
    task = asyncio.create_task(real.generate(ids, 900, headers={"X-Pearl-Trajectory": "updated"}))
    await real.received("updated", 20)
    await first.load("tiny-b", version=1)
    answer = tokens(await task)
    export = (await real.client.get("/v1/trajectories/updated")).json()
    old, new = export["segments"]
    assert [(one["version"], one["reason"]) for one in (old, new)] == [(0, "weightsUpdated"), (1, "complete")]
    seam = old["end"] - len(ids)
    assert export["versions"] == [None] * 50 + [0] * seam + [1] * (900 - seam)
    # The other engine still has the old weights; this one has the new ones.
    assert answer[:seam] == second.answer(ids, seam)
    assert answer[seam:] == first.answer(ids + answer[:seam], 900 - seam)
    assert answer[seam:] != second.answer(ids + answer[:seam], 900 - seam)
    await asyncio.gather(first.load("tiny", version=2), second.load("tiny", version=2))


async def test_client_that_leaves_frees_the_engine(real: RealBench) -> None:
    task = asyncio.create_task(real.generate(prompt(60, seed=9), 1500, headers={"X-Pearl-Trajectory": "left"}))
    await real.received("left", 20)
    task.cancel()
    async with asyncio.timeout(30):
        while any(worker.in_flight for worker in real.gateway.fleet.workers.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while (await running_requests(real)) > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def running_requests(real: RealBench) -> float:
    total = 0.0
    for engine in real.engines:
        text = (await real.client.get(engine.url + "/metrics")).text
        total += sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "num_requests_running{" in line)
    return total


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/v1/completions", "/v1/chat/completions"])
async def test_no_client_can_end_an_engine_by_transfer_parameters(real: RealBench, path: str) -> None:
    fatal = {"do_remote_prefill": True, "do_remote_decode": False}
    sampling = {"max_tokens": 2, "extra_args": {"kv_transfer_params": fatal}}
    bodies: dict[str, dict[str, Any]] = {
        "/inference/v1/generate": {"token_ids": prompt(40), "sampling_params": sampling},
        "/v1/completions": {"prompt": "hello", "max_tokens": 2, "kv_transfer_params": fatal},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "kv_transfer_params": fatal},
    }
    answer = await real.client.post(path, json=bodies[path])
    assert (answer.status_code, "leave it out" in answer.text) == (400, True)
    assert len(tokens(await real.generate(prompt(40), 2))) == 2


async def test_killed_decode_engine_costs_no_token(real: RealBench) -> None:
    """Last: one of the two engines is dead afterwards."""
    real.place(Role.PREFILL, Role.DECODE)
    ids = prompt(120, seed=5)
    expected = real.engines[0].answer(ids, 900)
    task = asyncio.create_task(real.generate(ids, 900, headers={"X-Pearl-Trajectory": "killed"}))
    await real.received("killed", 100)
    real.engines[1].kill()
    assert tokens(await task) == expected
    export = (await real.client.get("/v1/trajectories/killed")).json()
    assert export["tokenIds"] == ids + expected
    assert [(one["worker"], one["prefillWorker"], one["reason"]) for one in export["segments"]] == [
        ("pod-b", "pod-a", "workerLost"),
        ("pod-a", None, "complete"),
    ]
    counters = await real.counters()
    assert (counters["resumes"], counters["lostTurns"]) == (1, 0)

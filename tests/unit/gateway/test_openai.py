"""Completions and chat become token ids and come back as text; history is never tokenised anew."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    import httpx
    import pytest

    from conftest import Bench

TRAJECTORY = {"X-Pearl-Trajectory": "t1"}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = response.text.strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


async def complete(
    bench: Bench, prompt: str | list[str], headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0.0, **more}
    return await bench.client.post("/v1/completions", json=body, headers=headers or {})


async def chat(
    bench: Bench, messages: list[dict[str, Any]], headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 6, "temperature": 0.0, **more}
    return await bench.client.post("/v1/chat/completions", json=body, headers=headers or {})


async def test_completion_is_the_text_of_the_engines_tokens(bench: Bench) -> None:
    await bench.engine()
    answer = (await complete(bench, "hello")).json()
    prompt = [ord(one) for one in "hello"]
    assert answer["choices"][0]["text"] == bench.text_of(bench.continuation(prompt, 6))
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


async def test_text_that_continues_a_trajectory_keeps_the_logged_ids(bench: Bench) -> None:
    await bench.engine()
    first = (await complete(bench, "hello", TRAJECTORY)).json()["choices"][0]["text"]
    await complete(bench, "hello" + first + " more", TRAJECTORY)
    export = await bench.export("t1")
    prompt = [ord(one) for one in "hello"]
    head = prompt + bench.continuation(prompt, 6)
    assert export["tokenIds"][:16] == head + [ord(one) for one in " more"]
    assert [one["reason"] for one in export["segments"]] == ["complete", "complete"]


async def test_several_samples_become_several_requests(bench: Bench) -> None:
    engine = await bench.engine()
    answer = (await complete(bench, ["ab", "cd"], n=2)).json()
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
    texts = [bench.text_of(bench.continuation([ord(one) for one in prompt], 6)) for prompt in ("ab", "ab", "cd", "cd")]
    assert [one["text"] for one in answer["choices"]] == texts
    assert len(engine.requests) == 4


async def test_samples_are_drawn_by_seeds_of_their_own_and_their_prompt_counts_once(bench: Bench) -> None:
    engine = await bench.engine()
    answer = (await complete(bench, ["ab", "cd"], n=2, seed=5)).json()
    assert sorted(one["sampling_params"]["seed"] for one in engine.requests) == [5, 5, 6, 6]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 24, "total_tokens": 28}


async def test_streamed_samples_come_with_their_index(bench: Bench) -> None:
    await bench.engine()
    found = events(await complete(bench, ["ab", "cd"], n=2, stream=True, stream_options={"include_usage": True}))
    texts = ["", "", "", ""]
    for choice in (choice for event in found for choice in event["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == [
        bench.text_of(bench.continuation([ord(one) for one in prompt], 6)) for prompt in ("ab", "ab", "cd", "cd")
    ]
    assert found[-1]["usage"]["prompt_tokens"] == 4


async def test_stop_string_is_not_in_the_text(bench: Bench) -> None:
    await bench.engine()
    prompt = [ord(one) for one in "hello"]
    text = bench.text_of(bench.continuation(prompt, 20))
    choice = (await complete(bench, "hello", stop=[text[4:6]], max_tokens=20)).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (text[:4], "stop", text[4:6])


async def test_streamed_text_equals_the_whole_one_and_holds_stop_strings_back(bench: Bench) -> None:
    await bench.engine()
    prompt = [ord(one) for one in "hello"]
    text = bench.text_of(bench.continuation(prompt, 20))
    found = events(await complete(bench, "hello", stop=[text[4:7]], max_tokens=20, stream=True))
    assert "".join(one["choices"][0]["text"] for one in found) == text[:4]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_does_not_show_where_the_engines_stream_ends_later_than_its_last_token(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pearl_gateway.calls._REST_SECONDS", 5.0)
    engine = await bench.engine(end_late=asyncio.Event())
    assert engine.end_late is not None
    text = bench.text_of(bench.continuation([ord(one) for one in "hello"], 20))
    asked = complete(bench, "hello", TRAJECTORY, stop=[text[4:7]], max_tokens=20, stream=True)
    running = asyncio.create_task(asked)
    (name,) = TRAJECTORY.values()
    await bench.until(lambda: name in bench.gateway.sessions.live)
    (turn,) = bench.gateway.sessions.live[name].turns.values()
    await bench.until(lambda: turn.complete)
    await asyncio.sleep(0.05)
    engine.end_late.set()
    assert "".join(one["choices"][0]["text"] for one in events(await running)) == text[:4]


async def test_chat_continues_with_the_generated_ids_and_renders_only_what_is_new(bench: Bench) -> None:
    engine = await bench.engine()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    answer = (await chat(bench, messages, TRAJECTORY)).json()["choices"][0]["message"]
    messages += [{**answer, "refusal": None}, {"role": "user", "content": "go"}]
    await chat(bench, messages, TRAJECTORY)
    prompt = bench.render_chat(messages[:2], add_generation_prompt=True)
    generated = bench.continuation(prompt, 6)
    # The answer was cut by its length, so the template's end of message follows the generated ids.
    expected = [*prompt, *generated, 2, 10, *bench.render_chat([messages[3]], add_generation_prompt=True)]
    assert engine.requests[-1]["token_ids"] == expected
    assert (await bench.stats())["counters"]["prefixBroken"] == 0


async def test_chat_that_edits_history_is_rendered_whole_and_counted(bench: Bench) -> None:
    engine = await bench.engine()
    messages = [{"role": "user", "content": "hi"}]
    await chat(bench, messages, TRAJECTORY)
    edited = [*messages, {"role": "assistant", "content": "I never said that"}, {"role": "user", "content": "go"}]
    await chat(bench, edited, TRAJECTORY)
    assert engine.requests[-1]["token_ids"] == bench.render_chat(edited, add_generation_prompt=True)
    assert (await bench.stats())["counters"]["prefixBroken"] == 1


def turn_of(number: int, **more: int) -> dict[str, str]:
    named = {f"X-Pearl-{name.replace('_', '-').title()}": str(value) for name, value in more.items()}
    return {**TRAJECTORY, "X-Pearl-Turn": str(number), **named}


async def talk(bench: Bench, messages: list[dict[str, Any]], said: str, number: int, **more: int) -> None:
    """One turn whose answer, and what is said to it, is added to `messages`."""
    answer = (await chat(bench, messages, turn_of(number, **more))).json()["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": said}]


async def test_chat_turn_that_is_repeated_is_the_same_though_its_history_would_be_rendered_otherwise(
    bench: Bench,
) -> None:
    engine = await bench.engine(merges=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    await talk(bench, messages, "go", 0)
    first = await chat(bench, messages, turn_of(1))
    again = await chat(bench, messages, turn_of(1))
    assert (again.status_code, again.json()["choices"]) == (200, first.json()["choices"])
    assert len(engine.requests) == 2
    # A new attempt goes on from the same ids, not from history that was tokenised anew.
    await chat(bench, messages, turn_of(1, attempt=1))
    assert engine.requests[2]["token_ids"] == engine.requests[1]["token_ids"]


async def test_branch_goes_on_from_the_ids_of_its_parent_and_is_no_broken_prefix(bench: Bench) -> None:
    engine = await bench.engine(merges=True)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    await talk(bench, messages, "left", 0)
    fork = messages[:-1]
    await talk(bench, messages, "on", 1)
    await chat(bench, [*fork, {"role": "user", "content": "right"}], turn_of(2, parent_turn=0))
    first, _, branch = (one["token_ids"] for one in engine.requests)
    start = [*first, *bench.continuation(first, 6)]
    assert branch[: len(start)] == start
    export = await bench.export("t1")
    assert [one["reason"] for one in export["segments"]] == ["complete", "complete", "branched", "complete"]
    assert (await bench.stats())["counters"]["prefixBroken"] == 0


async def test_chat_goes_on_from_its_ids_after_a_restart_of_the_gateway(
    lasting: Callable[[], AbstractAsyncContextManager[Bench]],
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    async with lasting() as bench:
        await bench.engine(merges=True)
        await talk(bench, messages, "go", 0)
        before = (await bench.export("t1"))["tokenIds"]
    async with lasting() as bench:
        engine = await bench.engine(merges=True)
        await chat(bench, messages, turn_of(1))
        assert engine.requests[0]["token_ids"][: len(before)] == before


async def test_broken_prefixes_are_counted_by_cause(bench: Bench) -> None:
    await bench.engine(merges=True)
    await chat(bench, [{"role": "user", "content": "hi"}], TRAJECTORY)
    await chat(bench, [{"role": "user", "content": "forget it"}], TRAJECTORY)
    metrics = (await bench.client.get("/metrics")).text
    assert 'pearl_gateway_prefix_broken_by_cause_total{cause="edited",rollout="r"} 1.0' in metrics


async def test_streamed_chat_is_continued_like_a_whole_one(bench: Bench) -> None:
    engine = await bench.engine()
    messages = [{"role": "user", "content": "hi"}]
    found = events(await chat(bench, messages, TRAJECTORY, stream=True, stream_options={"include_usage": True}))
    text = "".join((one["choices"][0]["delta"].get("content") or "") for one in found[:-1])
    prompt = bench.render_chat(messages, add_generation_prompt=True)
    assert text == bench.text_of(bench.continuation(prompt, 6))
    assert found[-1]["usage"]["completion_tokens"] == 6
    await chat(
        bench, [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "go"}], TRAJECTORY
    )
    assert engine.requests[-1]["token_ids"][: len(prompt) + 6] == prompt + bench.continuation(prompt, 6)


async def test_what_is_not_supported_is_named(bench: Bench) -> None:
    await bench.engine()
    response = await complete(bench, "a", echo=True)
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        "echo is not supported by the gateway: leave it out",
    )
    response = await complete(bench, "a", TRAJECTORY, n=2)
    assert "one trajectory per sample" in response.json()["error"]["message"]


async def test_a_conversation_that_engines_fail_on_takes_no_worker_out_of_service(bench: Bench) -> None:
    for _ in range(2):
        await bench.engine(broken=True)
    answer = await chat(bench, [{"role": "user", "content": "odd"}])
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "EngineFault")
    assert "template failed" in answer.json()["error"]["message"]
    assert not [worker for worker in bench.gateway.fleet.workers.values() if worker.ejected]


async def test_without_the_token_nobody_is_served(bench: Bench) -> None:
    await bench.engine()
    response = await bench.client.post("/v1/completions", json={"prompt": "a"}, headers={"Authorization": "Bearer no"})
    assert response.status_code == 401
    assert (await bench.client.get("/health", headers={"Authorization": ""})).status_code == 200

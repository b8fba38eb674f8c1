"""A turn gets its whole answer, whatever happens to workers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Activity, Role
from pearl_gateway import records

if TYPE_CHECKING:
    from conftest import Bench


async def test_answer_and_logprobs_are_the_engines(bench: Bench) -> None:
    await bench.engine()
    response = await bench.generate([5, 6, 7], 8, sampling={"logprobs": 0})
    expected = bench.continuation([5, 6, 7], 8)
    assert bench.tokens(response) == expected
    choice = response.json()["choices"][0]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [bench.logprob(one) for one in expected]
    assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": 8}]
    assert choice["finish_reason"] == "length"


async def test_worker_that_dies_in_mid_answer_costs_no_token(bench: Bench) -> None:
    dying = await bench.engine(stop_after=5)
    bench.gateway.fleet.workers["a"].weight_version = 0
    await bench.engine()
    response = await bench.generate([1, 2, 3], 12)
    assert bench.tokens(response) == bench.continuation([1, 2, 3], 12)
    assert dying.runner is None
    export = await bench.export("t1")
    assert export["tokenIds"] == [1, 2, 3, *bench.continuation([1, 2, 3], 12)]
    assert export["lossMask"] == [0] * 3 + [1] * 12
    assert export["logprobs"] == [None] * 3 + [bench.logprob(one) for one in bench.continuation([1, 2, 3], 12)]
    assert [(one["worker"], one["start"], one["end"], one["reason"]) for one in export["segments"]] == [
        ("pod-a", 3, 8, "workerLost"),
        ("pod-b", 8, 15, "complete"),
    ]
    counters = (await bench.stats())["counters"]
    assert (counters["resumes"], counters["lostTurns"]) == (1, 0)


async def test_resume_asks_only_for_what_is_missing(bench: Bench) -> None:
    await bench.engine(stop_after=4)
    second = await bench.engine()
    await bench.generate([1, 2], 10, sampling={"min_tokens": 6, "seed": 7})
    (resumed,) = second.requests
    assert resumed["token_ids"] == [1, 2, *bench.continuation([1, 2], 4)]
    assert resumed["sampling_params"]["max_tokens"] == 6
    assert resumed["sampling_params"]["min_tokens"] == 2
    assert resumed["sampling_params"]["seed"] != 7


async def test_aborted_answer_is_resumed_under_the_new_weights_and_the_segments_say_so(bench: Bench) -> None:
    await bench.engine(abort_after=3, version_after_abort=1)
    answer = bench.tokens(await bench.generate([9], 6))
    first = bench.continuation([9], 3)
    assert answer == first + bench.continuation([9, *first], 3, version=1)
    export = await bench.export("t1")
    assert export["versions"] == [None, 0, 0, 0, 1, 1, 1]
    assert [one["reason"] for one in export["segments"]] == ["weightsUpdated", "complete"]


async def test_only_worker_comes_back_and_the_turn_is_completed_on_it(bench: Bench) -> None:
    engine = await bench.engine(stop_after=3)
    task = asyncio.create_task(bench.generate([4], 7))
    await bench.until(lambda: engine.runner is None)
    engine.stop_after = None
    await engine.start(int(engine.url.rsplit(":", 1)[1]))
    assert bench.tokens(await task) == bench.continuation([4], 7)


async def test_closed_gate_sends_the_turn_elsewhere_without_ejecting_the_worker(bench: Bench) -> None:
    await bench.engine(gate_closed=True)
    await bench.engine()
    assert bench.tokens(await bench.generate([1], 3)) == bench.continuation([1], 3)
    assert not bench.gateway.fleet.workers["a"].ejected


async def test_request_that_meets_the_end_of_an_idle_connection_is_sent_again(bench: Bench) -> None:
    engine = await bench.engine()
    await bench.generate([2], 3)
    engine.hang_up = 1
    assert bench.tokens(await bench.generate([1], 3)) == bench.continuation([1], 3)
    assert len(engine.requests) == 3
    assert not bench.gateway.fleet.workers["a"].ejected
    assert (await bench.stats())["counters"]["resumes"] == 0


async def test_removed_pod_is_left_at_once(bench: Bench) -> None:
    stuck = await bench.engine(stall_after=2)
    await bench.engine()
    task = asyncio.create_task(bench.generate([8], 5))
    await bench.until(lambda: bench.received("t1") == 2)
    assert len(stuck.requests) == 1
    bench.gateway.fleet.remove("a")
    async with asyncio.timeout(2):
        assert bench.tokens(await task) == bench.continuation([8], 5)


async def test_worker_that_turns_unready_and_mute_is_left_at_once(bench: Bench) -> None:
    stuck = await bench.engine(stall_after=2)
    await bench.engine()
    task = asyncio.create_task(bench.generate([8], 5))
    await bench.until(lambda: bench.received("t1") == 2)
    stuck.mute = True
    bench.place(stuck, ready=False)
    async with asyncio.timeout(4):
        assert bench.tokens(await task) == bench.continuation([8], 5)


@pytest.mark.parametrize(
    ("how", "error", "requests", "said"),
    [
        ({"broken": True}, "EngineFault", 3, "500"),
        ({"breaks_off": True}, "EngineFault", 3, "no token is left"),
        ({"hang_up": 99}, "WorkerLost", 6, "6 workers in a row"),
    ],
)
async def test_request_that_fails_everywhere_does_not_go_round_for_ever(
    bench: Bench, how: dict[str, Any], error: str, requests: int, said: str
) -> None:
    engines = [await bench.engine(**how) for _ in range(3)]
    response = await bench.generate([8], 5)
    assert (response.status_code, response.json()["error"]["type"]) == (503, error)
    assert said in response.json()["error"]["message"]
    assert sum(len(engine.requests) for engine in engines) == requests
    assert response.headers["Retry-After"] == "5"


async def test_draining_worker_gets_nothing_new(bench: Bench) -> None:
    draining = await bench.engine()
    bench.place(draining, activity=Activity.DRAINING)
    other = await bench.engine()
    await bench.generate([1], 2)
    assert (len(draining.requests), len(other.requests)) == (0, 1)


async def test_refusal_of_the_engine_reaches_the_client_and_is_not_repeated(bench: Bench) -> None:
    engine = await bench.engine(refuse=True)
    response = await bench.generate([1], 2)
    assert (response.status_code, len(engine.requests)) == (400, 1)
    assert response.json()["error"]["message"] == "bad token"


async def test_stop_string_across_the_seam_of_two_segments_is_found(bench: Bench) -> None:
    answer = bench.continuation([3], 10)
    stop = bench.text_of(answer)[3:6]
    await bench.engine(stop_after=4)
    await bench.engine(tokens_per_chunk=4)
    response = await bench.generate([3], 10, sampling={"stop": [stop]})
    assert bench.tokens(response) == answer[:6]
    assert response.json()["choices"][0]["stop_reason"] == stop


@pytest.mark.parametrize("tokens_per_chunk", [3, 6], ids=["in the middle", "with the last tokens"])
async def test_stop_string_is_found_where_the_client_left_while_it_was_looked_for(
    bench: Bench, tokens_per_chunk: int
) -> None:
    answer = bench.continuation([3], 10)
    stop = bench.text_of(answer)[3:6]
    await bench.engine(stop_after=4)
    engine = await bench.engine(tokens_per_chunk=tokens_per_chunk, text_late=asyncio.Event(), pause=5.0)
    assert engine.text_late is not None
    task = asyncio.create_task(bench.generate([3], 10, turn=0, sampling={"stop": [stop]}))
    await bench.until(lambda: bench.received("t1") == 4 + tokens_per_chunk)
    task.cancel()
    turn = bench.gateway.sessions.live["t1"].turns[0]
    await bench.until(lambda: not turn.running)
    engine.text_late.set()
    response = await bench.generate([3], 10, turn=0, sampling={"stop": [stop]})
    assert bench.tokens(response) == answer[:6]
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert (await bench.export("t1"))["tokenIds"] == [3, *answer[:6]]


async def test_without_any_worker_new_trajectories_are_told_when_to_retry(bench: Bench) -> None:
    response = await bench.generate([1], 2)
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "2"


async def test_running_trajectory_waits_for_a_worker(bench: Bench) -> None:
    engine = await bench.engine()
    first = bench.tokens(await bench.generate([1], 2))
    bench.gateway.fleet.remove("a")
    task = asyncio.create_task(bench.generate([1, *first], 2))
    await bench.until(lambda: bench.gateway.tally.turns_queued == 1)
    bench.place(engine)
    assert bench.tokens(await task) == bench.continuation([1, *first], 2)


async def test_client_that_leaves_stops_the_engine_and_a_repeat_continues(bench: Bench) -> None:
    engine = await bench.engine(stall_after=3)
    task = asyncio.create_task(bench.generate([6], 8, turn=0))
    await bench.until(lambda: bench.received("t1") == 3)
    task.cancel()
    async with asyncio.timeout(2):
        await engine.left.wait()
    engine.stall_after = None
    assert bench.tokens(await bench.generate([6], 8, turn=0)) == bench.continuation([6], 8)
    assert engine.requests[-1]["token_ids"] == [6, *bench.continuation([6], 3)]


async def test_an_answer_does_not_wait_for_the_end_of_the_engines_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pearl_gateway.calls._REST_SECONDS", 60.0)
    end = asyncio.Event()
    await bench.engine(end_late=end)
    async with asyncio.timeout(5):
        assert bench.tokens(await bench.generate([6], 4)) == bench.continuation([6], 4)
    end.set()


async def test_repeat_of_a_finished_turn_generates_nothing(bench: Bench) -> None:
    engine = await bench.engine()
    first = bench.tokens(await bench.generate([6], 4, turn=0))
    assert bench.tokens(await bench.generate([6], 4, turn=0)) == first
    assert len(engine.requests) == 1


async def test_new_attempt_replaces_the_turn_in_the_log(bench: Bench) -> None:
    engine = await bench.engine()
    await bench.generate([6], 4, turn=0)
    engine.version = 1
    again = bench.tokens(await bench.generate([6], 4, turn=0, headers={"X-Pearl-Attempt": "1"}))
    export = await bench.export("t1")
    assert export["tokenIds"] == [6, *again]
    assert again == bench.continuation([6], 4, version=1)
    assert export["turns"] == 1


async def test_prompt_that_does_not_extend_the_log_opens_a_new_context(bench: Bench) -> None:
    await bench.engine()
    first = bench.tokens(await bench.generate([1, 2], 2))
    second = bench.tokens(await bench.generate([1, 9], 2))
    export = await bench.export("t1")
    assert export["tokenIds"] == [1, 2, *first, 1, 9, *second]
    assert [(one["reason"], one["start"], one["end"]) for one in export["segments"]] == [
        ("complete", 2, 4),
        ("prefixBroken", 4, 6),
        ("complete", 6, 8),
    ]
    assert (await bench.stats())["counters"]["prefixBroken"] == 1


async def test_prefill_and_decode_give_the_colocated_answer(bench: Bench) -> None:
    prefill = await bench.engine(Role.PREFILL)
    decode = await bench.engine(Role.DECODE)
    assert bench.tokens(await bench.generate([1, 2, 3, 4, 5], 6)) == bench.continuation([1, 2, 3, 4, 5], 6)
    assert (len(prefill.requests), decode.fetched, bench.kv) == (1, 1, {})
    (segment,) = (await bench.export("t1"))["segments"]
    assert (segment["worker"], segment["prefillWorker"]) == ("pod-b", "pod-a")


async def test_few_new_tokens_are_appended_on_the_decode_worker(bench: Bench) -> None:
    prefill = await bench.engine(Role.PREFILL)
    await bench.engine(Role.DECODE)
    prompt = [1, 2, 3, 4, 5]
    first = bench.tokens(await bench.generate(prompt, 3))
    prompt = [*prompt, *first, 7, 8]
    assert bench.tokens(await bench.generate(prompt, 3)) == bench.continuation(prompt, 3)
    assert len(prefill.requests) == 1
    assert (await bench.stats())["counters"]["localAppends"] == 1


async def test_handoff_that_does_not_arrive_is_recomputed_within_its_deadline(bench: Bench) -> None:
    await bench.engine(Role.PREFILL)
    decode = await bench.engine(Role.DECODE, stall_after=0)
    task = asyncio.create_task(bench.generate([1, 2, 3, 4, 5, 6], 4))
    await bench.until(lambda: len(decode.requests) == 1)
    decode.stall_after = None
    async with asyncio.timeout(4):
        assert bench.tokens(await task) == bench.continuation([1, 2, 3, 4, 5, 6], 4)
    assert "kv_transfer_params" not in decode.requests[-1]
    assert (await bench.stats())["counters"]["handoffFailures"] == 1


async def test_kv_of_other_weights_is_never_sent(bench: Bench) -> None:
    await bench.engine(Role.PREFILL, version=1)
    decode = await bench.engine(Role.DECODE)
    bench.gateway.fleet.workers["b"].weight_version = 0
    assert bench.tokens(await bench.generate([1, 2, 3, 4, 5], 3)) == bench.continuation([1, 2, 3, 4, 5], 3)
    assert decode.fetched == 0


async def test_weights_that_change_between_check_and_decode_are_noticed_and_the_answer_recomputed(bench: Bench) -> None:
    prefill = await bench.engine(Role.PREFILL)
    decode = await bench.engine(Role.DECODE, version=1, guarded=False)
    for worker in bench.gateway.fleet.workers.values():
        worker.weight_version = 0
    answer = bench.tokens(await bench.generate([1, 2, 3, 4, 5], 3))
    assert answer == bench.continuation([1, 2, 3, 4, 5], 3, version=1)
    assert (decode.fetched, len(prefill.requests)) == (1, 1)
    assert "kv_transfer_params" not in decode.requests[-1]
    counters = (await bench.stats())["counters"]
    assert (counters["handoffFailures"], counters["wastedTokens"]) == (1, 3)


async def test_dead_prefill_worker_does_not_stop_the_turn(bench: Bench) -> None:
    prefill = await bench.engine(Role.PREFILL)
    await bench.engine(Role.DECODE)
    await prefill.stop()
    assert bench.tokens(await bench.generate([1, 2, 3, 4, 5], 3)) == bench.continuation([1, 2, 3, 4, 5], 3)
    assert (await bench.stats())["counters"]["degradedTurns"] == 1


async def test_degraded_turns_are_counted_by_what_is_missing(bench: Bench) -> None:
    await bench.engine(Role.DECODE)
    await bench.generate([1, 2, 3, 4, 5], 2)
    await bench.engine(Role.PREFILL)
    workers = bench.gateway.fleet.workers
    bench.gateway.fleet.fail_link(workers["b"], workers["a"])
    await bench.generate([1, 2, 3, 4, 5], 2, trajectory="t2")
    bench.gateway.fleet.remove("a")
    await bench.generate([1, 2, 3, 4, 5], 2, trajectory="t3")
    metrics = (await bench.client.get("/metrics")).text
    for cause in ("noPrefill", "noLink", "noDecode"):
        assert f'pearl_gateway_degraded_turns_by_cause_total{{cause="{cause}",rollout="r"}} 1.0' in metrics


async def test_routed_experts_are_exported_as_the_engine_gives_them(bench: Bench) -> None:
    await bench.engine(experts="k05VTVBZ")
    await bench.generate([1, 2], 3)
    assert [one["routedExperts"] for one in (await bench.export("t1"))["segments"]] == ["k05VTVBZ"]


async def test_role_flip_is_acknowledged_and_routed_by_at_once(bench: Bench) -> None:
    first, second = await bench.engine(), await bench.engine()
    bench.place(first, Role.PREFILL, epoch=3)
    bench.place(second, Role.DECODE, epoch=3)
    await bench.generate([1, 2, 3, 4, 5], 2)
    views = {one["uid"]: one for one in (await bench.stats())["workers"]}
    assert {uid: (one["role"], one["ackedEpoch"]) for uid, one in views.items()} == {
        "a": ("prefill", 3),
        "b": ("decode", 3),
    }
    assert views["b"]["firstTokenInRoleSeconds"] >= 0
    assert (len(first.requests), second.fetched) == (1, 1)


async def test_a_turn_after_a_change_of_roles_is_recorded_as_moved(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[bool] = []
    monkeypatch.setattr(records.Recorder, "add", lambda _, record: moved.append(record.moved))
    engine = await bench.engine()
    prompt = [1, 2, 3]
    for look in range(4):
        if look == 2:
            bench.place(engine, Role.COLOCATED, epoch=3)
        prompt = [*prompt, *bench.tokens(await bench.generate(prompt, 2)), 7]
    assert moved == [False, False, True, False]


async def test_one_member_of_a_group_computes_the_prompt_and_the_others_follow_it(bench: Bench) -> None:
    first, second = await bench.engine(stall_after=0), await bench.engine()
    headers = {"X-Pearl-Group": "g"}
    tasks = [asyncio.create_task(bench.generate([1, 2, 3], 2, trajectory=f"t{at}", headers=headers)) for at in range(3)]
    await bench.until(lambda: bench.gateway.tally.turns_in_flight == 3 and len(first.requests) == 1)
    first.stall_after = None
    first.release.set()
    assert [bench.tokens(await task) for task in tasks] == 3 * [bench.continuation([1, 2, 3], 2)]
    assert (len(first.requests), len(second.requests)) == (3, 0)


async def test_streamed_tokens_are_the_whole_answer_in_order(bench: Bench) -> None:
    await bench.engine(stop_after=3)
    await bench.engine(tokens_per_chunk=2)
    events = (await bench.generate([1], 9, stream=True)).text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    choices = [json.loads(event[6:])["choices"][0] for event in events[:-1]]
    assert [one for choice in choices for one in choice["token_ids"]] == bench.continuation([1], 9)
    assert [choice["finish_reason"] for choice in choices][-1] == "length"


async def test_kv_is_as_old_as_the_prefill_worker_says_however_late_its_answer_arrives(bench: Bench) -> None:
    bench.gateway.runner._handoffs._limits = replace(bench.gateway.settings.limits, kv_lease_seconds=0.5)
    await bench.engine(Role.PREFILL, tells=True, answer_late=0.4)  # more than 60 % of the lease, which runs at once
    decode = await bench.engine(Role.DECODE)
    prompt = [1, 2, 3, 4, 5]
    assert bench.tokens(await bench.generate(prompt, 3)) == bench.continuation(prompt, 3)
    assert decode.fetched == 0
    assert (await bench.stats())["counters"]["handoffFailures"] == 1


async def test_client_that_comes_back_while_its_turn_is_being_stopped_gets_the_answer(bench: Bench) -> None:
    engine = await bench.engine(stall_after=2)
    left = asyncio.create_task(bench.generate([8], 5))
    await bench.until(lambda: bench.received("t1") == 2)
    trajectory = bench.gateway.sessions.live["t1"]
    turn = trajectory.turns[0]
    assert turn.task is not None
    turn.task.cancel()  # as for a last reader that left; it has had no chance to stop yet
    engine.stall_after = None
    bench.gateway.sessions._start(trajectory, turn)
    async with asyncio.timeout(3):
        assert (await bench.gateway.sessions.answer(turn)).token_ids == bench.continuation([8], 5)
        assert bench.tokens(await left) == bench.continuation([8], 5)
    assert trajectory.turns_done == 1


async def test_client_that_comes_back_just_before_its_former_self_is_seen_to_leave_gets_the_answer(
    bench: Bench,
) -> None:
    engine = await bench.engine(stall_after=2)
    left = asyncio.create_task(bench.generate([8], 5, turn=0))
    await bench.until(lambda: bench.received("t1") == 2)
    sessions = bench.gateway.sessions
    trajectory = sessions.live["t1"]
    turn = trajectory.turns[0]
    sessions._start(trajectory, turn)  # the repeat: it runs already, and nobody reads yet
    left.cancel()
    await bench.until(lambda: not turn.running)
    engine.stall_after = None
    async with asyncio.timeout(3):
        assert (await sessions.answer(turn)).token_ids == bench.continuation([8], 5)


BOUND = {"structured_outputs": {"choice": ["yes", "no"]}}


async def test_a_structured_answer_begins_anew_where_its_worker_is_lost(bench: Bench) -> None:
    await bench.engine(stop_after=2)
    other = await bench.engine()
    assert bench.tokens(await bench.generate([1, 2], 5, sampling=BOUND)) == bench.continuation([1, 2], 5)
    assert [one["token_ids"] for one in other.requests] == [[1, 2]]
    export = await bench.export("t1")
    assert [(one["worker"], one["start"], one["end"]) for one in export["segments"]] == [("pod-b", 2, 7)]
    assert (await bench.stats())["counters"]["wastedTokens"] == 2


async def test_a_structured_answer_that_breaks_every_worker_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pearl_gateway.tries._RETRY_SECONDS", (0.0,))
    for _ in range(7):
        await bench.engine(stop_after=2)
    answer = await bench.generate([1, 2], 5, sampling=BOUND)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "WorkerLost")
    assert sum(len(engine.requests) for engine in bench.engines) == 6


async def test_a_structured_stream_that_has_shown_tokens_says_that_it_broke_and_may_be_repeated(bench: Bench) -> None:
    engine = await bench.engine(pause=0.05, abort_after=3)
    answer = await bench.generate([1, 2], 5, turn=0, stream=True, sampling=BOUND)
    *_, last, _done = answer.text.strip().split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("StructureInterrupted", 503)
    assert bench.tokens(await bench.generate([1, 2], 5, turn=0, sampling=BOUND)) == bench.continuation([1, 2], 5)
    assert [one["token_ids"] for one in engine.requests] == [[1, 2], [1, 2]]


async def test_a_structured_answer_whose_client_comes_back_begins_anew(bench: Bench) -> None:
    engine = await bench.engine(stall_after=2)
    left = asyncio.create_task(bench.generate([1], 5, turn=0, stream=True, sampling=BOUND))
    await bench.until(lambda: bench.received("t1") == 2)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await bench.until(lambda: bench.gateway.tally.turns_in_flight == 0)
    engine.stall_after = None
    assert bench.tokens(await bench.generate([1], 5, turn=0, sampling=BOUND)) == bench.continuation([1], 5)
    assert [one["token_ids"] for one in engine.requests] == [[1], [1]]


async def test_the_statistics_say_when_something_was_last_asked_for(bench: Bench) -> None:
    async def asked() -> float | None:
        seconds: float | None = (await bench.stats())["askedSeconds"]
        return seconds

    assert await asked() is None
    assert (await bench.generate([1], 2)).status_code == 503  # no worker: a fleet that rests must hear of it
    first = await asked()
    assert first is not None
    await asyncio.sleep(0.05)
    assert (await asked() or 0.0) > first, "reading the statistics is no work"
    engine = await bench.engine(stall_after=1)
    task = asyncio.create_task(bench.generate([1], 2))
    await bench.until(lambda: bench.received("t1") == 1)
    await asyncio.sleep(0.05)
    assert await asked() == 0.0
    engine.release.set()
    engine.stall_after = None
    await task
    ended = await asked()
    assert ended is not None
    assert 0.0 <= ended < 0.05
    await asyncio.sleep(0.05)
    await bench.client.post("/v1/batches", json={"step": 0, "groups": 1, "groupSize": 1})
    assert (await asked() or 1.0) < 0.05

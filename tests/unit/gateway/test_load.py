"""pearl-load: scaling, replay and the check of every token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pearl_gateway.load.log import logged_turns
from pearl_gateway.load.plan import arrivals, plan_groups
from pearl_gateway.load.recordings import read_sessions, shipped
from pearl_gateway.load.replay import Style
from pearl_gateway.load.report import percentile
from pearl_gateway.load.run import LoadSpec, prepare, run_load
from pearl_gateway.load.sessions import RecordedTurn, Session, scale
from pearl_gateway.load.stream import StreamError, joined
from pearl_gateway.load.synthetic import Synthetic, synthetic_sessions

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench
    from pearl_gateway.load.replay import Path as Path_

TOKEN = "secret"  # noqa: S105 - of the test's own gateway
SESSION = Session(100, (RecordedTurn(10, 50, 2.0), RecordedTurn(40, 0, 0.0)))


def test_sessions_are_scaled_by_one_factor_to_fit_the_context() -> None:
    # The longer one is 200 tokens; 95 of 100 tokens may be used, so the factor is 0.475.
    (first, second), factor = scale([SESSION, Session(50, SESSION.turns)], 100)
    assert factor == 0.475
    assert first == Session(48, (RecordedTurn(5, 24, 2.0), RecordedTurn(19, 0, 0.0)))
    assert second.prompt_tokens == 24


def test_sessions_that_fit_are_left_alone_and_shapes_can_be_changed() -> None:
    assert scale([SESSION], 4096) == ([SESSION], 1.0)
    ((changed,), _) = scale([SESSION], 4096, response_factor=2, input_factor=0.5, most_turns=1)
    assert changed == Session(50, (RecordedTurn(20, 25, 2.0),))


def test_rounding_up_never_overflows_the_context() -> None:
    many = Session(10, tuple(RecordedTurn(1, 1, 0.0) for _ in range(500)))
    (fitted,), _ = scale([many], 64)
    assert fitted.total_tokens <= 64


def test_every_shipped_recording_can_be_replayed() -> None:
    for name, count in (("synthetic_swe_200", 200), ("trie_office_work_first8", 8), ("sweagent_demo", 4)):
        sessions = read_sessions(shipped(name))
        assert len(sessions) == count
        assert all(one.turns and one.prompt_tokens for one in sessions)


WHOLE = {
    "num_turns": 1,
    "input_prompt_length": 5,
    "assistant_response_length": [4],
    "tool_call_output_length": [3],
    "tool_call_latency": [0.5],
}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"assistant_response_length": None}, "assistant_response_length must be a list"),
        ({"num_turns": 2}, "assistant_response_length must be a list with an entry for each of the 2 turns"),
        ({"num_turns": 0}, "the session has no turn: leave it out"),
        ({"input_prompt_length": -5}, "input_prompt_length: -5 must be a whole number from 1"),
        ({"assistant_response_length": ["x"]}, r"assistant_response_length\[0\]: 'x' must be a whole number"),
        ({"tool_call_latency": [-3]}, r"tool_call_latency\[0\]: -3 must be a number of seconds from 0"),
        ({"turns": [{"appended": 5, "generated": 0}]}, r"turns\[0\].generated: 0 must be a whole number from 1"),
        ({"turns": [{"appended": 5, "generated": 2, "retained": 1}]}, r"turns\[0\].retained: agents that drop"),
        ({"turns": [1]}, "turns must be a list of objects"),
        ("{nope", r"is not JSON \(Expecting property name"),
        ("[1]", "must be a JSON object"),
    ],
)
def test_wrong_recordings_name_file_line_and_field(tmp_path: Path, line: Any, named: str) -> None:
    path = tmp_path / "x.jsonl"
    wrong = line if isinstance(line, str) else json.dumps({**WHOLE, **line})
    path.write_text(json.dumps(WHOLE) + "\n\n" + wrong + "\n")
    with pytest.raises(ValueError, match=rf"x.jsonl line 3: .*{named}.*docs/pearl-load.md has the format"):
        read_sessions(path)


def test_what_is_no_recording_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sweagent_demo, synthetic_swe_200, trie_office_work_first8"):
        shipped("nothing")
    path = tmp_path / "x.jsonl"
    for content, named in ((b"\xff", "can't decode"), (b"\n", "holds no session")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=named):
            read_sessions(path)


def test_both_forms_of_recordings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    turns = [
        {"appended": 5, "generated": 4, "environmentSeconds": 0.5},
        {"appended": 3, "generated": 2, "environmentSeconds": 1},
    ]
    columns = {**WHOLE, "final_assistant_response_length": 2}
    path.write_text(json.dumps(columns) + "\n" + json.dumps({"turns": turns}) + "\n")
    first, second = read_sessions(path)
    assert first == Session(5, (RecordedTurn(4, 3, 0.5), RecordedTurn(2, 0, 0.0)))
    assert second == Session(5, (RecordedTurn(4, 3, 0.5), RecordedTurn(2, 0, 1.0)))


def test_group_members_share_the_prompt_and_nothing_else() -> None:
    (group,) = plan_groups([SESSION], groups=1, group_size=2, run="r", seed="s", vocabulary=256)
    left, right = group.members
    assert left.prompt() == right.prompt()
    assert left.tool_output(0) != right.tool_output(0)
    assert all(32 <= one < 256 for one in left.prompt())


def test_percentile_is_the_nearest_rank() -> None:
    assert [percentile([1.0, 2.0, 3.0, 4.0], p) for p in (50, 99)] == [2.0, 4.0]
    assert percentile([], 50) is None


@pytest.fixture
def recording(tmp_path: Path) -> str:
    turns = {"assistant_response_length": [4, 3], "tool_call_output_length": [5, 6], "tool_call_latency": [0.01, 0.0]}
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"num_turns": 2, "input_prompt_length": 12, **turns}) + "\n")
    return str(path)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["tokens", "completions", "chat"])
async def test_replay_finishes_everything_although_a_worker_dies(
    bench: Bench, recording: str, path: Path_, *, stream: bool
) -> None:
    await bench.engine(stop_after=2)
    reference = await bench.engine()
    async with bench.served() as url:
        spec = LoadSpec(
            url=url,
            run="x",
            token=TOKEN,
            sessions=recording,
            groups=2,
            group_size=2,
            style=Style(path=path, concurrency=3, stream=stream),
            reference=reference.url,
        )
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert (summary.finished, summary.turns, summary.generated_tokens, summary.wrong) == (4, 8, 28, 0)
    assert summary.checked == 8
    assert summary.good
    assert (summary.first_seconds_p50 is not None) == stream
    progress = await bench.client.get("/v1/batches/0")
    assert (progress.json()["completeGroups"], progress.json()["closed"]) == (2, True)


async def test_wrong_answers_are_found_and_named(bench: Bench, recording: str) -> None:
    await bench.engine()
    other = await bench.engine(version=1)
    bench.gateway.fleet.remove("b")
    async with bench.served() as url:
        spec = LoadSpec(url=url, run="x", token=TOKEN, sessions=recording, groups=1, group_size=1, reference=other.url)
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert summary.wrong > 0
    assert not summary.good
    assert "x-g0-m0 turn 0: differs from token" in summary.problems[0]


async def test_refusals_for_good_fail_the_trajectory_loudly(bench: Bench, recording: str) -> None:
    await bench.engine(refuse=True)
    async with bench.served() as url:
        spec = LoadSpec(url=url, run="x", token=TOKEN, sessions=recording, groups=1, group_size=1)
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert (summary.finished, summary.failed) == (0, 1)
    assert "bad token" in summary.problems[0]


def test_made_up_sessions_are_repeatable_and_lie_around_their_means() -> None:
    wanted = Synthetic(sessions=400, turns=4, prompt_tokens=300, response_tokens=80, tool_tokens=50, tool_seconds=2)
    sessions = synthetic_sessions(wanted, "a")
    assert sessions == synthetic_sessions(wanted, "a")
    assert sessions != synthetic_sessions(wanted, "b")
    assert {len(one.turns) for one in sessions} == set(range(1, 8))
    answers = [turn.response_tokens for one in sessions for turn in one.turns]
    delays = [turn.tool_seconds for one in sessions for turn in one.turns[:-1]]
    assert sum(answers) / len(answers) == pytest.approx(80, rel=0.1)
    assert sum(delays) / len(delays) == pytest.approx(2, rel=0.1)
    assert all(one.turns[-1].tool_tokens == 0 for one in sessions)


def test_made_up_sessions_without_spread_are_what_was_asked_for() -> None:
    (only,) = synthetic_sessions(Synthetic(1, turns=1, prompt_tokens=300, response_tokens=80, spread=0), "a")
    assert only == Session(300, (RecordedTurn(80, 0, 0.0),))
    with pytest.raises(ValueError, match="--tool-seconds -1 must be a number from 0"):
        Synthetic(1, tool_seconds=-1)


def test_groups_arrive_at_the_rate_that_was_asked_for() -> None:
    times = arrivals(4000, 20.0, "a")
    assert times == sorted(times)
    assert times[-1] == pytest.approx(200, rel=0.05)


async def test_in_an_open_loop_nobody_waits_for_earlier_ones(bench: Bench, recording: str) -> None:
    await bench.engine()
    async with bench.served() as url:
        # One at a time would take as long as all their tools together: 8 trajectories, 0.4 s each.
        style = Style(concurrency=1, rate=200.0, time_scale=40.0)
        spec = LoadSpec(url=url, run="x", token=TOKEN, sessions=recording, groups=8, group_size=1, style=style)
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert (summary.finished, summary.turns) == (8, 16)
    assert summary.duration_seconds < 0.4 * 8
    assert summary.admission_seconds_p99 is not None


def test_the_log_is_read_back_by_turn_although_a_context_was_broken_and_a_worker_lost() -> None:
    segments = [
        {"turn": 0, "start": 2, "end": 3, "reason": "workerLost"},
        {"turn": 0, "start": 3, "end": 4, "reason": "complete"},
        {"turn": 1, "start": 5, "end": 6, "reason": "complete"},
        {"turn": 2, "start": 6, "end": 8, "reason": "prefixBroken"},
        {"turn": 2, "start": 8, "end": 9, "reason": "complete"},
    ]
    turns = logged_turns({"tokenIds": [10, 11, 12, 13, 14, 15, 20, 21, 22], "segments": segments})
    assert [(one.prompt, one.token_ids) for one in turns.values()] == [
        ([10, 11], [12, 13]),
        ([10, 11, 12, 13, 14], [15]),
        ([20, 21], [22]),
    ]


async def test_a_log_that_differs_from_what_was_received_is_told(
    bench: Bench, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.engine()
    reference = await bench.engine()
    true_export = bench.gateway.export

    def wrong_export(name: str) -> Any:
        export = true_export(name)
        assert export is not None
        return export.model_copy(update={"token_ids": [*export.token_ids[:-1], 9]})

    monkeypatch.setattr(bench.gateway, "export", wrong_export)
    async with bench.served() as url:
        one = {"groups": 1, "group_size": 1, "reference": reference.url}
        spec = LoadSpec(url=url, run="x", token=TOKEN, sessions=recording, **one)
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert summary.problems == ["x-g0-m0 turn 1: differs from the gateway's own log"]


def test_a_stream_that_ends_early_is_no_answer() -> None:
    first = 'data: {"choices": [{"token_ids": [1], "delta": {"content": "a"}}]}\n\n'
    last = 'data: {"choices": [{"token_ids": [2], "delta": {"content": "b"}, "finish_reason": "length"}]}\n\n'
    (choice,) = joined(first + last + "data: [DONE]\n\n")["choices"]
    assert (choice["token_ids"], choice["message"]["content"]) == ([1, 2], "ab")
    for cut in (first, first + 'data: {"choices": [{"tok'):
        with pytest.raises(StreamError, match="ends"):
            joined(cut)
    with pytest.raises(StreamError) as told:
        joined(first + 'data: {"error": {"message": "later", "code": 503}}\n\n')
    assert told.value.status == 503

"""pearl-load: scaling, replay and the check of every token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pearl_gateway.load.plan import plan_groups
from pearl_gateway.load.replay import Style
from pearl_gateway.load.report import percentile
from pearl_gateway.load.run import LoadSpec, prepare, run_load
from pearl_gateway.load.sessions import RecordedTurn, Session, read_sessions, scale, shipped

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench

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
    for name, count in (("synthetic_swe_200", 200), ("trie_office_work_first8", 8)):
        sessions = read_sessions(shipped(name))
        assert len(sessions) == count
        assert all(one.turns and one.prompt_tokens for one in sessions)


def test_wrong_recordings_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"num_turns": 1}\n')
    with pytest.raises(ValueError, match=r"x.jsonl:1: KeyError\('assistant_response_length'\)"):
        read_sessions(path)
    with pytest.raises(ValueError, match="synthetic_swe_200, trie_office_work_first8"):
        shipped("nothing")


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


@pytest.mark.parametrize("path", ["tokens", "completions", "chat"])
async def test_replay_finishes_everything_although_a_worker_dies(bench: Bench, recording: str, path: str) -> None:
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
            style=Style(path=path, concurrency=3),
            reference=reference.url,
        )
        prepared = prepare(spec)
        summary = await run_load(spec, prepared, prepared.progress())
    assert (summary.finished, summary.turns, summary.generated_tokens, summary.wrong) == (4, 8, 28, 0)
    assert summary.checked == (8 if path == "tokens" else 0)
    assert summary.good
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

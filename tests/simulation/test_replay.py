from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from pearl_planner.workload.profile import Profile, TrajectoryRecord, TurnRecord, update
from pearl_simulator.errors import InputError
from pearl_simulator.workloads.recordings import SHIPPED, read_recordings
from pearl_simulator.workloads.replay import HazardTurns, from_statistics, replayed

if TYPE_CHECKING:
    from pathlib import Path

TURN = {"appended": 100, "generated": 20, "environmentSeconds": 0.5}


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_recording_is_replayed_as_it_was(tmp_path: Path) -> None:
    later = {"appended": 7, "generated": 30, "retained": 10, "missedShare": 0.5, "environmentSeconds": 2}
    path = write(tmp_path, {"resetSeconds": 3, "turns": [TURN, later]})
    script = replayed(path, groups=1, group_size=1).batch(0, 0)[0]
    assert script.reset_seconds == 3.0
    assert [(t.appended_tokens, t.generated_tokens, t.retained_tokens) for t in script.turns] == [
        (100, 20, 20),
        (7, 30, 10),
    ]
    assert [(t.missed_share, t.environment_seconds) for t in script.turns] == [(0.0, 0.5), (0.5, 2.0)]


def test_members_of_a_drawn_group_are_samples_of_one_recorded_group(tmp_path: Path) -> None:
    path = write(
        tmp_path, *({"group": g, "turns": [{**TURN, "appended": int(s)}]} for g, s in ("a1", "a2", "b5", "b6"))
    )
    batch = replayed(path, groups=20, group_size=2).batch(0, 0)
    pairs = {tuple(sorted(s.turns[0].appended_tokens for s in batch[at : at + 2])) for at in range(0, 40, 2)}
    assert pairs == {(1, 2), (5, 6)}


def test_a_recording_without_groups_is_drawn_from_as_a_whole_and_repeatably() -> None:
    workload = replayed("synthetic_swe_200")
    batch = workload.batch(2, 9)
    assert len(batch) == 64
    assert len({script.turns for script in batch[:16]}) == 16
    assert workload.batch(2, 9) == batch
    assert workload.batch(3, 9) != batch


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recording_is_read(name: str) -> None:
    found = read_recordings(name)
    assert all(recording.turns for recording in found)


def test_the_first_shipped_session_has_its_published_numbers() -> None:
    first = read_recordings("trie_office_work_first8")[0]
    assert first.turns[0].appended_tokens == 8749
    assert [turn.generated_tokens for turn in first.turns[:3]] == [153, 12, 97]
    assert [turn.appended_tokens for turn in first.turns[1:4]] == [50, 1111, 10]
    assert first.turns[0].environment_seconds == 0.685


def test_what_does_not_fit_the_context_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path, {"turns": [TURN, {**TURN, "generated": 500}, TURN]})
    turns = replayed(path, groups=1, group_size=1, context_tokens=400).batch(0, 0)[0].turns
    # 100 + 20, then 100 more prompt and the 180 tokens that are left.
    assert [turn.generated_tokens for turn in turns] == [20, 180]
    with pytest.raises(InputError, match=r"starts with 100 tokens.*raise workload.contextTokens"):
        replayed(path, context_tokens=100)


def test_an_export_of_the_gateway_is_read(tmp_path: Path) -> None:
    segments = [
        {"turn": 1, "worker": "w0", "start": 50, "end": 60},
        {"turn": 1, "worker": "w1", "start": 60, "end": 75},
        {"turn": 2, "worker": "w1", "start": 90, "end": 100},
    ]
    path = write(tmp_path, {"trajectory": "t", "group": "g", "turns": 2, "tokenIds": [0] * 100, "segments": segments})
    turns = read_recordings(path, environment_seconds=1.5)[0].turns
    assert [(t.appended_tokens, t.generated_tokens, t.environment_seconds) for t in turns] == [
        (50, 25, 1.5),
        (15, 10, 1.5),
    ]
    with pytest.raises(InputError, match=r"give workload\.environmentSeconds"):
        read_recordings(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is no object with `turns`"),
        ({"turns": []}, r"line 2: turns is \[\]; give a list"),
        ({"turns": [3]}, r"line 2: turns\[0\] is 3"),
        ({"turns": [{**TURN, "generated": 0}]}, r"line 2: turns\[0\].generated is 0; give a number from 1"),
        ({"turns": [{**TURN, "appended": -4}]}, r"line 2: turns\[0\].appended is -4"),
        ({"turns": [{"appended": 1, "generated": 1}]}, r"line 2: turns\[0\].environmentSeconds is missing"),
        ('{"turns": [{"appended": 1, "generated": 1, "environmentSeconds": NaN}]}', "environmentSeconds is nan"),
        ({"turns": [{**TURN, "retained": 21}]}, r"retained is 21; give a number from 0 to 20"),
        ({"num_turns": 3, "assistant_response_length": [1]}, "tool_call_output_length is missing"),
    ],
)
def test_a_malformed_line_gets_a_sentence(tmp_path: Path, line: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_recordings(write(tmp_path, {"turns": [TURN]}, line))


def test_an_empty_recording_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no trajectory"):
        read_recordings(write(tmp_path, "", "  "))
    with pytest.raises(InputError, match="cannot be read"):
        read_recordings(tmp_path / "none.jsonl")


def test_known_chances_to_end_give_their_mean() -> None:
    # P(more than 1) = 0.5, P(more than 2) = 0.25, then the end: mean 1.75.
    turns = HazardTurns((0.5, 0.25, 0.0))
    draws = [statistics.NormalDist().inv_cdf((at + 0.5) / 4000) * 2**0.5 for at in range(4000)]
    assert statistics.mean(turns.count(draw, 0.0) for draw in draws) == pytest.approx(1.75, abs=0.01)


def statistics_file(folder: Path) -> Path:
    """400 trajectories of 5 turns: prompt 4,096, then 300 appended and 120 generated, half of it retained, 2 s."""
    profile: Profile | None = None
    for number in range(400):
        for turn in range(1, 6):
            again = turn > 1
            record = TurnRecord(
                str(number),
                turn,
                300 if again else 4096,
                120,
                4096 + 360 * (turn - 1),
                previous_generated_tokens=120 if again else None,
                retained_tokens=60 if again else None,
                environment_seconds=2.0 if again else None,
            )
            profile = update(profile, [record])
        profile = update(profile, [TrajectoryRecord(str(number), 5)])
    assert profile is not None
    path = folder / "stats.json"
    path.write_text(json.dumps({"rollout": "x", "profile": profile.to_dict()}))
    return path


def test_statistics_of_the_gateway_become_a_workload_like_the_one_seen(tmp_path: Path) -> None:
    batch = from_statistics(statistics_file(tmp_path)).batch(0, 0)
    assert statistics.mean(len(script.turns) for script in batch) == pytest.approx(5.0, rel=0.05)
    later = [turn for script in batch for turn in script.turns[1:]]
    assert statistics.mean(turn.generated_tokens for turn in later) == pytest.approx(120, rel=0.02)
    assert {turn.retained_tokens for turn in later} == {60}
    assert statistics.mean(turn.environment_seconds for turn in later[:3]) == pytest.approx(2.0, rel=0.01)
    # The sketch has appends in bins of powers of two, so a first prompt of 4,096 is known as 4,096..8,191.
    assert 4096 <= batch[0].turns[0].appended_tokens < 8192


def test_statistics_that_know_nothing_get_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps({"profile": None}))
    with pytest.raises(InputError, match="fewer than 12 turns"):
        from_statistics(path)
    path.write_text("nothing")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        from_statistics(path)

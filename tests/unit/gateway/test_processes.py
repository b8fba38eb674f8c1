"""The parts of several processes that need none: homes, ledgers, notes, layouts, merging, back-off, the barrier."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from fake_cluster import quiet_stats
from hypothesis import given
from hypothesis import strategies as st
from several_processes import lines

from pearl_api.names import Activity, Role
from pearl_api.wire.gateway import Counters, GatewayStats, LiveStates, TrajectoryProgress, WorkerView
from pearl_gateway.main import main
from pearl_gateway.processes.backoff import MOST_FAILURES, STABLE_SECONDS, Backoff
from pearl_gateway.processes.front import named
from pearl_gateway.processes.homes import home_of, share_of
from pearl_gateway.processes.layout import prepare
from pearl_gateway.processes.ledger import beyond, joined, sums
from pearl_gateway.processes.merge import merged
from pearl_gateway.processes.outbox import MOST_NOTES, Inbox, Outbox
from pearl_gateway.processes.report import summed
from pearl_gateway.settings import Limits, read_settings
from pearl_gateway.versions import Accepted, Loaded, Staleness, accepted, served

if TYPE_CHECKING:
    from pathlib import Path

TOTALS = dict.fromkeys(Counters.model_fields, 0)


def test_homes_are_stable_and_even() -> None:
    # Written down once: stored trajectories are found by it after an update of the gateway.
    assert [home_of(f"t{at}", 4) for at in range(8)] == [3, 1, 2, 2, 1, 1, 3, 1]
    assert home_of("anything", 1) == 0
    counts = Counter(home_of(f"step-3/group-{at // 16}/{at % 16}", 16) for at in range(16_000))
    assert set(counts) == set(range(16))
    assert min(counts.values()) > 850


def test_bounds_are_shared_out() -> None:
    share = share_of(Limits(max_turns=10, max_eval_turns=3, max_kept_tokens=100), 4)
    assert (share.max_turns, share.max_eval_turns, share.max_kept_tokens) == (3, 1, 25)
    assert share.worker_turns == Limits().worker_turns


COUNTS = st.dictionaries(st.sampled_from(["turns", "lost_turns", "degraded.noDecode"]), st.integers(1, 99), min_size=1)
LEDGERS = st.dictionaries(st.sampled_from(["start-a", "start-b", "start-c"]), COUNTS)


@given(LEDGERS, LEDGERS, LEDGERS)
def test_ledgers_are_joined_in_any_order_and_any_number_of_times(one: Any, two: Any, three: Any) -> None:
    assert joined(one, two) == joined(two, one)
    assert joined(one, joined(two, three)) == joined(joined(one, two), three)
    assert joined(joined(one, two), two) == joined(one, two)
    assert joined(one, {}) == one
    # Who hears only what is news to it knows as much as the one that tells.
    assert joined(two, beyond(one, two)) == joined(one, two)
    assert beyond(two, joined(one, two)) == {}
    # A sum never falls, whatever else is heard.
    before, after = sums(one), sums(joined(one, two))
    assert all(after[name] >= count for name, count in before.items())


def test_totals_of_a_dead_start_stay_in_the_sum() -> None:
    known = joined({}, {"first": {"turns": 5}})
    known = joined(known, {"first": {"turns": 7, "lost_turns": 0}, "second": {"turns": 1}})
    assert sums(known) == {"turns": 8}


@given(st.lists(st.integers(0, 5), max_size=30))
def test_every_note_is_heard_once_whichever_answers_are_lost(lost: list[int]) -> None:
    outbox, inbox, heard = Outbox(), Inbox(), []
    for at in range(30):
        outbox.put("start", trajectory=str(at))
        heard += inbox.new("s", outbox.first, list(outbox.notes))
        if at not in lost:
            outbox.acked(inbox.heard("s"))
    assert [one["trajectory"] for one in heard] == [str(at) for at in range(30)]
    outbox.acked(inbox.heard("s"))
    assert not outbox.notes


def test_an_owner_that_starts_anew_hears_what_was_not_acknowledged() -> None:
    outbox, old = Outbox(), Inbox()
    for at in range(3):
        outbox.put("start", trajectory=str(at))
    assert len(old.new("s", outbox.first, outbox.notes)) == 3
    outbox.acked(2)
    assert [one["trajectory"] for one in Inbox().new("s", outbox.first, outbox.notes)] == ["2"]


def test_notes_to_an_owner_that_is_away_for_good_are_bounded() -> None:
    outbox = Outbox()
    for at in range(MOST_NOTES + 3):
        outbox.put("start", trajectory=at)
    assert (len(outbox.notes), outbox.first, outbox.given_up) == (MOST_NOTES, 3, 3)


def test_loads_are_added_by_worker() -> None:
    assert summed([{"a": (1, 10)}, {"a": (2, 5), "b": (0, 7)}]) == {"a": (3, 15), "b": (0, 7)}


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"pearl": {"trajectory": "t1"}}', "t1"),
        (b'{"p\\u0065arl": {"trajectory": "t1"}}', "t1"),
        (json.dumps({"pearl": {"trajectory": "t1"}}).encode("utf-16"), "t1"),
        (b'{"pearl": {"turn": 3}}', None),
        (b'{"pearl": "t1"}', None),
        (b'{"pearl": {"trajectory": 5}}', None),
        (b'["pearl"]', None),
        (b'{"pearl": ', None),
        (b'{"prompt": "x"}', None),
        (b"[" * 100_000 + b'"pearl"', None),
    ],
)
def test_the_trajectory_that_a_body_names(body: bytes, name: str | None) -> None:
    assert named(body) == name


ALL_AT_ONCE = Staleness(0, all_at_once=True)


def test_no_process_begins_on_new_weights_while_another_may_begin_on_old_ones() -> None:
    workers = [Loaded(4, busy=False), Loaded(5, busy=False)]
    assert served(workers, 5, ALL_AT_ONCE) == 5
    assert accepted(workers, 5, ALL_AT_ONCE, others_served=4) is None
    assert accepted(workers, 5, ALL_AT_ONCE, others_served=-1) is None
    assert accepted(workers, 5, ALL_AT_ONCE, others_served=5) == Accepted(5, 5)
    # The one that knows less waits as well: workers with newer weights than it wants may be in use by the others.
    assert accepted(workers[:1], 4, ALL_AT_ONCE, others_served=5) == Accepted(4, 4)
    assert served(workers, 5, Staleness(1, all_at_once=False)) == 0
    assert accepted(workers, 5, Staleness(1, all_at_once=False), others_served=0) == Accepted(4)


def view(uid: str, **more: Any) -> WorkerView:
    known: dict[str, Any] = {
        "uid": uid,
        "pod": f"pod-{uid}",
        "role": Role.COLOCATED,
        "acked_epoch": 1,
        "activity": Activity.ACTIVE,
        "ready": True,
        "in_flight": 1,
        "resident_tokens": 10,
    }
    return WorkerView(**{**known, **more})


def stats(**more: Any) -> GatewayStats:
    return quiet_stats("r", **{"window": 3, "local_append_tokens": 64, **more})


def test_statistics_of_processes_are_one_view() -> None:
    progress = TrajectoryProgress(group="g", turns_done=1, context_tokens=5, idle_seconds=None)
    own = stats(
        live=LiveStates(queued=1, decoding=2),
        workers=[view("a", first_token_in_role_seconds=3.0, weight_version=5), view("b"), view("only-here")],
        unfinished=[progress],
        weights_wanted=5,
        weights_min=4,
        weights_max=5,
    )
    other = stats(
        live=LiveStates(queued=2, environment=4),
        workers=[
            view("a", first_token_in_role_seconds=2.0, weight_version=4, ready=False, in_flight=3),
            view("b", acked_epoch=0, role=Role.DECODE, resident_tokens=1),
        ],
        unfinished=[progress],
        weights_min=3,
        asked_seconds=2.5,
    )
    found = merged(own, [other], {**TOTALS, "turns": 7}, uptime=20.0)
    assert found.live == LiveStates(queued=3, decoding=2, environment=4)
    assert len(found.unfinished) == 2
    assert found.asked_seconds == 2.5
    assert (found.uptime_seconds, found.counters.turns, found.window) == (20.0, 7, 3)
    assert (found.weights_wanted, found.weights_min, found.weights_max) == (5, 3, 5)
    a, b = found.workers
    assert (a.uid, a.ready, a.in_flight, a.resident_tokens) == ("a", False, 4, 20)
    assert (a.weight_version, a.first_token_in_role_seconds) == (4, 2.0)
    assert (b.acked_epoch, b.role, b.resident_tokens) == (0, Role.DECODE, 11)


def test_a_process_that_fails_again_and_again_is_given_up() -> None:
    backoff = Backoff()
    pauses = [backoff.died(1.0) for _ in range(MOST_FAILURES)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.died(1.0) is None
    assert Backoff(MOST_FAILURES).died(STABLE_SECONDS) == 0.1


def turn_line(name: str, turn: int) -> dict[str, Any]:
    return {"trajectory": name, "turn": turn}


def fill(folder: Path) -> None:
    (folder / "turns-000001.jsonl").write_text(
        "".join(json.dumps(turn_line(f"t{at % 5}", at)) + "\n" for at in range(20))
    )
    (folder / "trajectories-000001.jsonl").write_text(
        "".join(json.dumps({"step": 1, "export": {"trajectory": f"e{at}"}}) + "\n" for at in range(9))
    )
    (folder / "batches-000001.jsonl").write_text('{"event": "open"}\n{"event": "close"}\n')
    (folder / "profile.json").write_text("{}")


def test_another_number_of_processes_finds_everything_where_it_belongs(tmp_path: Path) -> None:
    fill(tmp_path)
    assert prepare(tmp_path, 1) == [tmp_path]
    for count in (3, 2, 3, 1, 4):
        folders = prepare(tmp_path, count)
        assert len(folders) == count
        for at, folder in enumerate(folders):
            turns = list(lines(folder, "turns"))
            assert all(home_of(one["trajectory"], count) == at for one in turns)
            for name in {one["trajectory"] for one in turns}:
                mine = [one["turn"] for one in turns if one["trajectory"] == name]
                assert mine == sorted(mine)
                assert len(mine) == 4
            assert bool(list(lines(folder, "batches"))) == (at == 0)
        assert sum(len(list(lines(one, "turns"))) for one in folders) == 20
        exports = [one["export"]["trajectory"] for folder in folders for one in lines(folder, "trajectories")]
        assert sorted(exports) == [f"e{at}" for at in range(9)]
        assert (folders[0] / "profile.json").is_file()
        assert [path.name for path in tmp_path.glob("of-*")] == [f"of-{count}"]
        assert not list(tmp_path.glob("*.jsonl"))


def test_a_copy_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    half = tmp_path / "of-2" / "0"
    half.mkdir(parents=True)
    (half / "turns-000001.jsonl").write_text(json.dumps(turn_line("t0", 0)) + "\n")
    folders = prepare(tmp_path, 2)
    assert sum(len(list(lines(one, "turns"))) for one in folders) == 20


def test_what_a_finished_copy_left_behind_goes(tmp_path: Path) -> None:
    fill(tmp_path)
    prepare(tmp_path, 2)
    fill(tmp_path)
    folders = prepare(tmp_path, 2)
    assert sum(len(list(lines(one, "turns"))) for one in folders) == 20
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("text", ["0", "17", "1.5", "-1", "many"])
def test_the_number_of_processes_is_checked(text: str) -> None:
    with pytest.raises(ValueError, match="PEARL_PROCESSES"):
        read_settings({"PEARL_ROLLOUT": "r", "PEARL_AUTH": "None", "PEARL_PROCESSES": text})


def test_several_processes_need_a_storage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {"PEARL_ROLLOUT": "r", "PEARL_AUTH": "None", "PEARL_PROCESSES": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PEARL_STORAGE", raising=False)
    monkeypatch.setattr("sys.argv", ["pearl-gateway", "--workers", str(tmp_path / "w.json")])
    assert main() == 2
    assert "set PEARL_STORAGE" in capsys.readouterr().err

"""The report of `loan_times`: figures from the cycles, and a table that says what was measured on."""

from __future__ import annotations

from pearl_worker.loan_cycles import Cycle, summary
from pearl_worker.loan_times import table


def cycle(  # noqa: PLR0913 - a row of the report
    kind: str, end: str, ready: float, reclaim: float, *, sleep: float = 0.0, free: bool = True
) -> Cycle:
    return Cycle(
        epoch=1,
        kind=kind,
        end=end,
        ready_seconds=ready,
        wake_seconds=None if kind == "start" else ready - 0.5,
        reclaim_seconds=reclaim,
        drain_seconds=0.0,
        sleep_seconds=sleep,
        overhead_seconds=reclaim - sleep,
        free=free,
        aborted_requests=None if end == "kill" else 8,
        bytes_before=0,
        bytes_awake=100,
        bytes_after=0,
    )


def test_figures_are_kept_apart_by_how_a_loan_began_and_ended() -> None:
    cycles = [
        cycle("start", "sleep", 40.0, 1.5, sleep=1.25),
        cycle("wake", "sleep", 3.0, 2.0, sleep=1.5),
        cycle("wake", "kill", 5.0, 0.75, free=False),
    ]
    found = summary(cycles)
    assert found["start_seconds"] == {"count": 1, "median": 40.0, "worst": 40.0}
    assert found["wake_seconds"] == {"count": 2, "median": 4.0, "worst": 5.0}
    assert found["engine_wake_seconds"] == {"count": 2, "median": 3.5, "worst": 4.5}
    assert found["sleep_reclaim_seconds"] == {"count": 2, "median": 1.75, "worst": 2.0}
    assert found["kill_reclaim_seconds"] == {"count": 1, "median": 0.75, "worst": 0.75}
    assert found["overhead_seconds"] == {"count": 2, "median": 0.375, "worst": 0.5}
    assert (found["aborted_requests"], found["not_free"]) == (16, 1)


def test_the_table_says_on_what_it_was_measured_and_leaves_out_what_was_not() -> None:
    report = {"device": "FAKE", "engine": "tiny", "summary": summary([cycle("start", "sleep", 40.0, 1.5, sleep=1.25)])}
    lines = table(report).splitlines()
    assert lines[0] == "device: FAKE"
    assert any(line.split() == ["start_seconds", "1", "40.000", "40.000"] for line in lines)
    assert not any("kill" in line for line in lines)
    assert lines[-1] == "not free at the deadline: 0"

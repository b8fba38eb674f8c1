"""The step recorder inside the engine and the agent's look at its files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pearl_engine_plugins import step_recorder

from pearl_worker.steps import newest_steps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@dataclass
class Plan:
    """The parts of vLLM's SchedulerOutput that are read."""

    new: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Request → prompt length, tokens already in KV."""
    known: dict[str, int] = field(default_factory=dict)
    """Request → tokens already in KV."""
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())

    @property
    def scheduled_new_reqs(self) -> list[Any]:
        return [
            SimpleNamespace(req_id=name, prompt_len=length, num_computed_tokens=cached)
            for name, (length, cached) in self.new.items()
        ]

    @property
    def scheduled_cached_reqs(self) -> Any:
        return SimpleNamespace(req_ids=list(self.known), num_computed_tokens=list(self.known.values()))


class Scheduler:
    """vLLM's scheduler as far as the recorder sees it; time passes where the test says."""

    running, waiting = 1, 0

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0))

    def schedule(self, plan: Plan) -> Plan:
        return plan

    def update_from_output(self, scheduler_output: Plan) -> str:
        return f"{scheduler_output.total_num_scheduled_tokens} tokens"

    def get_request_counts(self) -> tuple[int, int]:
        return self.running, self.waiting

    def get_kv_cache_usage(self) -> float:
        return 0.25


def test_a_step_is_described_by_its_work() -> None:
    plan = Plan(
        new={"cold": (300, 0), "warm": (200, 128), "handed-over": (100, 99)},
        known={"decoding": 50, "second-chunk": 512, "speculating": 70},
        num_scheduled_tokens={
            "cold": 300, "warm": 72, "handed-over": 1, "decoding": 1, "second-chunk": 20, "speculating": 4,
        },
        scheduled_spec_decode_tokens={"speculating": [1, 2, 3]},
    )  # fmt: skip
    assert step_recorder.describe(plan) == {
        "decodes": 3,
        "context_tokens": 100 + 51 + 74,
        "prefills": 3,
        "prefill_tokens": 300 + 72 + 20,
        "prefix_tokens": 128 + 512,
        "prefill_pairs": 300 * 300 / 2 + 72 * 128 + 72 * 72 / 2 + 20 * 512 + 20 * 20 / 2,
        "prompt_tokens": 600,
        "cached_tokens": 128 + 99,
    }


def test_seconds_hold_host_work_and_no_waiting_for_requests() -> None:
    now, written = [10.0], []
    recorder = step_recorder.StepRecorder(
        written.append, clocks=lambda: (now[0], now[0] / 4), wall=lambda: 1000.0 + now[0]
    )
    scheduler = Scheduler()

    def step(began: float, ended: float, *, left: int, tokens: int = 1) -> None:
        plan = Plan(known={"a": 5}, num_scheduled_tokens={"a": tokens} if tokens else {})
        recorder.scheduled(plan, (began, began / 4))
        now[0], scheduler.running = ended, left
        recorder.updated(scheduler, plan)

    step(10.0, 10.5, left=1)  # the engine was idle: from its own scheduling
    step(10.7, 11.0, left=1)  # busy: the 0.2 s between the steps are the host's
    step(11.1, 11.2, left=0)
    step(90.0, 90.25, left=1)  # idle for 79 s
    step(90.3, 90.3, left=1, tokens=0)  # waited for a transfer: no work, no record
    step(91.0, 91.1, left=0)
    assert [round(record["seconds"], 6) for record in written] == [0.5, 0.5, 0.2, 0.25, 0.1]
    assert (written[0]["at"], written[0]["cpu_seconds"]) == (1010.5, 0.125)


def test_steps_that_overlap_are_told_apart() -> None:
    now, written = [0.0], []
    recorder = step_recorder.StepRecorder(written.append, clocks=lambda: (now[0], now[0] / 4), wall=lambda: 0.0)
    first, second = (Plan(known={"a": k}, num_scheduled_tokens={"a": 1}) for k in (10, 20))
    recorder.scheduled(first, (0.0, 0.0))
    recorder.scheduled(second, (0.1, 0.025))
    for at, plan in ((1.0, first), (1.8, second)):
        now[0] = at
        recorder.updated(Scheduler(), plan)
    assert [(record["context_tokens"], round(record["seconds"], 6)) for record in written] == [(11, 1.0), (21, 0.8)]


def test_the_file_never_outgrows_its_limit_and_keeps_the_newest(tmp_path: Path) -> None:
    log = step_recorder.StepLog(tmp_path / "steps-0.jsonl", limit_bytes=1000)
    for at in range(100):
        log.write({"at": at})
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1000
    kept = [step["at"] for step in newest_steps(tmp_path, 0.0, 1000)]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 40
    assert [step["at"] for step in newest_steps(tmp_path, 97.0, 1000)] == [98, 99]
    assert [step["at"] for step in newest_steps(tmp_path, 0.0, 3)] == [97, 98, 99]


def test_no_recorder_and_broken_lines_are_no_steps(tmp_path: Path) -> None:
    assert newest_steps(None, 0.0, 10) == newest_steps(tmp_path / "missing", 0.0, 10) == []
    (tmp_path / "steps-0.jsonl").write_text('{"at": 1}\n{"at": \n[]\n{"at": "x"}\n')
    assert newest_steps(tmp_path, 0.0, 10) == [{"at": 1}]


def test_a_wrapped_scheduler_records_and_answers_as_before(tmp_path: Path) -> None:
    class Wrapped(Scheduler):
        schedule, update_from_output = Scheduler.schedule, Scheduler.update_from_output

    step_recorder.wrap(Wrapped, tmp_path, 10_000)
    scheduler, plan = Wrapped(), Plan(known={"a": 5}, num_scheduled_tokens={"a": 1})
    assert scheduler.update_from_output(scheduler.schedule(plan)) == "1 tokens"
    record = json.loads((tmp_path / "steps-0.jsonl").read_text())
    assert (record["decodes"], record["context_tokens"], record["kv_usage"]) == (1, 6, 0.25)


def test_a_recorder_that_fails_does_not_stop_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrapped(Scheduler):
        schedule, update_from_output = Scheduler.schedule, Scheduler.update_from_output

    step_recorder.wrap(Wrapped, tmp_path, 10_000)
    monkeypatch.setattr(Wrapped, "get_kv_cache_usage", lambda _: 1 / 0)
    scheduler, plan = Wrapped(), Plan(known={"a": 5}, num_scheduled_tokens={"a": 1})
    for _ in range(3):
        assert scheduler.update_from_output(scheduler.schedule(plan)) == "1 tokens"
    assert [record.message for record in caplog.records] == ["step recorder stopped; the engine is not affected"]

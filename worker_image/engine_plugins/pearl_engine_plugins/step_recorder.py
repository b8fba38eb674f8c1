"""Writes down what every engine step computed and how long it took: the food of the planner's calibration.

Every step's plan passes through two methods of vLLM's scheduler, `schedule` and `update_from_output`; both are
wrapped in the process that runs the engine's loop. vLLM's own per-step statistics (`--enable-logging-iteration-
details`, seen by a stat-logger plugin) do not do: they hold neither the context of the decoding sequences nor the
prefix of a prefill chunk, and their time starts after `execute_model` returned, which with the executor for one
process is after the forward pass. They also cost a log line per step.

A step's seconds run from the end of the step before, or from its own scheduling if the engine was idle, to the end
of its own `update_from_output`: host work is inside, waiting for requests is not. That holds for asynchronous
scheduling too, where steps overlap. `cpu_seconds` is the processor time that the loop's thread used meanwhile: on a
GPU the host's share, on a CPU with one thread the step without what other programs took.

One JSON object a line (`worker_image/README.md` explains the keys) in `steps-RANK.jsonl`; at half of the size limit
the file becomes `steps-RANK.1.jsonl` and a new one begins, so the newest steps are always there and disk is bounded.
Environment: `PEARL_STEPS_DIR` (empty = off), `PEARL_STEPS_BYTES` (default 8 MiB per rank).
"""

import functools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "PEARL_STEPS_DIR"
BYTES_VARIABLE = "PEARL_STEPS_BYTES"
DEFAULT_BYTES = 8 << 20
_PLANNED_STEPS = 8
"""More than vLLM ever has in flight."""

_log = logging.getLogger(__name__)


class StepLog:
    """A JSON-lines file that never outgrows its limit."""

    def __init__(self, path: Path, limit_bytes: int = DEFAULT_BYTES) -> None:
        """Append to `path`. Raises OSError when its directory cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._half = max(limit_bytes // 2, 1)
        self._file = self._open(os.O_APPEND)
        self._written = os.fstat(self._file).st_size

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; a reader never sees half of it."""
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        if self._written and self._written + len(line) > self._half:
            self._path.replace(self._path.with_suffix(".1.jsonl"))
            os.close(self._file)
            self._file = self._open(os.O_TRUNC)
            self._written = 0
        self._written += os.write(self._file, line)

    def _open(self, how: int) -> int:
        # A bare descriptor: one system call per step, no buffer that a dying engine would lose.
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o644)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


class StepRecorder:
    """Follows one scheduler: `scheduled` after it planned a step, `updated` when the step's results are in."""

    def __init__(
        self,
        write: Callable[[dict[str, Any]], None],
        clocks: Callable[[], tuple[float, float]] = _clocks,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._clocks = clocks
        self._wall = wall
        self._planned: deque[tuple[Any, tuple[float, float], dict[str, Any]]] = deque(maxlen=_PLANNED_STEPS)
        self._last_end: tuple[float, float] | None = None  # None: nothing was left to do when the last step ended

    def scheduled(self, output: Any, began: tuple[float, float]) -> None:
        """`output` was planned; planning began at `began` on the clocks (real time, the thread's processor time)."""
        if output.total_num_scheduled_tokens > 0:
            self._planned.append((output, began, describe(output)))

    def updated(self, scheduler: Any, output: Any) -> None:
        """The step of `output` is over."""
        end = self._clocks()
        running, waiting = scheduler.get_request_counts()
        for position, (planned, began, work) in enumerate(self._planned):
            if planned is output:
                del self._planned[position]
                start = began if self._last_end is None else self._last_end
                seconds, processor = (round(b - a, 7) for a, b in zip(start, end, strict=True))
                state = {"running": running, "waiting": waiting, "kv_usage": round(scheduler.get_kv_cache_usage(), 5)}
                self._write(
                    {"at": round(self._wall(), 4), "seconds": seconds, "cpu_seconds": processor, **work, **state}
                )
                break
        # After a step without tokens the engine sleeps a little, so the next one starts with its own scheduling.
        busy = running + waiting > 0 and output.total_num_scheduled_tokens > 0
        self._last_end = end if busy else None


def describe(output: Any) -> dict[str, Any]:
    """The work in a `SchedulerOutput`.

    A request that computes one token (and its speculated ones) counts as decoding, whatever the token is: the last
    prompt token behind cached or transferred KV costs the same. Everything else is a prefill chunk.
    """
    decodes = context = chunks = chunk_tokens = prefix = pairs2 = 0
    computed = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    cached = sum(computed.values())
    prompts = sum(request.prompt_len for request in output.scheduled_new_reqs)
    known = output.scheduled_cached_reqs
    computed.update(zip(known.req_ids, known.num_computed_tokens, strict=True))
    for request_id, tokens in output.num_scheduled_tokens.items():
        before = computed[request_id]
        if tokens <= 1 + len(output.scheduled_spec_decode_tokens.get(request_id, ())):
            decodes += 1
            context += before + tokens
        else:
            chunks += 1
            chunk_tokens += tokens
            prefix += before
            pairs2 += 2 * tokens * before + tokens * tokens
    return {
        "decodes": decodes,
        "context_tokens": context,
        "prefills": chunks,
        "prefill_tokens": chunk_tokens,
        "prefix_tokens": prefix,
        "prefill_pairs": pairs2 / 2,
        "prompt_tokens": prompts,
        "cached_tokens": cached,
    }


def install() -> None:
    """Entry point of `vllm.general_plugins`; called once or more in every process of the engine."""
    directory = os.environ.get(DIRECTORY_VARIABLE, "")
    if not directory:
        return
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - costly

    if not hasattr(Scheduler.schedule, "__wrapped__"):
        wrap(Scheduler, Path(directory), int(os.environ.get(BYTES_VARIABLE, str(DEFAULT_BYTES))))


def wrap(scheduler_class: Any, directory: Path, limit_bytes: int) -> None:
    """Record the steps of every instance of `scheduler_class`. A recorder that fails stops; the engine goes on."""
    plain_schedule, plain_update = scheduler_class.schedule, scheduler_class.update_from_output

    @functools.wraps(plain_schedule)
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = _clocks()
        output = plain_schedule(self, *args, **kwargs)
        _guarded(self, lambda recorder: recorder.scheduled(output, began))
        return output

    @functools.wraps(plain_update)
    def update_from_output(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_update(self, scheduler_output, *args, **kwargs)
        _guarded(self, lambda recorder: recorder.updated(self, scheduler_output))
        return result

    def _guarded(scheduler: Any, use: Callable[[StepRecorder], None]) -> None:
        try:
            if not hasattr(scheduler, "pearl_recorder"):
                rank = scheduler.vllm_config.parallel_config.data_parallel_rank
                log = StepLog(directory / f"steps-{rank}.jsonl", limit_bytes)
                scheduler.pearl_recorder = StepRecorder(log.write)
            if scheduler.pearl_recorder is not None:
                use(scheduler.pearl_recorder)
        except Exception:  # noqa: BLE001 - the engine's loop must survive whatever a new vLLM changed here
            scheduler.pearl_recorder = None
            _log.exception("step recorder stopped; the engine is not affected")

    scheduler_class.schedule, scheduler_class.update_from_output = schedule, update_from_output

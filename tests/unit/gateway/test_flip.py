"""Changes of roles under load: nobody notices, and the first request in the new role comes at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pearl_api.names import Role

if TYPE_CHECKING:
    from conftest import Bench, FakeEngine

AGENTS = 12
FLIPS = 24
MOST_SECONDS = 0.5
"""From the decision to the first request in the new role, 99th percentile."""
SHAPES = (
    (Role.COLOCATED,) * 4,
    (Role.PREFILL, Role.DECODE, Role.DECODE, Role.DECODE),
    (Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE),
    (Role.DECODE, Role.PREFILL, Role.COLOCATED, Role.COLOCATED),
)


def own_seconds() -> float:
    """The clock less the time in which this thread waited for a core: other processes are no delay of the gateway."""
    account = Path("/proc/self/schedstat")
    waited = int(account.read_text().split()[1]) / 1e9 if account.is_file() else 0.0
    return time.monotonic() - waited


def role_of(body: dict[str, Any]) -> Role | None:
    """The role that a request shows its engine in; None = any that decodes."""
    transfer = body.get("kv_transfer_params") or {}
    if transfer.get("do_remote_decode"):
        return Role.PREFILL
    return Role.DECODE if transfer.get("do_remote_prefill") else None


async def first_in_role(engine: FakeEngine, role: Role, seen: int) -> None:
    """Return when the engine has got a request in its new role, after the `seen` ones before."""
    while True:
        for body in engine.requests[seen:]:
            shown = role_of(body)
            # A decode worker may also get a turn of which it computes the prompt itself.
            if shown is role or (shown is None and role is not Role.PREFILL):
                return
        await asyncio.sleep(0.001)


async def agent(bench: Bench, name: str, stop: asyncio.Event) -> tuple[int, int]:
    """Turn after turn until told to stop; (turns, failures)."""
    turns = failures = number = 0
    while not stop.is_set():
        prompt = [1, 2, 3, *map(ord, f"{name}-{number}")]
        for turn in range(3):
            answer = await bench.generate(prompt, 6, trajectory=f"{name}-{number}", turn=turn)
            turns += 1
            if answer.status_code != 200 or bench.tokens(answer) != bench.continuation(prompt, 6):
                failures += 1
                break
            prompt = [*prompt, *bench.tokens(answer), 5, 6, 7, 8, 9, 10]
        number += 1
    return turns, failures


@pytest.mark.slow  # its limit is a time, which other programs on the machine lengthen
async def test_flips_under_load_fail_nothing_and_reach_the_new_role_within_half_a_second(bench: Bench) -> None:
    engines = [await bench.engine(tokens_per_chunk=2, pause=0.001) for _ in range(4)]
    stop = asyncio.Event()
    agents = [asyncio.create_task(agent(bench, f"t{at}", stop)) for at in range(AGENTS)]
    await bench.until(lambda: all(engine.requests for engine in engines))
    delays: list[float] = []
    roles = list(SHAPES[0])
    for flip in range(FLIPS):
        wanted = SHAPES[(flip + 1) % len(SHAPES)]
        changed = [at for at in range(4) if roles[at] is not wanted[at]]
        seen = [len(engine.requests) for engine in engines]
        decided = own_seconds()
        for at in changed:
            bench.place(engines[at], wanted[at], epoch=flip + 1)
        for at in changed:
            async with asyncio.timeout(10):
                await first_in_role(engines[at], wanted[at], seen[at])
            delays.append(own_seconds() - decided)
        roles = list(wanted)
    stop.set()
    done = await asyncio.gather(*agents)
    assert sum(failures for _, failures in done) == 0
    assert sum(turns for turns, _ in done) > 100
    worst = sorted(delays)[-(len(delays) // 100) - 1]
    assert worst <= MOST_SECONDS, f"p99 of {len(delays)} flips: {worst:.3f} s"
    stats = await bench.stats()
    assert {one["ackedEpoch"] for one in stats["workers"]} <= {FLIPS, FLIPS - 1}
    assert (stats["counters"]["lostTurns"], stats["counters"]["resumes"]) == (0, 0)

"""One loan after the other on one agent, timed as operator and trainer see it; `loan_times` is the program."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import aiohttp

from pearl_api.wire.worker import ReclaimAnswer, WorkerPhase, WorkerState
from pearl_worker.ports import MemoryDevice

_POLL_SECONDS: Final = 0.02
_GENERATING_SECONDS: Final = 1.0
"""From the start of the generations to the reclaim."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One loan; seconds and bytes (summed over the GPUs)."""

    epoch: int
    kind: str
    """How it became ready: `start` or `wake`."""
    end: str
    """How it was given back: `sleep` or `kill`."""
    ready_seconds: float
    """From the grant to the first token that others may ask for."""
    wake_seconds: float | None
    """The engine's part of it: memory, weights, KV."""
    reclaim_seconds: float
    """As the trainer sees it."""
    drain_seconds: float
    sleep_seconds: float
    overhead_seconds: float
    """What is neither the engine's sleep nor its kill."""
    free: bool
    aborted_requests: int | None
    """Generations that were inside and cut short; a kill does not count them."""
    bytes_before: int | None
    bytes_awake: int | None
    bytes_after: int | None


class Agent:
    """The borrower's agent as operator and trainer see it."""

    def __init__(
        self, session: aiohttp.ClientSession, agent_port: int, engine_port: int, tokens: Mapping[str, str]
    ) -> None:
        """`tokens`: of `agent`, `engine` and `loan`."""
        self._session = session
        self._tokens = tokens
        self._agent = f"http://127.0.0.1:{agent_port}"
        self._engine = f"http://127.0.0.1:{engine_port}"

    async def call(self, method: str, path: str, token: str, body: Any = None) -> Any:
        """One call; raises aiohttp.ClientError."""
        headers = {"Authorization": f"Bearer {self._tokens[token]}"}
        async with self._session.request(method, self._agent + path, json=body, headers=headers) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def state(self) -> WorkerState:
        """What the agent tells."""
        return WorkerState.model_validate(await self.call("GET", "/v1/state", "agent"))

    async def until_up(self, seconds: float) -> None:
        """Wait until it answers at all. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    await self.state()
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def until_ready(self, seconds: float) -> WorkerState:
        """Wait for it. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while True:
                state = await self.state()
                if state.phase is WorkerPhase.READY:
                    return state
                await asyncio.sleep(_POLL_SECONDS)

    async def generate(self, seed: int) -> None:
        """A generation that a reclaim will cut short."""
        sampling = {"max_tokens": 100_000, "temperature": 0, "ignore_eos": True}
        body = {"token_ids": [seed % 200 + 1] * 64, "sampling_params": sampling}
        headers = {"Authorization": f"Bearer {self._tokens['engine']}"}
        with contextlib.suppress(aiohttp.ClientError):
            async with self._session.post(self._engine + "/inference/v1/generate", json=body, headers=headers) as reply:
                await reply.read()


class Bench:
    """Runs loans one after the other on one agent."""

    def __init__(self, agent: Agent, device: MemoryDevice, start_seconds: float) -> None:
        self._agent = agent
        self._device = device
        self._start_seconds = start_seconds

    async def cycle(self, epoch: int, requests: int, within_seconds: float) -> Cycle:
        """Grant, wait, let `requests` generate, reclaim."""
        loop = asyncio.get_running_loop()
        before, starts, began = self._used(), (await self._agent.state()).engine_starts, loop.time()
        await self._agent.call("POST", "/v1/loan/grant", "agent", {"epoch": epoch, "ttlSeconds": 3600})
        state = await self._agent.until_ready(self._start_seconds)
        ready = loop.time() - began
        inside = [asyncio.create_task(self._agent.generate(epoch * requests + one)) for one in range(requests)]
        await asyncio.sleep(_GENERATING_SECONDS)
        awake, began = self._used(), loop.time()
        body = {"epoch": epoch, "withinSeconds": within_seconds}
        answer = ReclaimAnswer.model_validate(await self._agent.call("POST", "/v1/loan/reclaim", "loan", body))
        took = loop.time() - began
        await asyncio.gather(*inside)
        killed = (await self._agent.state()).kill_seconds or 0.0
        started = state.engine_starts > starts
        return Cycle(
            epoch=epoch,
            kind="start" if started else "wake",
            end="kill" if answer.killed else "sleep",
            ready_seconds=ready,
            wake_seconds=None if started else state.wake_seconds,
            reclaim_seconds=took,
            drain_seconds=answer.drain_seconds,
            sleep_seconds=answer.sleep_seconds,
            overhead_seconds=took - (killed if answer.killed else answer.sleep_seconds),
            free=answer.free,
            aborted_requests=None if answer.killed else answer.aborted_requests,
            bytes_before=before,
            bytes_awake=awake,
            bytes_after=self._used(),
        )

    def _used(self) -> int | None:
        used = self._device.used_bytes()
        return None if used is None else sum(used)


def summary(cycles: Sequence[Cycle]) -> dict[str, Any]:
    """Median and worst of each figure, by the way a loan began and ended; None where there was none."""
    parts = {
        "start_seconds": [one.ready_seconds for one in cycles if one.kind == "start"],
        "wake_seconds": [one.ready_seconds for one in cycles if one.kind == "wake"],
        "engine_wake_seconds": [one.wake_seconds for one in cycles if one.wake_seconds is not None],
        "sleep_reclaim_seconds": [one.reclaim_seconds for one in cycles if one.end == "sleep"],
        "engine_sleep_seconds": [one.sleep_seconds for one in cycles if one.end == "sleep"],
        "kill_reclaim_seconds": [one.reclaim_seconds for one in cycles if one.end == "kill"],
        "overhead_seconds": [one.overhead_seconds for one in cycles if one.end == "sleep"],
    }
    figures: dict[str, Any] = {
        name: {"count": len(values), "median": median(values), "worst": max(values)} if values else None
        for name, values in parts.items()
    }
    aborted = sum(one.aborted_requests or 0 for one in cycles)
    return figures | {"aborted_requests": aborted, "not_free": sum(not one.free for one in cycles)}

"""One engine and what can be done with it: each method is one step of `decide`, and keeps the facts true.

A step may be cancelled at any await. The facts are changed *before* a call that can leave the engine half-way, so
that a cancelled or failed step never looks finished.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pearl_worker.decide import Facts
from pearl_worker.ports import CanaryError, EngineClient, EngineFaultError, EngineLauncher, EngineProcess
from pearl_worker.settings import OnUpdate, Settings
from pearl_worker.waiting import POLL_SECONDS, before, now, until

_HEALTH_POLL_SECONDS = 0.2
_TERMINATE_SECONDS = 3.0
_PIN_MARGIN_SECONDS = 5.0
_KILL_SECONDS = 2.0
_KILL_MARGIN = 1.25
"""The next kill may last longer than the longest one so far."""


@dataclass(frozen=True, slots=True)
class VacateReport:
    """How a device was given back."""

    aborted_requests: int = 0
    drain_seconds: float = 0.0
    sleep_seconds: float = 0.0
    killed: bool = False


class Engine:
    """Owns the engine process; `facts` is the only thing others read."""

    def __init__(self, settings: Settings, launcher: EngineLauncher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._process: EngineProcess | None = None
        self._launched = asyncio.Event()
        self.facts = Facts()
        self.starts = 0
        self.kills = 0
        self.start_seconds: float | None = None
        self.load_seconds: float | None = None
        self.wake_seconds: float | None = None
        self.kill_seconds: float | None = None
        """Longest kill seen."""

    @property
    def pid(self) -> int | None:
        """Of the engine's leader; None = no engine."""
        return self._process.pid if self._process else None

    @property
    def at_rest(self) -> bool:
        """It sleeps and nothing wakes it, or there is none: it takes no memory any more."""
        return (self.facts.asleep and not self.facts.half_awake) or not self.facts.running

    @property
    def _kill_reserve_seconds(self) -> float:
        """What a reclaim keeps for a kill."""
        return max(_KILL_SECONDS, _KILL_MARGIN * (self.kill_seconds or 0.0))

    @property
    def _client(self) -> EngineClient:
        if self._process is None:
            raise EngineFaultError("there is no engine")
        return self._process.client

    def _set(self, **changes: object) -> None:
        self.facts = replace(self.facts, **changes)  # type: ignore[arg-type]

    async def exited(self) -> int:
        """Until the engine, present or next, ended by itself; its exit code."""
        while self._process is None:
            await self._launched.wait()
        return await self._process.wait()

    async def healthy(self) -> bool:
        """Whether the engine answers."""
        return await self._client.healthy()

    async def start(self) -> None:
        """Launch and wait until it answers; version 0 is loaded then."""
        began = now()
        self.starts += 1
        self.facts = Facts(running=True, ever_started=True)
        self._process = await self._launcher.launch()
        self._launched.set()
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                await until(self._client.healthy, _HEALTH_POLL_SECONDS)
                await self._client.prepare_weight_updates()
                await self._client.label_weights(0)
        except TimeoutError:
            raise EngineFaultError(f"the engine was not up after {self._settings.start_seconds:g} s") from None
        self.start_seconds = now() - began
        self._set(loaded=0)

    def accept(self) -> None:
        """The loaded version is the wanted one."""
        self._set(current=True)

    async def load(self, files: Sequence[Path], version: int) -> None:
        """Replace the weights; requests inside fare as `on_update` says."""
        began = now()
        policy = self._settings.on_update
        await self._close()
        if policy is OnUpdate.FINISH_TURN:
            await self._wait_until_empty(self._settings.drain_seconds)
        if policy is OnUpdate.KEEP_KV:
            await self._wait_for_pins()
            await self._client.pause("keep")
        else:
            await self._quiesce()
            await self._client.pause("abort")
        await self._apply(files, version)
        if policy is not OnUpdate.KEEP_KV and not await self._client.reset_prefix_cache():
            raise EngineFaultError("the prefix cache of the old weights could not be dropped")
        await self._client.resume()
        self.load_seconds = now() - began
        self.accept()

    async def _apply(self, files: Sequence[Path], version: int) -> None:
        # From the first call to the last the model is in pieces: it answers /health, and dies of a request.
        self._set(loaded=None, proven=False, current=False)
        await self._client.start_weight_update()
        await self._client.load_weight_files(files)
        await self._client.finish_weight_update(version)
        self._set(loaded=version)

    async def prove(self) -> None:
        """Serve a few tokens, under the version that is believed to be loaded."""
        version = await self._client.canary()
        if version != str(self.facts.loaded):
            raise CanaryError(f"the engine serves version {version!r} instead of {self.facts.loaded}")
        self._set(proven=True, served=True)

    def distrust(self) -> None:
        """What is loaded computes nonsense."""
        self._set(loaded=None, current=False, proven=False)

    async def open(self) -> None:
        """Let work in."""
        self._set(drained=False)
        await self._client.gate(open_=True, version=self.facts.loaded)
        self._set(gate_open=True)

    async def drain(self, seconds: float) -> None:
        """Let nothing in, wait for what is inside; after `seconds` abort it."""
        await self._close()
        await self._wait_until_empty(seconds)
        await self._abort_until_empty()
        self._set(drained=True)

    async def sleep(self, drain_seconds: float) -> None:
        """Drain, wait for pinned KV, free the device."""
        await self.drain(drain_seconds)
        await self._quiesce()
        await self._sleep()

    async def wake(self, files: Sequence[Path] | None, version: int) -> None:
        """Take the device back. `files` None = the weights of `version` survived the sleep."""
        began = now()
        self._set(half_awake=True, vacated=False)
        if files is None:
            await self._client.wake()
        else:
            await self._client.wake("weights")
            await self._apply(files, version)
            await self._client.wake("kv_cache")
            if not await self._client.reset_prefix_cache():
                raise EngineFaultError("the prefix cache was not empty after waking")
        self._set(asleep=False, half_awake=False)
        self.wake_seconds = now() - began
        self.accept()

    async def vacate(self, hard: Callable[[], float], device_is_free: Callable[[], bool]) -> VacateReport:
        """Give the device back before `hard()` (loop time; it may move closer): put to sleep, or kill.

        The soft deadline leaves the time that a kill takes. Returns just before `hard()` even if memory is not back.
        """
        began = now()
        report = VacateReport()
        if self.facts.loaded is not None and not self.facts.asleep:  # one that is still starting cannot sleep
            with contextlib.suppress(EngineFaultError, TimeoutError):
                report = await before(lambda: hard() - self._kill_reserve_seconds, self._doze(began, device_is_free))
        if not self.at_rest or not device_is_free():
            await self.kill()
            report = replace(report, killed=True, drain_seconds=report.drain_seconds or now() - began)
        await until(lambda: device_is_free() or now() >= hard() - 2 * POLL_SECONDS)
        self._set(vacated=self.facts.asleep)
        return report

    def doubt(self) -> None:
        """The device is in use although it was vacated: vacate it again."""
        self._set(vacated=False)

    async def _doze(self, began: float, device_is_free: Callable[[], bool]) -> VacateReport:
        await self._close()
        aborted = await self._quiesce()
        drained = now()
        await self._sleep()
        await until(device_is_free)
        return VacateReport(aborted, drained - began, now() - drained)

    async def stop(self, drain_seconds: float) -> None:
        """Drain and end; what does not end by itself is killed."""
        if self.facts.gate_open:
            with contextlib.suppress(EngineFaultError):
                await self.drain(drain_seconds)
                await self._quiesce()
        if self._process:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TERMINATE_SECONDS):
                    await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL whatever is left; afterwards there is no engine."""
        began = now()
        # Nobody may count on it any more, but it is there until its last process is gone.
        self.facts = Facts(running=self.facts.running, ever_started=self.facts.ever_started)
        if self._process is not None:
            await self._process.kill()
            self._process = None
            self._launched.clear()
            self.kills += 1
            self.kill_seconds = max(self.kill_seconds or 0.0, now() - began)
        self.facts = Facts(ever_started=self.facts.ever_started)

    async def _close(self) -> None:
        self._set(gate_open=False)
        await self._client.gate(open_=False)

    async def _sleep(self) -> None:
        level = self._settings.sleep_level
        # Level 2 discards the weights.
        self._set(proven=False, current=False, loaded=self.facts.loaded if level == 1 else None)
        await self._client.sleep(level)
        self._set(asleep=True, vacated=False)

    async def _wait_until_empty(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until(self._is_empty)

    async def _is_empty(self) -> bool:
        return (await self._client.gate()).in_flight == 0

    async def _abort_until_empty(self) -> int:
        # Repeated, because a request that passed the gate just before it closed may reach the engine just after.
        aborted = 0
        while not await self._is_empty():
            aborted += await self._client.abort_all()
            await asyncio.sleep(POLL_SECONDS)
        return aborted

    async def _quiesce(self) -> int:
        """Abort what is inside and wait until no KV is held, so that `pause` cannot block on a pin."""
        try:
            async with asyncio.timeout(self._settings.lease_seconds + _PIN_MARGIN_SECONDS):
                aborted = await self._abort_until_empty()
                await until(self._client.reset_prefix_cache)
                return aborted
        except TimeoutError:
            raise EngineFaultError("KV stayed pinned longer than its lease") from None

    async def _wait_for_pins(self) -> None:
        """Until no KV is pinned and nothing inside is going to pin any."""
        while True:
            gate = await self._client.gate()
            if not gate.pinning and not gate.pinned_seconds:
                return
            await asyncio.sleep(POLL_SECONDS if gate.pinning else gate.pinned_seconds)

"""The agent's loop: keeps the engine as wished, one step of `decide` at a time.

Inputs (`set_activity`, `grant`, `reclaim`, `stop`, ... and the manifest poll) only change wishes and wake the loop.
A step that lost its purpose is cancelled; a step that failed is judged at the one place below, `_judge`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl_api.names import Activity
from pearl_api.wire.worker import LoanState, ReclaimAnswer, WorkerPhase, WorkerState
from pearl_worker.decide import Step, Wish, must_cut, next_step, phase
from pearl_worker.engine import Engine, VacateReport
from pearl_worker.loan import Loan
from pearl_worker.ports import EngineFaultError, WeightsError, WeightSource
from pearl_worker.settings import Settings

if TYPE_CHECKING:
    from pearl_api.wire.weights import WeightsManifest

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_UNHEALTHY_SECONDS = 30.0
_BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_LOAD_RETRY_SECONDS = 2.0
_ENDING = (Step.VACATE, Step.RESTART, Step.STOP)
"""Steps that cope by themselves with an engine that ends."""
_LOAD_TRIES = 2
"""A version that breaks the engine is tried again once; then it is out until a newer one is published."""


class Worker:
    """Everything one worker pod does. `loan` is None unless the pod is a borrower."""

    def __init__(self, settings: Settings, engine: Engine, source: WeightSource, loan: Loan | None) -> None:
        self._settings = settings
        self.engine = engine
        self._source = source
        self.loan = loan
        self._activity = Activity.ACTIVE
        self._drain_by = 0.0
        self._stop = False
        self._restart = False
        self._running = Step.REST
        self._changed = asyncio.Event()
        self._poke = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._report = VacateReport()
        self._manifest: WeightsManifest | None = None
        self._manifest_known = False
        self._load_after = 0.0
        self._load_failures: dict[int, int] = {}
        self._crashes = 0
        self._start_after = 0.0
        self._message = ""

    # -- inputs ---------------------------------------------------------------------------------------------

    def set_activity(self, activity: Activity, deadline_seconds: float) -> None:
        """What the operator wants of this worker; requests inside are aborted after the deadline."""
        if activity is not self._activity:
            self._drain_by = _now() + deadline_seconds
        self._activity = activity
        self._changed.set()

    def poke_weights(self) -> None:
        """Look at the manifest now."""
        self._poke.set()

    def request_restart(self, why: str) -> None:
        """The gateway saw what only a restart mends."""
        self._restart = self.engine.facts.running
        self._message = why
        self._changed.set()

    def stop(self) -> None:
        """Drain, end the engine, leave `run`."""
        self._stop = True
        self._changed.set()

    def loan_changed(self) -> None:
        """The loan's fence moved."""
        self._changed.set()

    async def reclaim(self, epoch: int, within_seconds: float) -> ReclaimAnswer:
        """Fence `epoch` and give the device back; answers at the deadline at the latest.

        Raises:
            FencedError: a newer epoch was granted.
        """
        loan = self._loan()
        began = _now()
        if (answer := loan.answered(epoch)) is not None:
            return answer
        self._report = VacateReport()
        loan.reclaim(epoch, began + within_seconds)
        self._at_rest.clear()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(began + within_seconds):
                await self._at_rest.wait()
        return loan.answer(epoch, self._report, self._is_free(), _now() - began)

    @property
    def steps_directory(self) -> Path | None:
        """Where the engine writes down its steps; None = it does not."""
        return self._settings.steps_directory

    @property
    def reclaim_seconds(self) -> float:
        """How fast an expired grant is vacated."""
        return self._settings.reclaim_seconds

    # -- outputs --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Serves tokens under acceptable weights."""
        return self.state().phase is WorkerPhase.READY

    def state(self) -> WorkerState:
        """A snapshot for readers outside."""
        facts, wish = self.engine.facts, self._wish()
        return WorkerState(
            pod_uid=self._settings.pod_uid,
            phase=phase(facts, wish, self._running, weights_failed=self._weights_failed()),
            activity=self._activity,
            engine_starts=self.engine.starts,
            engine_pid=self.engine.pid,
            weight_version=facts.loaded,
            wanted_version=self._wanted(),
            message=self._message,
            start_seconds=self.engine.start_seconds,
            weight_load_seconds=self.engine.load_seconds,
            loan=self.loan_state() if self.loan else None,
        )

    def loan_state(self) -> LoanState:
        """The loan, for SDK and operator."""
        return self._loan().state(_now(), memory_free=self._is_free())

    # -- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop` was asked for and the engine is gone."""
        async with asyncio.TaskGroup() as background:
            poll = background.create_task(self._poll_manifest())
            watch = background.create_task(self._watch_health())
            await self._loop()
            poll.cancel()
            watch.cancel()

    async def _loop(self) -> None:
        while True:
            self._changed.clear()
            if self.loan:
                self.loan.expire(_now(), _now() + self._settings.reclaim_seconds)
            self._accept_if_current()
            wish = self._wish()
            step = next_step(self.engine.facts, wish)
            if step is not Step.REST:
                await self._perform(step)
                continue
            if wish.stop:
                return
            if not wish.may_run:
                self._at_rest.set()
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        exited = asyncio.ensure_future(self.engine.exited())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([exited, changed], timeout=self._next_look(), return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                await self._engine_ended(exited.result())
        finally:
            await _cancel(changed)
            await _cancel(exited)

    def _next_look(self) -> float:
        """Seconds until time alone may change the wish."""
        remaining = self.loan.state(_now(), memory_free=False).ttl_seconds if self.loan else None
        waits = [self._start_after - _now(), self._load_after - _now(), remaining or 0.0]
        return min([_POLL_SECONDS, *(wait for wait in waits if wait > 0)])

    async def _perform(self, step: Step) -> None:
        _log.info("step %s", step, extra={"step": step.value, "facts": str(self.engine.facts)})
        self._running = step
        work = asyncio.ensure_future(self._work(step))
        exited = asyncio.ensure_future(_never() if step in _ENDING else self.engine.exited())
        try:
            while not work.done() and not exited.done():
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait(
                    [work, exited, changed], timeout=self._next_look(), return_when=asyncio.FIRST_COMPLETED
                )
                await _cancel(changed)
                self._changed.clear()
                if self.loan:
                    self.loan.expire(_now(), _now() + self._settings.reclaim_seconds)
                if must_cut(step, self._wish()):
                    break
            await self._judge(step, work, exited)
        finally:
            await _cancel(work)
            await _cancel(exited)
            self._running = Step.REST

    async def _work(self, step: Step) -> None:
        work: dict[Step, Callable[[], Awaitable[None]]] = {
            Step.START: self.engine.start,
            Step.LOAD: self._load,
            Step.WAKE: self._wake,
            Step.PROVE: self._prove,
            Step.OPEN: self._open,
            Step.DRAIN: lambda: self.engine.drain(self._drain_by - _now()),
            Step.SLEEP: lambda: self.engine.sleep(self._drain_by - _now()),
            Step.VACATE: self._vacate,
            Step.RESTART: self._kill,
            Step.STOP: lambda: self.engine.stop(self._settings.drain_seconds),
        }
        await work[step]()

    async def _load(self) -> None:
        await self.engine.load(*await self._weights())

    async def _wake(self) -> None:
        if self.engine.facts.loaded == self._wanted():
            await self.engine.wake(None, self._version())
        else:
            await self.engine.wake(*await self._weights())

    async def _prove(self) -> None:
        await self.engine.prove()
        self._message = ""

    async def _open(self) -> None:
        await self.engine.open()
        self._crashes = 0

    async def _vacate(self) -> None:
        loan = self._loan()
        self._report = await self.engine.vacate(lambda: loan.vacate_by, self._is_free)

    async def _kill(self) -> None:
        await self.engine.kill()
        self._restart = False

    async def _judge(self, step: Step, work: "asyncio.Future[None]", exited: "asyncio.Future[int]") -> None:
        """What a step's end means. Bugs (any other exception) end the agent, and with it the container."""
        if exited.done():
            await _cancel(work)
            await self._engine_ended(exited.result())
            return
        if not work.done():  # cut
            return
        try:
            work.result()
        except WeightsError as error:
            self._complain(f"weights: {error}")
            self._load_after = _now() + _LOAD_RETRY_SECONDS
        except EngineFaultError as error:
            self._complain(f"{step}: {error}")
            await self._after_fault(step)

    async def _after_fault(self, step: Step) -> None:
        if step in (Step.LOAD, Step.WAKE) and self.engine.facts.loaded is None:
            version = self._version()
            self._load_failures[version] = self._load_failures.get(version, 0) + 1
            if self._loadable():  # a whole good update mends a half-loaded engine
                return
        await self._restart_later()

    async def _engine_ended(self, code: int) -> None:
        self._complain(f"the engine ended with exit code {code}")
        await self._restart_later()

    async def _restart_later(self) -> None:
        await self._kill()
        delay = _BACKOFF_SECONDS[min(self._crashes, len(_BACKOFF_SECONDS) - 1)]
        self._crashes += 1
        self._start_after = _now() + delay

    def _complain(self, message: str) -> None:
        self._message = message
        _log.warning("%s", message)

    # -- helpers --------------------------------------------------------------------------------------------

    def _wish(self) -> Wish:
        return Wish(
            stop=self._stop,
            may_run=self.loan is None or self.loan.granted,
            activity=self._activity,
            wanted=self._wanted(),
            loadable=self._loadable() and _now() >= self._load_after,
            restart=self._restart,
            may_start=_now() >= self._start_after,
        )

    def _wanted(self) -> int | None:
        return self._version() if self._manifest_known else None

    def _version(self) -> int:
        return self._manifest.version if self._manifest else 0

    def _loadable(self) -> bool:
        return self._load_failures.get(self._version(), 0) < _LOAD_TRIES

    def _weights_failed(self) -> bool:
        return self.engine.facts.running and (not self._loadable() or _now() < self._load_after)

    async def _weights(self) -> tuple[Sequence[Path], int]:
        """Files and version of one manifest: a newer one may come while they are fetched."""
        manifest = self._manifest
        if manifest is None:
            return await self._source.base(), 0
        return await self._source.fetch(manifest), manifest.version

    def _is_free(self) -> bool:
        facts = self.engine.facts
        return self._loan().memory_free() and (facts.asleep or not facts.running)

    def _loan(self) -> Loan:
        if self.loan is None:
            raise LookupError("this worker is not borrowed")
        return self.loan

    async def _poll_manifest(self) -> None:
        while True:
            try:
                manifest = await self._source.manifest()
            except WeightsError as error:
                if not self._manifest_known:
                    self._message = f"weights: {error}"
            else:
                if manifest is not None and manifest != self._manifest:
                    self._manifest = manifest
                    self._load_after = 0.0
                    self._load_failures.pop(manifest.version, None)
                    self._changed.set()
                if not self._manifest_known:
                    self._manifest_known = True
                    self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._poke.wait()
            self._poke.clear()

    def _accept_if_current(self) -> None:
        facts = self.engine.facts
        if facts.running and not facts.asleep and facts.loaded == self._wanted() is not None and not facts.current:
            self.engine.accept()

    async def _watch_health(self) -> None:
        """Kill an engine that lives but no longer answers."""
        last_good = _now()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            facts = self.engine.facts
            if not facts.proven or facts.asleep or await self.engine.healthy():
                last_good = _now()
            elif _now() - last_good > _UNHEALTHY_SECONDS:
                self.request_restart(f"the engine did not answer for {_UNHEALTHY_SECONDS:g} s")


async def _never() -> int:
    never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return await never


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _cancel(future: "asyncio.Future[Any]") -> None:
    # Not by awaiting it: that would also swallow a cancellation of the caller.
    future.cancel()
    await asyncio.wait([future])
    error = None if future.cancelled() else future.exception()
    if error and not isinstance(error, EngineFaultError | WeightsError):
        raise error

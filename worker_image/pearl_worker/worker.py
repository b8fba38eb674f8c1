"""The agent's loop: keeps the engine as wished, one step of `decide` at a time.

Inputs (`set_activity`, `reclaim`, `stop`, ... and the manifest that `wanted` follows) only change wishes and wake the
loop. A step that lost its purpose is cancelled; a step that failed is judged at the one place below, `_judge`.
"""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_api.names import Activity
from pearl_api.wire.worker import LoanState, ReclaimAnswer, WorkerPhase, WorkerState
from pearl_worker.decide import Step, Wish, must_cut, next_step, phase
from pearl_worker.engine import Engine, VacateReport
from pearl_worker.loan import Loan
from pearl_worker.ports import CanaryError, EngineFaultError, NoBaseError, WeightsError, WeightSource
from pearl_worker.settings import Settings
from pearl_worker.waiting import cancel, never, now
from pearl_worker.wanted import WantedWeights

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_UNHEALTHY_SECONDS = 30.0
_BACKOFF_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_ENDING = (Step.VACATE, Step.RESTART, Step.STOP)
"""Steps that cope by themselves with an engine that ends."""


class Worker:
    """Everything one worker pod does. `loan` is None unless the pod is a borrower."""

    def __init__(self, settings: Settings, engine: Engine, source: WeightSource, loan: Loan | None) -> None:
        self._settings = settings
        self.engine = engine
        self.loan = loan
        self._activity = Activity.ACTIVE
        self._drain_by = 0.0
        self._stop = False
        self._restart = False
        self._running = Step.REST
        self._changed = asyncio.Event()
        self._at_rest = asyncio.Event()
        self._report = VacateReport()
        self._weights = WantedWeights(source, self._changed.set)
        self._crashes = 0
        self._start_after = 0.0
        self._message = ""

    # -- inputs ---------------------------------------------------------------------------------------------

    def set_activity(self, activity: Activity, deadline_seconds: float) -> None:
        """What the operator wants of this worker; requests inside are aborted after the deadline."""
        if activity is not self._activity:
            self._drain_by = now() + deadline_seconds
        self._activity = activity
        self._changed.set()

    def poke_weights(self) -> None:
        """Look at the manifest now."""
        self._weights.poke()

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
        began = now()
        if (answer := loan.answered(epoch)) is not None:
            return answer
        self._report = VacateReport()
        loan.reclaim(epoch, began + within_seconds)
        if not self._is_free():
            self.engine.doubt()
        self._at_rest.clear()
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(began + within_seconds):
                await self._at_rest.wait()
        free, ended = self._is_free(), self.engine.at_rest
        return loan.answer(epoch, self._report, free=free, ended=ended, total_seconds=now() - began)

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
        facts, weights = self.engine.facts, self._weights
        failed = facts.running and (weights.given_up or now() < weights.try_after)
        problem = f"weights: {weights.problem}" if weights.problem else ""
        return WorkerState(
            pod_uid=self._settings.pod_uid,
            phase=phase(facts, self._wish(), self._running, weights_failed=failed),
            activity=self._activity,
            engine_starts=self.engine.starts,
            engine_pid=self.engine.pid,
            weight_version=facts.loaded,
            wanted_version=weights.version,
            message=self._message or problem,
            start_seconds=self.engine.start_seconds,
            weight_load_seconds=self.engine.load_seconds,
            wake_seconds=self.engine.wake_seconds,
            kill_seconds=self.engine.kill_seconds,
            loan=self.loan_state() if self.loan else None,
        )

    def loan_state(self) -> LoanState:
        """The loan, for SDK and operator."""
        return self._loan().state(now(), memory_free=self._is_free())

    # -- the loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop` was asked for and the engine is gone."""
        async with asyncio.TaskGroup() as background:
            follow = background.create_task(self._weights.follow())
            watch = background.create_task(self._watch_health())
            await self._loop()
            follow.cancel()
            watch.cancel()

    async def _loop(self) -> None:
        while True:
            self._changed.clear()
            self._expire_grant()
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
            await cancel(changed)
            await cancel(exited)

    def _next_look(self) -> float:
        """Seconds until time alone may change the wish."""
        remaining = self.loan.ttl_seconds(now()) if self.loan else None
        waits = [self._start_after - now(), self._weights.try_after - now(), remaining or 0.0]
        return min([_LOOK_SECONDS, *(wait for wait in waits if wait > 0)])

    async def _perform(self, step: Step) -> None:
        _log.info("step %s", step, extra={"step": step.value, "facts": str(self.engine.facts)})
        self._running = step
        work = asyncio.ensure_future(self._work(step))
        exited = asyncio.ensure_future(never() if step in _ENDING else self.engine.exited())
        try:
            while not work.done() and not exited.done():
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait(
                    [work, exited, changed], timeout=self._next_look(), return_when=asyncio.FIRST_COMPLETED
                )
                await cancel(changed)
                self._changed.clear()
                self._expire_grant()
                if must_cut(step, self._wish()):
                    break
            await self._judge(step, work, exited)
        finally:
            await cancel(work)
            await cancel(exited)
            self._running = Step.REST

    # -- steps ----------------------------------------------------------------------------------------------

    async def _work(self, step: Step) -> None:
        work: dict[Step, Callable[[], Awaitable[None]]] = {
            Step.START: self.engine.start,
            Step.LOAD: self._load,
            Step.WAKE: self._wake,
            Step.PROVE: self._prove,
            Step.OPEN: self._open,
            Step.DRAIN: lambda: self.engine.drain(self._drain_by - now()),
            Step.SLEEP: lambda: self.engine.sleep(self._drain_by - now()),
            Step.VACATE: self._vacate,
            Step.RESTART: self._kill,
            Step.STOP: lambda: self.engine.stop(self._stop_seconds()),
        }
        await work[step]()

    async def _load(self) -> None:
        await self.engine.load(*await self._weights.files())

    async def _wake(self) -> None:
        loaded = self.engine.facts.loaded
        if loaded is not None and loaded == self._weights.version:
            await self.engine.wake(None, loaded)
        else:
            await self.engine.wake(*await self._weights.files())

    async def _prove(self) -> None:
        await self.engine.prove()
        self._message = ""

    async def _open(self) -> None:
        await self.engine.open()
        self._crashes = 0
        if self.loan and self.loan.granted:
            self.loan.awake()

    async def _vacate(self) -> None:
        loan = self._loan()
        self._report = await self.engine.vacate(lambda: loan.vacate_by, self._is_free)
        if self._is_free() and not loan.granted:
            loan.given_back(self._report, asleep=self.engine.facts.asleep)

    async def _kill(self) -> None:
        await self.engine.kill()
        self._restart = False

    # -- what a step's end means ----------------------------------------------------------------------------

    async def _judge(self, step: Step, work: "asyncio.Future[None]", exited: "asyncio.Future[int]") -> None:
        """Bugs (any other exception) end the agent, and with it the container."""
        if exited.done():
            await cancel(work)
            await self._engine_ended(exited.result())
            return
        if not work.done():  # cut
            return
        try:
            work.result()
        except NoBaseError as error:
            _log.info("a new engine is needed: %s", error)
            await self._kill()
        except WeightsError as error:
            self._complain(f"weights: {error}")
            self._weights.check_failed()
        except EngineFaultError as error:
            self._complain(f"{step}: {error}")
            await self._after_fault(step, error)

    async def _after_fault(self, step: Step, error: EngineFaultError) -> None:
        if isinstance(error, CanaryError):
            self.engine.distrust()
        if self.engine.facts.loaded is None and step in (Step.LOAD, Step.PROVE):
            self._weights.load_failed()
            if not self._weights.given_up:
                return  # a whole good update mends a half-loaded engine
        await self._restart_later()

    async def _engine_ended(self, code: int) -> None:
        self._complain(f"the engine ended with exit code {code}")
        await self._restart_later()

    async def _restart_later(self) -> None:
        await self._kill()
        delay = _BACKOFF_SECONDS[min(self._crashes, len(_BACKOFF_SECONDS) - 1)]
        self._crashes += 1
        self._start_after = now() + delay

    def _complain(self, message: str) -> None:
        self._message = message
        _log.warning("%s", message)

    # -- helpers --------------------------------------------------------------------------------------------

    def _wish(self) -> Wish:
        return Wish(
            stop=self._stop,
            may_run=self.loan is None or self.loan.granted,
            activity=self._activity,
            wanted=self._weights.version,
            loadable=self._weights.loadable,
            restart=self._restart,
            may_start=now() >= self._start_after,
        )

    def _stop_seconds(self) -> float:
        """To drain before the end; what is lent is not held longer than its lease."""
        seconds = self._settings.drain_seconds
        return min(seconds, self.loan.ttl_seconds(now()) or 0.0) if self.loan else seconds

    def _expire_grant(self) -> None:
        if self.loan:
            self.loan.expire(now(), now() + self._settings.reclaim_seconds)

    def _is_free(self) -> bool:
        return self.engine.at_rest and self._loan().memory_free()

    def _loan(self) -> Loan:
        if self.loan is None:
            raise LookupError("this worker is not borrowed")
        return self.loan

    def _accept_if_current(self) -> None:
        facts = self.engine.facts
        current = facts.loaded is not None and facts.loaded == self._weights.version
        if facts.running and not facts.asleep and current and not facts.current:
            self.engine.accept()

    async def _watch_health(self) -> None:
        """Kill an engine that lives but no longer answers."""
        last_good = now()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            facts = self.engine.facts
            if not facts.proven or facts.asleep or await self.engine.healthy():
                last_good = now()
            elif now() - last_good > _UNHEALTHY_SECONDS:
                self.request_restart(f"the engine did not answer for {_UNHEALTHY_SECONDS:g} s")

"""The loop of one PearlRollout: observe → plan → validate → act → report, woken by events or its own clock.

It keeps nothing that could not be found again: the target lies in the status, everything else is observed. What it
remembers (who was ready once, the planner's averages since the last status write) only makes it smoother.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from pearl_api import names
from pearl_operator.errors import Conflict, OperatorError, Refused, RetryAfter
from pearl_operator.look import Look, Refusals, nobody_asks
from pearl_operator.observe import Facts, snapshot_of
from pearl_operator.policy import budget_of, engine_choice, policy_of
from pearl_operator.remakes import Remakes
from pearl_operator.report import status_after_bug, status_of, status_unreadable
from pearl_operator.status_codec import target_from_status
from pearl_planner.fleet.steps import finished
from pearl_planner.plan import plan
from pearl_planner.serialize import memory_from_text
from pearl_planner.types import AnswerLoan, CreateWorker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.rollout import PearlRolloutSpec, PearlRolloutStatus
    from pearl_operator.act import Actor
    from pearl_operator.children import Children
    from pearl_operator.facts import PodFact, RolloutFact
    from pearl_operator.index import Index
    from pearl_operator.metrics import Metrics
    from pearl_operator.policy import EngineChoice
    from pearl_operator.ports import Clock, Resolver, RolloutKey
    from pearl_operator.preflight import Preflight
    from pearl_operator.reaction import Reaction
    from pearl_operator.report import Reporter
    from pearl_operator.ring import Ring
    from pearl_operator.settings import Settings
    from pearl_operator.sources import Samples, Sources
    from pearl_planner.types import Action, Memory, Plan, Snapshot, Target

log = logging.getLogger("pearl.loop")

_LONG_SECONDS: Final = 60.0
_GATHER_SECONDS: Final = 0.02
_APART_SECONDS_PER_WORKER: Final = 0.005
_MOST_APART_SECONDS: Final = 0.5
_AFTER_ACTION_SECONDS: Final = 0.3
"""When the gateway has probably acknowledged."""
_NOBODY_ASKS_SECONDS: Final = 10.0
"""Between two looks at a fleet without work; what happens to pods, nodes and loans wakes its loop anyway."""
_AT_ONCE: Final = 8
_FIRST_BACK_OFF: Final = 0.5
_LAST_BACK_OFF: Final = 30.0
_LAST_CONFLICT_SECONDS: Final = 2.0
"""A conflict is what a busy fleet has all the time: the next look knows better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a loop works with; made per rollout by `core`."""

    index: Index
    sources: Sources
    children: Children
    preflight: Preflight
    actor: Actor
    reporter: Reporter
    ring: Ring
    resolver: Resolver
    clock: Clock
    settings: Settings
    metrics: Metrics
    reaction: Reaction


@dataclass(slots=True)
class _Past:
    """What a loop remembers of one rollout; losing it costs smoothness only."""

    uid: str
    memory: Memory | None = None
    """Of the last look whose decision was written."""
    served: frozenset[str] = frozenset()
    """UIDs of pods that were Ready at some time."""
    abandoned: str | None = None
    capacity_refusal: str | None = None
    remakes: Remakes = field(default_factory=Remakes)
    engine: tuple[object, EngineChoice] | None = None
    """By what it was chosen for; tables are files."""


@dataclass(slots=True)
class RolloutLoop:
    """One rollout's loop."""

    key: RolloutKey
    parts: Parts
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    turned_at: float = field(default=float("inf"), init=False)
    """Monotonic time at which the last turn ended, well or badly; infinite before the first starts."""
    _past: _Past = field(default_factory=lambda: _Past(uid=""), init=False)
    _failures: int = field(default=0, init=False)
    _workers: int = field(default=0, init=False)
    """That the last look saw."""

    def wake(self) -> None:
        """Something about the rollout changed."""
        self.parts.reaction.woken()
        self.woken.set()

    async def run(self) -> None:
        """Looks until the rollout is gone."""
        try:
            while self.key in self.parts.index.rollouts:
                await self._turn()
        finally:
            self.parts.sources.close()

    async def _turn(self) -> None:
        """A look and the wait after it. The only place where every exception is caught."""
        self.turned_at = self.parts.clock.monotonic()
        self.woken.clear()
        self.parts.reaction.begins()
        try:
            pause = await self.look()
            self._failures = 0
            self.parts.reaction.ends()
        except Conflict as error:
            pause = min(self._back_off(error, at_least=error.seconds), _LAST_CONFLICT_SECONDS)
        except RetryAfter as error:
            pause = self._back_off(error, at_least=error.seconds)
        except OperatorError as error:
            pause = self._back_off(error)
        except Exception as error:
            log.exception("bug in the loop", extra={"rollout": str(self.key)})
            pause = self._back_off(error)
            await self._tell_bug(error)
        await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        """Until something happens, or for this long; a burst of events makes one look."""
        try:
            async with asyncio.timeout(seconds):
                await self.woken.wait()
        except TimeoutError:
            return
        await self.parts.clock.sleep(self._gather_seconds())

    def _gather_seconds(self) -> float:
        """A look costs as much as the fleet is large: at a large one that changes all the time it is rarer."""
        apart = min(self._workers * _APART_SECONDS_PER_WORKER, _MOST_APART_SECONDS)
        return max(_GATHER_SECONDS, apart - (self.parts.clock.monotonic() - self.turned_at))

    def _back_off(self, error: Exception, *, at_least: float = 0.0) -> float:
        """Grows with repeated failure; events still wake the loop."""
        self._failures += 1
        pause = min(_FIRST_BACK_OFF * 2 ** min(self._failures - 1, 8), _LAST_BACK_OFF)
        self.parts.metrics.look_failed(self.key, error)
        log.warning("look failed", extra={"rollout": str(self.key), "error": str(error), "kind": type(error).__name__})
        return max(at_least, pause if self._failures > 1 else at_least or pause)

    async def _tell_bug(self, error: Exception) -> None:
        """Degraded, as far as it can be written."""
        rollout = self.parts.index.rollouts.get(self.key)
        if rollout is None or rollout.deleting:
            return
        try:
            await self._write(rollout, status_after_bug(rollout, error, self.parts.clock.now()))
        except OperatorError as refusal:
            log.warning("bug not reported", extra={"rollout": str(self.key), "error": str(refusal)})

    async def _write(self, rollout: RolloutFact, status: PearlRolloutStatus) -> None:
        written = await self.parts.reporter.write(rollout, status)
        self.parts.metrics.reported(self.key, written.status.conditions)

    async def look(self) -> float:
        """One look; the seconds until the next one is due.

        Raises:
            OperatorError: A port failed; everything is recomputed at the next look.
        """
        rollout = self.parts.index.rollouts.get(self.key)
        if rollout is None or rollout.deleting:
            return _LONG_SECONDS  # the garbage collector removes what is owned; nothing is created any more
        if rollout.spec is None:
            await self._write(rollout, status_unreadable(rollout, self.parts.clock.now()))
            return _LONG_SECONDS
        if self._past.uid != rollout.uid:
            self._past = _Past(rollout.uid)
        started = self.parts.clock.monotonic()
        look = await self._decide(rollout, rollout.spec)
        self._workers = len(look.pods)
        self.parts.ring.append(self.key, look.snapshot, look.policy, look.plan)
        await self._write(rollout, status_of(look, rollout.status))  # the target is written before the first action
        self._past.memory = look.plan.memory
        self.parts.actor.loans.decided(look)
        acted = False
        try:
            acted = await self._act(look)
        finally:
            await self.parts.reporter.tell(look)
        self.parts.metrics.looked(look, self.parts.clock.monotonic() - started)
        if acted:
            return min(look.plan.next_look_seconds, _AFTER_ACTION_SECONDS)
        if nobody_asks(look):
            return max(look.plan.next_look_seconds, _NOBODY_ASKS_SECONDS)
        return min(look.plan.next_look_seconds, self.parts.settings.look_seconds)

    async def _decide(self, rollout: RolloutFact, spec: PearlRolloutSpec) -> Look:
        """Prepares what must exist, observes, and asks the planner."""
        parts, past, now = self.parts, self._past, self.parts.clock.now()
        target = rollout.status.target
        gateway_refusal = await parts.children.ensure(rollout, spec, workers=len(target.slots) if target else 0)
        template_refusal = await parts.preflight.check(rollout, spec)
        await parts.actor.loans.sync(rollout)
        pods = self._own_pods(rollout)
        loans = tuple(parts.index.loans_of(self.key))
        samples = await parts.sources.read(pods, loans, spec.metrics.prometheus)
        past.served = frozenset(pod.address.uid for pod in pods if pod.ready or pod.address.uid in past.served)
        engine = self._engine(spec)
        facts = self._facts(rollout, spec, pods, samples, now=now, keep_shape=template_refusal is not None)
        snapshot = snapshot_of(facts)
        policy = policy_of(
            rollout, spec, engine, hold=template_refusal is not None, scrape_seconds=samples.scrape_seconds
        )
        decided = plan(snapshot, policy)
        self._note(snapshot, decided)
        wanted = [slot.slot for slot in decided.target.slots] if decided.target is not None else []
        past.remakes.saw(snapshot.workers, wanted, parts.clock.monotonic())
        return Look(
            now=now,
            rollout=rollout,
            spec=spec,
            snapshot=snapshot,
            policy=policy,
            plan=decided,
            samples=samples,
            pods=pods,
            loans=tuple(parts.index.loans_of(self.key)),
            loans_possible=parts.settings.cluster_scoped,
            refusals=Refusals(template=template_refusal, gateway=gateway_refusal, capacity=past.capacity_refusal),
            engine_problem=engine.problem,
            abandoned=past.abandoned,
            failing=past.remakes.told(),
            gateway_url=parts.resolver.gateway(self.key),
            gateway_scaled=parts.children.scaling.problem,
        )

    def _facts(  # noqa: PLR0913 - what one look found
        self,
        rollout: RolloutFact,
        spec: PearlRolloutSpec,
        pods: tuple[PodFact, ...],
        samples: Samples,
        *,
        now: float,
        keep_shape: bool,
    ) -> Facts:
        memory = self._past.memory
        return Facts(
            spec=spec,
            pods=pods,
            nodes=self.parts.index.nodes,
            signs=self.parts.settings.node_notices,
            loans=self.parts.actor.loans.planner_loans(self.key),
            samples=samples,
            budget=budget_of(spec, loans_enabled=self.parts.settings.cluster_scoped),
            target=target_from_status(rollout.status.target),
            memory=memory if memory is not None else memory_from_text(rollout.status.memory),
            now=now,
            served=self._past.served,
            keep_shape=keep_shape,
        )

    def _engine(self, spec: PearlRolloutSpec) -> EngineChoice:
        products = self.parts.index.gpu_products()
        basis = (spec.engine.table, spec.model.name, spec.engine.tensor_parallel, spec.engine.parallelism, products)
        if self._past.engine is None or self._past.engine[0] != basis:
            self._past.engine = (basis, engine_choice(spec, products))
        return self._past.engine[1]

    def _own_pods(self, rollout: RolloutFact) -> tuple[PodFact, ...]:
        """Worker pods of this very rollout; pods that an earlier one of the same name left behind are strangers."""
        borrowed = names.Zone.BORROWED
        return tuple(
            pod for pod in self.parts.index.workers_of(self.key) if pod.zone == borrowed or pod.owner_uid == rollout.uid
        )

    def _note(self, snapshot: Snapshot, decided: Plan) -> None:
        """A target that was dropped past its deadline stays told until one is reached, a refusal while it matters."""
        before, after = snapshot.target, decided.target
        if before is not None and snapshot.now > before.deadline and not finished(snapshot.workers, before):
            if after is None or after.id != before.id:
                self._past.abandoned = _abandonment(before)
        elif after is not None and finished(snapshot.workers, after):
            self._past.abandoned = None
        if not any(isinstance(action, CreateWorker) for action in decided.actions):
            self._past.capacity_refusal = None

    async def _act(self, look: Look) -> bool:
        """The plan's actions in their order, each kind at once. Whether there was anything to do now.

        One that fails ends the look. A conflict is of one worker, and the others' actions may all be done now: it is
        raised at the end.
        """
        acted, conflicts = False, list[BaseException]()
        frozen = look.spec.policy.advisory or look.refusals.template is not None
        allowed = (each for each in look.plan.actions if isinstance(each, AnswerLoan) or not frozen)
        for kind, alike in groupby(allowed, type):
            actions = self._due(alike)
            failures = await self._at_once(actions, look, most=1 if kind is AnswerLoan else _AT_ONCE)
            conflicts += (each for each in failures if isinstance(each, Conflict))
            refusals = [each for each in failures if isinstance(each, Refused)]
            if kind is CreateWorker and actions:
                self._past.capacity_refusal = str(refusals[0]) if refusals else None  # the pod itself passed preflight
            for failure in (*refusals, *(each for each in failures if not isinstance(each, Conflict))):
                raise failure
            acted |= bool(actions)
        for conflict in conflicts:
            raise conflict
        return acted

    def _due(self, actions: Iterable[Action]) -> list[Action]:
        """Without the pods that failed again and again and may not be made yet."""
        now, remakes = self.parts.clock.monotonic(), self._past.remakes
        return [each for each in actions if not isinstance(each, CreateWorker) or remakes.may(each.slot.slot, now)]

    async def _at_once(self, actions: Iterable[Action], look: Look, *, most: int) -> list[BaseException]:
        """Several at a time: one after the other, the last of many would wait for all others' answers.

        They are of one kind and each of another worker, so that their order among each other means nothing.
        Returns what failed; all but a conflict keeps those that had not begun from beginning.
        """
        todo, failures = deque(actions), list[BaseException]()

        async def some() -> None:
            while todo:
                try:
                    await self._carry_out(todo.popleft(), look)
                except Conflict as conflict:
                    failures.append(conflict)
                except BaseException as error:
                    todo.clear()  # what stopped this one would stop the others
                    failures.append(error)
                    raise

        await asyncio.gather(*(some() for _ in range(min(len(todo), most))), return_exceptions=True)
        return failures

    async def _carry_out(self, action: Action, look: Look) -> None:
        await self.parts.actor.carry_out(action, look)
        self.parts.metrics.acted(self.key, action)


def _abandonment(target: Target) -> str:
    return f"target {target.id} ({target.reason.value}) was not reached by its deadline and was dropped"

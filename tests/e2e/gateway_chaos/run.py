"""One act after the other: a fresh scene per way to load weights, events at a rate, agents all the while, checks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import aiohttp
from ports import free_port

from gateway_chaos.check import Found, Reference, check
from gateway_chaos.events import WEIGHTS, Kind, schedule
from gateway_chaos.gateway_process import GatewayProcess
from gateway_chaos.play import Pace, Player
from gateway_chaos.scene import Scene, Stage, gateway_environment
from gateway_chaos.traffic import Agents, Shape, Told
from pearl_worker.settings import OnUpdate

if TYPE_CHECKING:
    from collections.abc import Callable

READY_SECONDS = 300.0
TELL_SECONDS = 5.0
MOST_TOLD = 5


@dataclass(frozen=True, slots=True)
class Act:
    """One way to load weights."""

    on_update: OnUpdate
    max_staleness: int

    @property
    def name(self) -> str:
        return f"{self.on_update} staleness {self.max_staleness}"


ACTS = (
    Act(OnUpdate.RECOMPUTE, 1),
    Act(OnUpdate.FINISH_TURN, 2),
    Act(OnUpdate.KEEP_KV, 2),
    Act(OnUpdate.RECOMPUTE, 0),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    seed: str
    events: int
    rate: float
    """Events per second."""
    together: int
    """Events at once, at most."""
    shape: Shape
    pace: Pace
    kinds: dict[Kind, float] = field(default_factory=lambda: dict(WEIGHTS))
    seconds: float | None = None
    """No event begins later; None = all of them are played."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to begin no further event: what was played is checked as ever."""


@dataclass
class Result:
    """A whole act."""

    act: Act
    found: Found = field(default_factory=Found)
    events: dict[str, int] = field(default_factory=dict)
    lost_turns: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    turns: int = 0
    repeats: int = 0
    not_handed_out: int = 0
    longest_turn: tuple[float, str] = (0.0, "")
    versions: int = 0
    late_handoffs: int = 0
    gateway: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return self.found.good and not self.lost_turns and not self.problems


async def play_act(act: Act, stage: Stage, plan: Plan, reference: Reference, say: Callable[[str], None]) -> Result:
    """Plays `plan.events` events, lets everything end in peace, and checks every trajectory."""
    result = Result(act)
    stage = replace(stage, on_update=act.on_update)
    stage.folder.mkdir(parents=True, exist_ok=True)
    gateway = GatewayProcess(stage.folder, free_port(), gateway_environment(stage, act.max_staleness))
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        scene = Scene(stage, session, gateway)
        began = time.monotonic()
        await scene.open()
        try:
            gateway.start()
            await _ready(scene)
            await _play(scene, plan, result, reference, say)
            result.gateway = await _stats(session, gateway.url)
        finally:
            await gateway.stop()
            await scene.close()
        result.seconds = time.monotonic() - began
        result.problems += scene.problems
        result.versions = scene.version
    return result


async def _ready(scene: Scene) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while scene.ready() < len(scene.pods) or not await scene.answers():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


async def _play(scene: Scene, plan: Plan, result: Result, reference: Reference, say: Callable[[str], None]) -> None:
    gateway = scene.gateway
    checks: set[asyncio.Task[None]] = set()
    slots = asyncio.Semaphore(4)
    kept_kv = scene.stage.real and result.act.on_update is OnUpdate.KEEP_KV

    async def checked(told: Told) -> None:
        async with slots:
            await check(told, reference, result.found, scene.version, kept_kv=kept_kv)

    def done(told: Told) -> None:
        task = asyncio.ensure_future(checked(told))
        checks.add(task)
        task.add_done_callback(checks.discard)

    agents = Agents(
        scene.session,
        gateway.url,
        seed=f"{plan.seed}/{result.act.name}".replace(" ", "-"),
        shape=plan.shape,
        incarnation=lambda: gateway.incarnation,
        done=done,
        lost=result.lost_turns.append,
    )
    running = asyncio.ensure_future(agents.run())
    teller = asyncio.ensure_future(_tell(scene, result, agents, plan, say))
    try:
        await _events(scene, plan, result)
        agents.stop()
        await running
        await asyncio.gather(*checks)
    finally:
        for task in (running, teller):
            task.cancel()
        await asyncio.gather(running, teller, return_exceptions=True)
    result.turns, result.repeats, result.not_handed_out = agents.turns, agents.repeats, agents.not_handed_out
    result.longest_turn = agents.longest
    result.late_handoffs += sum(pod.link.lately for pod in scene.pods)


async def _events(scene: Scene, plan: Plan, result: Result) -> None:
    player, slots = Player(scene, plan.pace), asyncio.Semaphore(plan.together)
    loop = asyncio.get_running_loop()
    due = loop.time()
    last = due + plan.seconds if plan.seconds is not None else math.inf
    async with asyncio.TaskGroup() as tasks:

        async def one(event: Any) -> None:
            try:
                problem = await player.play(event)
                if problem:
                    result.problems.append(f"event {event.number}: {problem}")
            finally:
                slots.release()

        for event in schedule(f"{plan.seed}/{result.act.name}", plan.events, plan.kinds):
            due = max(due + event.pause / plan.rate, loop.time())
            await asyncio.sleep(due - loop.time())
            await slots.acquire()
            if plan.over.is_set() or loop.time() > last:
                break
            await _calm(scene, plan.pace.least_ready)
            result.events[event.kind] = result.events.get(event.kind, 0) + 1
            tasks.create_task(one(event))


async def _calm(scene: Scene, least_ready: int) -> None:
    """Until enough serve again; whatever does not come back is a problem."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            while scene.ready() < least_ready or scene.gateway.busy or not await scene.answers():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        states = [f"{pod.name} {pod.worker.state().phase}: {pod.worker.state().message}" for pod in scene.pods]
        raise RuntimeError(f"not enough workers came back within {READY_SECONDS:g} s: {states}") from None


async def _tell(scene: Scene, result: Result, agents: Agents, plan: Plan, say: Callable[[str], None]) -> None:
    began, told = time.monotonic(), 0
    while True:
        await asyncio.sleep(TELL_SECONDS)
        problems = [*result.problems, *scene.problems, *result.lost_turns, *result.found.problems]
        for problem in problems[told : told + MOST_TOLD]:
            say(f"  {problem}")
        told = len(problems)
        found, events = result.found, sum(result.events.values())
        rate = events / (time.monotonic() - began)
        say(
            f"{result.act.name}: {events}/{plan.events} events ({rate:.1f}/s), {found.trajectories} trajectories, "
            f"{agents.turns} turns, {found.checked_tokens} tokens checked, {found.seams} seams, "
            f"{agents.repeats} repeats, {told} problems"
        )


async def _stats(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with session.get(url + "/v1/stats") as response:
            stats: dict[str, Any] = await response.json()
            return stats.get("counters", {})
    return {}

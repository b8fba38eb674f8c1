"""Weeks of the real operator on virtual time: nodes by recorded traces, trainers that lend, random faults.

PYTHONPATH=tests/simulation:tests/support python -m soak --weeks 4 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import looptime
from soak_checks import GROWTH_MIB, Checks
from soak_cluster import NAMESPACE, Cluster, JumpingClock, Process, SoakAgents, SoakKube
from soak_demand import DAY, HOUR, Demand, SoakGateway, SoakPrometheus, serves
from soak_faults import Faults
from soak_nodes import Pool
from soak_trainers import Trainer, review

from pearl_api import names
from pearl_api.rollout import PearlRolloutSpec
from pearl_dev.virtual.clock import VirtualClock
from pearl_dev.virtual.kube import clone, deep_merge
from pearl_operator import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

Object = dict[str, Any]
PACES = {
    "pearl_planner.plan.LOOK_RESTING_SECONDS": 60.0,
    "pearl_planner.plan.LOOK_MOVING_SECONDS": 10.0,
    "pearl_operator.loans.follower.FOLLOW_SECONDS": 5.0,
}
"""Longest pauses between two looks, of 5, 1 and 0.5 s: events wake the operator as ever, and weeks take minutes."""
SAMPLE_SECONDS = 30.0
CURVE_SAMPLES = 20
"""Samples of one point of the plot."""
LAST_SECONDS = 1.5 * HOUR
"""Without faults, before everything is deleted."""
BASE: Object = {
    "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/qwen3-8b"},
    "engine": {"image": "example/worker:1", "tensorParallel": 1, "table": "Qwen/Qwen3-8B/H100-TP1"},
    "workload": {"groups": 4, "groupSize": 8},
    "policy": {"deadlines": {"drainSeconds": 30, "startSeconds": 300}, "hysteresis": {"minDwellSeconds": 120}},
}
ROLLOUTS: dict[str, Object] = {
    "swe": {
        "capacity": {
            "reserved": {"gpus": 2},
            "elastic": {"maxGpus": 6},
            "borrowed": {"maxGpus": 4, "trainerSelector": {"role": "trainer"}},
        },
        "policy": {"hysteresis": {"minDwellSeconds": 300}},
    },
    "math": {
        "capacity": {"reserved": {"gpus": 2}, "elastic": {"maxGpus": 4}},
        "idle": {"action": "ScaleToZero"},
        "metrics": {"prometheus": {"url": "http://prometheus:9090"}},
    },
    "tools": {
        "capacity": {"reserved": {"gpus": 4}, "elastic": {"maxGpus": 4}},
        "engine": {"tensorParallel": 2, "table": "Qwen/Qwen3-8B/H100-TP2"},
        "metrics": {"prometheus": {"url": "http://prometheus:9090"}},
    },
}
SHORT: Object = {"capacity": {"reserved": {"gpus": 1}}}
POOLS = {
    "swe": (("bamboo_p3",), 6),
    "math": (("parcae_hh", "parcae_lh", "parcae_hl", "parcae_ll"), 4),
    "tools": (("bamboo_g4dn",), 2),
}
"""Traces, and the most nodes."""
TRAINERS = 2


@dataclass
class Use:
    """GPU-seconds of one rollout."""

    elastic_available: float = 0.0
    elastic_working: float = 0.0
    elastic_starting: float = 0.0
    """Held by pods that do not serve, or that have nothing in flight."""
    elastic_free: float = 0.0
    reserved: float = 0.0
    reserved_working: float = 0.0
    borrowed_working: float = 0.0


@dataclass
class Scene:
    """One cluster with its rollouts, nodes, trainers, faults and checks."""

    seed: int
    use: dict[str, Use] = field(default_factory=dict)
    curve: list[tuple[float, ...]] = field(default_factory=list)
    """(hours, then by rollout: reserved + available GPUs, GPUs held, GPUs working), means over ten minutes."""
    seconds: float = 0.0
    """How long it runs."""
    hours: dict[str, list[int]] = field(default_factory=dict)
    """Targets by hour, of quiet and of busy hours."""
    _sums: list[float] = field(default_factory=list)
    _samples: int = 0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rollouts = [*ROLLOUTS, "short"]
        self.kube = SoakKube(VirtualClock())
        self.kube.review = lambda spec: review(self.kube.objects, spec)
        self.cluster = Cluster(self.kube, self.random("cluster"))
        self.gateway = SoakGateway(self.cluster)
        self.prometheus = SoakPrometheus(self.gateway)
        self.process = Process(self.kube, self.gateway, self.prometheus, SoakAgents(self.cluster), JumpingClock())
        self.checks = Checks(self)
        self.process.started = self.checks.restarted
        self.faults = Faults(self, self.random("faults"))
        self.trainers = [self._trainer(number) for number in range(TRAINERS)]

    def random(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")

    def _trainer(self, number: int) -> Trainer:
        def reclaiming(pod: str, seconds: float) -> None:
            self.checks.reclaiming("swe", pod, seconds)

        return Trainer(
            name=f"trainer{number}",
            rollout="swe",
            gpus=2,
            cluster=self.cluster,
            process=self.process,
            random=self.random(f"trainer {number}"),
            told=self.checks.told,
            reclaiming=reclaiming,
        )

    # --- users

    def add_rollout(self, name: str) -> None:
        self.gateway.demands[name] = Demand(name, self.seed, nights=name == "math", changed=self._changed(name))
        self.apply(name, ROLLOUTS.get(name, SHORT))

    def _changed(self, name: str) -> Callable[[str], None]:
        def changed(what: str) -> None:
            if what.startswith("it is asked"):
                self.checks.told(name, what)
            self.checks.noticed(name)

        return changed

    def remove_rollout(self, name: str) -> None:
        self.gateway.demands.pop(name, None)
        self.kube.remove(kinds.ROLLOUT, name, NAMESPACE)

    def apply(self, name: str, change: Object) -> None:
        """`kubectl apply` with the fields of `change` replaced."""
        known = self.kube.objects.get((kinds.ROLLOUT.plural, NAMESPACE, name))
        self.replace_spec(name, deep_merge((known or {"spec": BASE})["spec"], change))

    def replace_spec(self, name: str, spec: Object) -> None:
        known = self.kube.objects.get((kinds.ROLLOUT.plural, NAMESPACE, name))
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, **clone(known or {})}
        parsed = PearlRolloutSpec.model_validate(spec)
        body["spec"] = parsed.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.kube.store(kinds.ROLLOUT, body)

    # --- the run

    async def run(self, seconds: float, progress: Callable[[str], None] = lambda _: None) -> None:
        """Everything, for so long; the last part of it without faults, then without rollouts."""
        loop = asyncio.get_running_loop()
        self.seconds = seconds
        self._begin()
        next_day = DAY
        while loop.time() < self.seconds:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._raise_dead()
            self._sample()
            self.checks.sample()
            if loop.time() >= self.seconds - LAST_SECONDS:
                self._rest()
            if loop.time() >= next_day:
                next_day += DAY
                self.checks.daily()
                progress(self.line())
        await self._end()

    def shorten(self) -> None:
        """Ends it early, and properly."""
        self.seconds = min(self.seconds, asyncio.get_running_loop().time() + LAST_SECONDS)

    def _begin(self) -> None:
        for name in ROLLOUTS:
            self.add_rollout(name)
            self.use[name] = Use()
        self._run("operator", self.process.run())
        self._run("faults", self.faults.run())
        for name, (traces, most) in POOLS.items():
            pool = Pool(name, traces, most, self.cluster, self.random(name), self.checks.told, self.checks.noticed)
            self._run(f"pool {name}", pool.run())
        for trainer in self.trainers:
            self._run(trainer.name, trainer.run())

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _raise_dead(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        if self.process.errors:
            raise self.process.errors[0]

    def _rest(self) -> None:
        self.faults.over = True
        for trainer in self.trainers:
            trainer.resting = True

    async def _end(self) -> None:
        self.checks.daily()
        operator, *others = self._tasks
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._calm()
        for name in [key[2] for key in self.kube.objects if key[0] == kinds.ROLLOUT.plural]:
            self.remove_rollout(name)
        for key in [key for key in self.kube.objects if key[0] == kinds.POD.plural and key[2].startswith("trainer")]:
            if names.LABEL_LOAN not in (self.kube.objects[key]["metadata"].get("labels") or {}):
                self.kube.remove(kinds.POD, key[2], key[1])
        await asyncio.sleep(240.0)
        self.checks.nothing_left()
        self.checks.growth(GROWTH_MIB)
        operator.cancel()
        await asyncio.gather(operator, return_exceptions=True)

    def _calm(self) -> None:
        """A fault may have been cut short."""
        self.kube.down = self.process.deaf = self.cluster.failing = False
        self.cluster.unstick()
        self.kube.refuse = self.kube.refuse_apply = lambda _kind, _body: None

    # --- what is reported

    def _sample(self) -> None:
        row: list[float] = []
        for name, use in self.use.items():
            row += self._use(name, use)
        self._sums = [a + b for a, b in zip(self._sums, row, strict=True)] if self._sums else row
        self._samples += 1
        if self._samples == CURVE_SAMPLES:
            hours = asyncio.get_running_loop().time() / HOUR
            self.curve.append((hours, *(value / CURVE_SAMPLES for value in self._sums)))
            self._sums, self._samples = [], 0

    def _use(self, name: str, use: Use) -> tuple[float, float, float]:
        """Adds the last half minute; (available, held, working) GPUs now."""
        body = self.kube.objects.get((kinds.ROLLOUT.plural, NAMESPACE, name))
        demand = self.gateway.demands.get(name)
        if body is None or demand is None:
            return (0.0, 0.0, 0.0)
        parallel = body["spec"]["engine"]["tensorParallel"]
        held = dict.fromkeys(names.Zone, 0)
        working = dict.fromkeys(names.Zone, 0)
        for pod in self.cluster.workers.get(name, {}).values():
            zone = names.Zone(pod["metadata"]["labels"][names.LABEL_ZONE])
            placed = "nodeName" in pod["spec"] and zone is not names.Zone.BORROWED
            held[zone] += parallel * placed
            working[zone] += parallel * (serves(pod) and demand.busy)
        elastic = parallel * self.cluster.capacity(name)
        reserved = int(body["spec"]["capacity"]["reserved"]["gpus"])
        use.elastic_available += SAMPLE_SECONDS * elastic
        use.elastic_working += SAMPLE_SECONDS * working[names.Zone.ELASTIC]
        use.elastic_starting += SAMPLE_SECONDS * (held[names.Zone.ELASTIC] - working[names.Zone.ELASTIC])
        use.elastic_free += SAMPLE_SECONDS * (elastic - held[names.Zone.ELASTIC])
        use.reserved += SAMPLE_SECONDS * reserved
        use.reserved_working += SAMPLE_SECONDS * working[names.Zone.RESERVED]
        use.borrowed_working += SAMPLE_SECONDS * working[names.Zone.BORROWED]
        return (
            float(reserved + elastic),
            float(held[names.Zone.RESERVED] + held[names.Zone.ELASTIC]),
            float(sum(working.values())),
        )

    def line(self) -> str:
        """Where it is."""
        checks, sizes = self.checks, self.checks.sizes[-1]
        targets = checks.optional + sum(checks.forced.values())
        return (
            f"day {sizes['day']:.0f}: {targets} targets ({checks.optional} optional), {len(checks.reclaims)} reclaims, "
            f"{sum(self.faults.counts.values())} faults, {self.process.starts} operator processes, "
            f"{sizes['rss_mib']:.0f} MiB, {len(checks.breaches)} breaches"
        )


def soak(
    seconds: float,
    seed: int,
    *,
    progress: Callable[[str], None] = lambda _: None,
    before: Callable[[Scene], None] = lambda _: None,
) -> Scene:
    """A whole soak; `before` may break something on purpose."""
    with ExitStack() as stack, asyncio.Runner(loop_factory=_loop) as runner:
        for name, pace in PACES.items():
            stack.enter_context(patch(name, pace))
        scene = Scene(seed)
        stack.enter_context(_bugs_told(scene))
        before(scene)
        runner.run(scene.run(seconds, progress))
    scene.hours = scene.checks.hours(scene.seconds)
    return scene


def _loop() -> asyncio.AbstractEventLoop:
    return looptime.new_event_loop(noop_cycles=2)


@contextmanager
def _bugs_told(scene: Scene) -> Iterator[None]:
    """The operator logs every fault; what it logs as an error is a bug of its own."""
    logger, handler = logging.getLogger("pearl"), Bugs(scene)
    before = logger.level
    logger.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class Bugs(logging.Handler):
    """Makes a breach of every error."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(logging.ERROR)
        self.scene = scene

    def emit(self, record: logging.LogRecord) -> None:
        what = getattr(record, "rollout", getattr(record, "loan", "all"))
        error = record.exc_info[1] if record.exc_info else None
        self.scene.checks.breach(str(what), f"{record.getMessage()}: {error!r}")


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weeks", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for everything that was found")
    parser.add_argument("--found", type=Path, help="such a file: no run, only its page")
    parser.add_argument("--page", type=Path, help="folder for soak.md and its plot")
    given = parser.parse_args()
    from soak_page import page, plot

    found = _run(given) if given.found is None else json.loads(given.found.read_text())
    if given.json is not None:
        given.json.write_text(json.dumps(found) + "\n")
    if given.page is not None:
        plot(found, given.page)
        (given.page / "soak.md").write_text(page(found))
    sys.exit(bool(found["breaches"]))


def _run(given: argparse.Namespace) -> dict[str, Any]:
    from soak_page import summary

    def before(scene: Scene) -> None:
        signal.signal(signal.SIGTERM, lambda *_: scene.shorten())

    def progress(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    began = time.process_time()
    scene = soak(given.weeks * 7 * DAY, given.seed, progress=progress, before=before)
    print("\n".join(map(str, scene.checks.breaches)) or "no breach")  # noqa: T201
    return summary(scene, cpu_seconds=time.process_time() - began)


if __name__ == "__main__":
    main()

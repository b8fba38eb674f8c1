"""The simulated cluster: what happens to a trajectory from its start to its end, and how the parts are wired."""

from __future__ import annotations

import random
from math import exp
from typing import TYPE_CHECKING

from pearl_planner.types import Activity, Zone
from pearl_simulator.cluster.clock import Clock, SimulationError
from pearl_simulator.cluster.feed import Feed
from pearl_simulator.cluster.jobs import Stage
from pearl_simulator.cluster.lending import Lender
from pearl_simulator.cluster.lengths import Lengths
from pearl_simulator.cluster.pods import Pods
from pearl_simulator.cluster.records import Records
from pearl_simulator.cluster.router import Router
from pearl_simulator.cluster.spot import Spot, SpotMarket
from pearl_simulator.cluster.tally import Tally
from pearl_simulator.cluster.training import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.cluster.engine import Engine
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.types import Scenario


class World:
    """Everything but the operator."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self.clock = Clock()
        self.lengths = Lengths()
        self.router = Router(scenario.router, self.lengths)
        self.records = Records()
        self.tally = Tally(scenario, self.clock)
        self.pods = Pods(scenario, self.clock, self.router, self, SpotMarket(scenario))
        self.feed = Feed(scenario, seed, self.clock, self._request)
        self.lender = Lender(scenario, self.clock, self.pods)
        self.trainer = Trainer(scenario, self.clock, self.feed, self.pods, self.lender)
        self.trainer.abort = self._abort
        self.pods.changed = lambda: self.tally.fleet(self.pods)
        self.spot = Spot(scenario, seed, self.clock, self.pods)
        self._noise = random.Random(f"{seed}/service")  # noqa: S311 - a simulation

    def start(self, wake: Callable[[], None]) -> None:
        """Begin; `wake` wakes the operator."""
        self.pods.wake = wake
        self.trainer.start()

    def check(self) -> None:
        """Every live trajectory is in exactly one place.

        Raises:
            SimulationError: one is nowhere, or at two workers.
        """
        inside = [job for engine in self.pods.engines() for job in engine.jobs if job.engine is engine]
        homeless = [job for job in self.router.waiting if job.stage is Stage.HOMELESS]
        away = [job for job in self.feed.live.values() if job.stage is Stage.AWAY]
        found = [*inside, *homeless, *away]
        if len(found) != len(self.feed.live) or {job.uid for job in found} != set(self.feed.live):
            raise SimulationError(f"{len(self.feed.live)} trajectories live, {len(found)} of them were found")

    # ---- a trajectory -----

    def _request(self, job: Job) -> None:
        """The next turn's prompt arrives at the gateway."""
        if job.stage is Stage.ENDED:
            return
        if job.turn >= len(job.script.turns):
            self._finish(job)
            return
        turn = job.script.turns[job.turn]
        job.prompt = job.history + turn.appended_tokens
        job.done = 0
        job.away_since = None
        job.requested_at = self.clock.now
        job.first_token_at = 0.0
        sigma = self._scenario.calibration.service_noise
        job.noise = exp(self._noise.gauss(-sigma * sigma / 2.0, sigma)) if sigma > 0.0 else 1.0
        self.router.dispatch(job)

    def first_token(self, job: Job, engine: Engine) -> None:
        """Hook of the engine: the prompt is computed."""
        left = job.home is not None and job.home.role is not job.home_role
        if (job.lost or left) and self.tally.measuring:
            self.tally.recomputed += max(job.computed - _new_tokens(job), 0)
        job.lost = False
        job.home_role = engine.role
        if job.first_version is None:
            job.first_version = engine.version
            group = job.group
            group.first_version = (
                engine.version if group.first_version is None else min(group.first_version, engine.version)
            )
        if not job.first_token_at:
            job.first_token_at = self.clock.now

    def prefilled(self, job: Job, engine: Engine) -> None:
        """Hook of the engine: a hand-off is ready."""
        job.prefill_home = engine
        decoder = self.router.decoder_for(job, engine)
        if decoder is None or decoder is engine:  # its role changed meanwhile
            engine.keep_here(job)
        else:
            decoder.offer(job)

    def turn_done(self, job: Job, engine: Engine) -> None:
        """Hook of the engine: the answer is complete; the environment's turn."""
        turn = job.script.turns[job.turn]
        if job.done != turn.generated_tokens:
            raise SimulationError(f"{job.name} made {job.done} of {turn.generated_tokens} tokens in turn {job.turn}")
        self.records.turn(job, self.clock.now, engine.version)
        self.lengths.turn(turn.generated_tokens)
        self.tally.turn(turn.generated_tokens)
        job.home = engine
        job.history = job.prompt + turn.retained_tokens
        job.turn += 1
        job.stage = Stage.AWAY
        job.away_since = self.clock.now
        self.clock.after(turn.environment_seconds, self._request, job)

    def left(self, engine: Engine) -> None:
        """Hook of the engine: perhaps a draining worker is empty now."""
        if not engine.jobs:
            pod = self.pods.by_name.get(engine.uid)
            if pod is not None and pod.activity is not Activity.ACTIVE and pod.zone is not Zone.BORROWED:
                self.pods.wake()

    def _finish(self, job: Job) -> None:
        self._forget(job)
        complete = self.feed.ended(job)
        self.lengths.finished(job.turn, job.group)
        self.records.trajectory(job, "finished")
        self.tally.finished += self.tally.measuring
        if complete:
            self.trainer.look()
        self.feed.pump()

    def _abort(self, job: Job) -> None:
        """Over-provisioned: nobody waits for it any more."""
        if job.engine is not None:
            job.engine.remove(job)
        self._forget(job)
        self.feed.ended(job)
        self.records.trajectory(job, "overprovisioned")

    def _forget(self, job: Job) -> None:
        """Without a KV limit nothing would ever evict it."""
        if self._scenario.calibration.table.kv_capacity_tokens is None:
            for engine in {job.home, job.prefill_home}:
                if engine is not None:
                    engine.cache.take(job.uid)


def _new_tokens(job: Job) -> int:
    """What the present turn would prefill with all its KV at hand; nothing for the rest of an interrupted one."""
    if job.done or job.lost:
        return 0
    turn = job.script.turns[job.turn]
    before = job.script.turns[job.turn - 1] if job.turn else None
    new = turn.appended_tokens + int(turn.missed_share * job.history)
    if before is not None and (job.handoff or before.retained_tokens < before.generated_tokens):
        new += before.retained_tokens
    return new

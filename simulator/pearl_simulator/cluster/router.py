"""Where a turn goes, as the gateway routes it; the same for every rule.

Workers that generated a trajectory's last turn keep it while they are not much busier than the idlest (the gateway's
factor 2 and slack 4, in requests), otherwise and at first the worker that would be done soonest is taken. With prefill
and decode workers a turn is prefilled on one and decoded on another, unless few enough of its tokens are uncached on
the decode worker, or no prefill worker has the weights that the decode worker has. A turn only goes to workers whose
weights are new enough for the staleness bound. While one stage has no worker, whatever is there serves both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_simulator.cluster.jobs import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_planner.types import Role
    from pearl_simulator.cluster.engine import Engine
    from pearl_simulator.cluster.jobs import Job
    from pearl_simulator.cluster.lengths import Lengths
    from pearl_simulator.types import Router as Settings

LEAK_FACTOR = 2.0
LEAK_SLACK = 4.0
TOKENS_PER_REQUEST = 512.0
"""Queued prompt tokens that keep a prefill worker as busy as one more request."""
HANDOFF_PENALTY = 0.5


def _inside(engine: Engine) -> float:
    return engine.inside


def _prefill_load(engine: Engine) -> float:
    return engine.inside + engine.pending / TOKENS_PER_REQUEST


class Router:
    """Routing lists and the turns that nothing can serve now."""

    __slots__ = (
        "_lengths",
        "_roles",
        "_settings",
        "changes",
        "colocated",
        "decoders",
        "local_append_tokens",
        "prefillers",
        "waiting",
    )

    def __init__(self, settings: Settings, lengths: Lengths) -> None:
        self._settings = settings
        self._lengths = lengths
        self.colocated: list[Engine] = []
        self.prefillers: list[Engine] = []
        self.decoders: list[Engine] = []
        self.waiting: list[Job] = []
        self.changes = 0
        """How often workers changed roles."""
        self._roles: Mapping[str, Role] = {}
        self.local_append_tokens = 0

    def serves(self, roles: Mapping[str, Role]) -> None:
        """Roles of all that have an engine, whether they load weights just now or not."""
        self.changes += any(self._roles.get(uid, role) is not role for uid, role in roles.items())
        self._roles = roles

    def dispatch(self, job: Job) -> None:
        """Send the present turn, or what is left of it, to a worker; it waits while there is none."""
        turn = job.script.turns[job.turn]
        job.tokens = job.prompt + job.done
        job.left = turn.generated_tokens - job.done
        job.priority = self._lengths.remaining(job) if self._settings.stragglers_first else 0.0
        if job.fleet_changes != self.changes:
            job.moved, job.fleet_changes = job.turn > 0, self.changes
        if not self._route(job):
            job.stage = Stage.HOMELESS
            job.engine = None
            self.waiting.append(job)

    def retry(self) -> None:
        """Workers came: what waited is routed."""
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            if job.stage is Stage.HOMELESS:
                self.dispatch(job)

    def decoder_for(self, job: Job, source: Engine) -> Engine | None:
        """Where a prompt prefilled on `source` is decoded; None = nothing decodes with these weights."""
        fit = [one for one in self.decoders if one.version == source.version] or None
        return None if fit is None else self._decoder(job, fit)

    def _route(self, job: Job) -> bool:
        colocated, prefillers, decoders = self.colocated, self.prefillers, self.decoders
        if job.min_version:
            colocated = [one for one in colocated if one.version >= job.min_version]
            prefillers = [one for one in prefillers if one.version >= job.min_version]
            decoders = [one for one in decoders if one.version >= job.min_version]
        pair = bool(prefillers and decoders)
        if colocated and not (pair and self._pair_is_better(job, colocated, decoders)):
            return self._here(job, self._with_affinity(job, colocated), "colocated")
        if pair:
            return self._disaggregated(job, prefillers, decoders)
        whatever = [*decoders, *prefillers]
        return bool(whatever) and self._here(job, self._with_affinity(job, whatever), "colocated")

    def _pair_is_better(self, job: Job, colocated: Sequence[Engine], decoders: Sequence[Engine]) -> bool:
        """Only while roles change do both exist: keep the KV where it is, else take the less busy side."""
        if job.home in colocated:
            return False
        if job.home in decoders:
            return True
        return min(map(_inside, colocated)) > min(map(_inside, decoders)) + HANDOFF_PENALTY

    def _disaggregated(self, job: Job, prefillers: Sequence[Engine], decoders: Sequence[Engine]) -> bool:
        decoder = self._decoder(job, decoders)
        uncached = job.tokens - decoder.usable(job)
        if uncached <= self.local_append_tokens:
            return self._here(job, decoder, "local")
        linked = [one for one in prefillers if one.version == decoder.version]
        if not linked:
            return self._here(job, decoder, "local")
        job.handoff = True
        job.route = "disaggregated"
        self._prefiller(job, linked).submit(job)
        return True

    def _here(self, job: Job, engine: Engine, route: str) -> bool:
        job.handoff = False
        job.route = route
        engine.submit(job)
        return True

    def _decoder(self, job: Job, engines: Sequence[Engine]) -> Engine:
        idlest = min(engines, key=_inside)
        home = job.home
        if not self._settings.affinity or home is None or home not in engines:
            return idlest
        if self._settings.stragglers_first and self._lengths.is_long(job):
            return home if home.inside <= idlest.inside + 1 else idlest
        return home if home.inside <= LEAK_FACTOR * idlest.inside + LEAK_SLACK else idlest

    def _prefiller(self, job: Job, engines: Sequence[Engine]) -> Engine:
        idlest = min(engines, key=_prefill_load)
        if not self._settings.affinity:
            return idlest
        limit = LEAK_FACTOR * _prefill_load(idlest) + LEAK_SLACK
        homes = [one for one in (job.prefill_home, job.home) if one is not None and one in engines]
        best = max(homes, key=lambda one: one.usable(job), default=None)
        if best is not None and best.usable(job) > 0 and _prefill_load(best) <= limit:
            return best
        if job.turn == 0:  # a worker that has the prompt of its group
            primed = [one for one in engines if one.usable(job) > 0 and _prefill_load(one) <= limit]
            return min(primed, key=_prefill_load, default=idlest)
        return idlest

    def _with_affinity(self, job: Job, engines: Sequence[Engine]) -> Engine:
        home = job.home
        if self._settings.affinity and home is not None and home in engines:
            idlest = min(map(_inside, engines))
            if home.inside <= LEAK_FACTOR * idlest + LEAK_SLACK:
                return home
        generated = self._lengths.generated_mean
        return min(engines, key=lambda one: (one.expected_seconds(job, generated), one.inside))

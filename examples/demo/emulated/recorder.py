"""Watches the API server as a user might, looks at the machines, and fills the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from examples.common.timeline import DecisionFact
from examples.demo.emulated.facts import Sample, Switch, Told
from examples.demo.emulated.predicted import predicted
from examples.demo.emulated.scenario import title
from examples.demo.emulated.stage import KEY
from pearl_dev.virtual.data_plane import END
from pearl_operator import kinds
from pearl_planner.types import Zone

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.demo.emulated.facts import Record
    from examples.demo.emulated.stage import Stage
    from pearl_dev.virtual.kube import Object
    from pearl_operator.kinds import Kind

SAMPLE_SECONDS = 5.0
MODES = ("Colocated", "Disaggregated")
LOANS = {
    "Granted": "the operator grants {gpus} training GPUs (epoch {epoch})",
    "Serving": "borrowed workers serve",
    "Draining": "training GPUs are asked back",
}


@dataclass
class Recorder:
    """`look` is called every second of the trace."""

    stage: Stage
    record: Record
    say: Callable[[Told], None]
    _mode: str | None = None
    _phase: str | None = None
    _loan: str | None = None
    _decided: tuple[str, str] = ("", "")
    _noticed: set[str] = field(default_factory=set)
    _next_sample: float = 0.0
    _reclaims: int = 0

    def __post_init__(self) -> None:
        self.stage.kube.watchers.append(self._seen)

    def told(self, who: str, text: str) -> None:
        """Something happened."""
        one = Told(self.now, who, text)
        self.record.told.append(one)
        self.say(one)

    @property
    def now(self) -> float:
        """Seconds of the trace."""
        return self.stage.plane.world.clock.now

    # ---- events of the API server

    def _seen(self, event: str, kind: Kind, body: Object) -> None:
        status: dict[str, Any] = body.get("status") or {}
        if kind is kinds.ROLLOUT:
            self._decision(status.get("lastDecision") or {})
            self._mode_of(status.get("mode"))
        elif kind is kinds.LOAN:
            self._loan_phase(status, len(body["spec"]["gpus"]))
        elif kind is kinds.NODE:
            self._node(event, body["metadata"])

    def _decision(self, decision: dict[str, Any]) -> None:
        new = (decision.get("reason", ""), decision.get("shape", ""))
        if new == self._decided or not new[0]:
            return
        self._decided = new
        message = decision.get("message", "")
        self.record.decisions.append(DecisionFact(self.now, KEY.name, *new, message))
        self.told("operator", f"{new[0]}: {message}")

    def _mode_of(self, mode: str | None) -> None:
        """A fleet on its way is `Mixed`."""
        if mode not in MODES or mode == self._mode:
            return
        if self._mode is not None:
            self.record.switches.append(Switch(self.now, self._mode, mode))
            self.told("fleet", f"mode {self._mode} → {mode}")
        self._mode = mode

    def _loan_phase(self, status: dict[str, Any], gpus: int) -> None:
        phase = status.get("phase")
        if phase == self._loan:
            return
        self._loan = phase
        if phase in LOANS:
            self.told("loan", LOANS[phase].format(gpus=gpus, epoch=status.get("epoch")))

    def _node(self, event: str, meta: dict[str, Any]) -> None:
        name = meta["name"]
        if event == "DELETED":
            self.told("cloud", f"spot {name} is gone")
        announced = event != "DELETED" and END in (meta.get("annotations") or {})
        if announced and name not in self._noticed:
            self.record.notices.append(self.now)
            self.told("cloud", f"spot {name} ends in {self.stage.scenario.costs.notice_seconds:.0f} s")
        self._noticed = self._noticed | {name} if announced else self._noticed - {name}

    # ---- looks

    def look(self) -> None:
        """At machines, trainer and agents."""
        world, record = self.stage.plane.world, self.record
        held = world.pods.held_gpus(Zone.BORROWED)
        record.held_while_training += world.trainer.waiting_since is None and held > 0
        record.begun, record.ended, record.live = world.feed.jobs_made, world.tally.finished, len(world.feed.live)
        record.batches = [one.consumed_seconds for one in world.trainer.batches]
        self._agents(title(self.stage.scenario, world.trainer.step))
        self._returned()
        if self.now >= self._next_sample:
            self._next_sample = self.now + SAMPLE_SECONDS
            record.samples.append(self._sample())

    def _agents(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self.record.phases.append((self.now, phase))
            self.told("agents", phase)

    def _returned(self) -> None:
        for one in self.stage.trainer.reclaims[self._reclaims :]:
            self.record.reclaims.append(one)
            if one.was_lent:
                within = f"{one.seconds:.1f} s, deadline {one.deadline_seconds:.0f} s"
                self.told("trainer", f"GPUs are back after {within}")
        self._reclaims = len(self.stage.trainer.reclaims)

    def _sample(self) -> Sample:
        world = self.stage.plane.world
        status = self.stage.kube.objects[kinds.ROLLOUT.plural, KEY.namespace, KEY.name].get("status") or {}
        workers: dict[str, int] = status.get("workers") or {}
        last = self.stage.operator.core.ring.last(KEY)
        fleet = self.stage.scenario.fleet
        fixed = fleet.reserved_gpus // fleet.gpus_per_worker
        seconds = (None, None) if last is None else predicted(*last, fixed_workers=fixed)
        return Sample(
            at=self.now,
            reserved=world.pods.held_gpus(Zone.RESERVED),
            elastic=world.pods.held_gpus(Zone.ELASTIC),
            borrowed=world.pods.held_gpus(Zone.BORROWED),
            spot=world.pods.market.gpus,
            prefill=workers.get("prefill", 0),
            decode=workers.get("decode", 0),
            colocated=workers.get("colocated", 0),
            ready=workers.get("ready", 0),
            mode=status.get("mode") or "–",
            training=world.trainer.waiting_since is None,
            lent=self.stage.trainer.lent,
            predicted_seconds=seconds[0],
            fixed_seconds=seconds[1],
        )

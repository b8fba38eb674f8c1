"""What a batch is: groups wanted, groups complete, who started, who ended. Told by the framework, kept across restarts.

Without it everything still works; the planner then plans for a steady state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import AbortTrajectory, BatchProgress, FinishTrajectory, OpenBatch
from pearl_gateway.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.storage import Storage
    from pearl_gateway.trajectory import Trajectory

_KEPT_CLOSED = 64
"""Batches that are closed and can still be asked for; trajectories that end later than that count for nobody."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A trajectory that reached its end."""

    group: str
    version: int | None
    """Weight version of its first token."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What the batches need of the log of a trajectory that is over."""

    group: str | None
    version: int | None
    """Weight version of its first token."""


@dataclass(slots=True)
class Batch:
    """One batch and how far it is."""

    spec: OpenBatch
    opened_at: float
    started: set[str] = field(default_factory=set)
    finished: dict[str, Finished] = field(default_factory=dict)
    consumed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    closed_at: float | None = None
    last_consumption: tuple[str, list[str]] | None = None
    """Its key, and what it handed out."""

    @property
    def closed(self) -> bool:
        """Nobody waits for it any more."""
        return self.closed_at is not None

    def complete_groups(self) -> int:
        """Groups all of whose trajectories finished."""
        sizes: dict[str, int] = {}
        for one in self.finished.values():
            sizes[one.group] = sizes.get(one.group, 0) + 1
        return sum(size >= self.spec.group_size for size in sizes.values())

    def unconsumed(self) -> dict[str, Finished]:
        """Finished trajectories that were not handed out yet."""
        return {name: one for name, one in self.finished.items() if name not in self.consumed}

    def progress(self, now: float) -> BatchProgress:
        """The wire form; `now` on the clock of `opened_at`."""
        spec = self.spec
        return BatchProgress(
            step=spec.step,
            groups=spec.groups,
            group_size=spec.group_size,
            need_groups=spec.need_groups or spec.groups,
            min_version=spec.min_version,
            started=len(self.started),
            finished=len(self.finished),
            aborted=len(self.aborted),
            complete_groups=self.complete_groups(),
            open_seconds=max(0.0, (now if self.closed_at is None else self.closed_at) - self.opened_at),
            closed=self.closed,
        )


class Batches:
    """All batches by step. `wall` gives seconds since the epoch, so that ages survive a restart."""

    def __init__(self, wall: Callable[[], float], storage: Storage | None = None) -> None:
        self._wall = wall
        self._storage = storage
        self.by_step: dict[int, Batch] = {}
        self.refill: bool | None = None
        """Whether a later batch had begun before the one before was closed, as last seen."""
        for event in storage.read_events() if storage is not None else []:
            self._apply(event)
        self._forget_old()

    def open(self, spec: OpenBatch) -> BatchProgress:
        """Declare a batch; repeating it is harmless.

        Raises:
            GatewayError: the step was opened with other numbers.
        """
        known = self.by_step.get(spec.step)
        if known is not None and known.spec != spec:
            raise GatewayError(
                HTTPStatus.CONFLICT, "StepReused", f"step {spec.step} was opened with other numbers: use a new step"
            )
        if spec.need_groups is not None and spec.need_groups > spec.groups:
            raise GatewayError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "BadBatch",
                f"needGroups {spec.need_groups} is above groups {spec.groups}: lower it",
            )
        if known is None:
            self._write({"event": "open", "spec": spec.model_dump(mode="json", by_alias=True), "time": self._wall()})
        return self.progress(spec.step)

    def get(self, step: int) -> Batch:
        """The batch of a step.

        Raises:
            GatewayError: nobody opened it.
        """
        batch = self.by_step.get(step)
        if batch is None:
            raise GatewayError(HTTPStatus.NOT_FOUND, "BatchUnknown", f"step {step} is not open: POST /v1/batches first")
        return batch

    def progress(self, step: int) -> BatchProgress:
        """How far the batch of `step` is."""
        return self.get(step).progress(self._wall())

    def current(self) -> int | None:
        """The oldest open step; None = unknown."""
        return min((step for step, batch in self.by_step.items() if not batch.closed), default=None)

    def min_version(self, step: int | None) -> int | None:
        """Oldest weight version that may generate tokens of the step's trajectories."""
        batch = self.by_step.get(step) if step is not None else None
        return batch.spec.min_version or None if batch is not None else None

    def started(self, trajectory: Trajectory) -> None:
        """A trajectory sent its first turn."""
        if trajectory.step is not None and trajectory.traffic == "train":
            self.start(trajectory.step, trajectory.id)

    def start(self, step: int, name: str) -> None:
        """The same of a training trajectory by name; harmless for a step that is not known."""
        batch = self.by_step.get(step)
        if batch is not None and name not in batch.started:
            self._write({"event": "start", "step": step, "trajectory": name})

    def finish(self, step: int, message: FinishTrajectory, ended: Ended | None) -> BatchProgress:
        """A trajectory reached its end; `ended`: None if it never sent a turn."""
        if message.trajectory not in self.get(step).finished:
            group = message.group or (ended.group if ended is not None else None) or message.trajectory
            version = ended.version if ended is not None else None
            event = {"event": "finish", "step": step, "trajectory": message.trajectory}
            self._write({**event, "group": group, "version": version})
        return self.progress(step)

    def handed_out(self, step: int, key: str | None) -> list[str]:
        """What a consumption of that key got before; nothing if there was none."""
        last = self.get(step).last_consumption
        return last[1] if last is not None and last[0] == key else []

    def consume(self, step: int, key: str | None = None) -> list[str]:
        """Finished trajectories that were not handed out before; they count as handed out now, under `key`."""
        names = list(self.get(step).unconsumed())
        self.hand_out(step, names, key)
        return names

    def hand_out(self, step: int, names: list[str], key: str | None) -> None:
        """These finished trajectories count as handed out from now on."""
        if names:
            self._write({"event": "consume", "step": step, "trajectories": names, "key": key})

    def must_hand_out(self, step: int | None, name: str) -> bool:
        """Whether an open batch still has to hand out this trajectory."""
        batch = self.by_step.get(step) if step is not None else None
        return batch is not None and not batch.closed and name not in batch.consumed and name not in batch.aborted

    def ready(self) -> int:
        """Finished trajectories that open batches still have to hand out."""
        return sum(len(one.unconsumed()) for one in self.by_step.values() if not one.closed)

    def waits_for(self, name: str) -> bool:
        """Whether any open batch still has to hand out the trajectory."""
        return any(
            not one.closed and name in one.finished and name not in one.consumed for one in self.by_step.values()
        )

    def waiting(self) -> dict[str, int]:
        """Finished trajectories that open batches still have to hand out → their step."""
        return {name: step for step, one in self.by_step.items() if not one.closed for name in one.unconsumed()}

    def waiting_versions(self) -> list[int]:
        """First weight versions of finished trajectories that open batches still have to hand out."""
        batches = [one for one in self.by_step.values() if not one.closed]
        waiting = [one.version for batch in batches for one in batch.unconsumed().values()]
        return [version for version in waiting if version is not None]

    def abort(self, step: int, message: AbortTrajectory) -> BatchProgress:
        """A trajectory ended early."""
        self.get(step)
        self._write({"event": "abort", "step": step, "trajectory": message.trajectory})
        return self.progress(step)

    def close(self, step: int) -> BatchProgress:
        """The batch is over; late ends are still counted."""
        if not self.get(step).closed:
            self._write({"event": "close", "step": step, "time": self._wall()})
            self._forget_old()
        return self.progress(step)

    def _forget_old(self) -> None:
        """Of the batches that are closed only the newest are kept: a run has more of them than there is memory for."""
        closed = sorted((batch.closed_at, step) for step, batch in self.by_step.items() if batch.closed_at is not None)
        for _, step in closed[:-_KEPT_CLOSED]:
            del self.by_step[step]
        if self._storage is not None and len(closed) > _KEPT_CLOSED:
            self._storage.keep_events(set(self.by_step))

    def _write(self, event: dict[str, Any]) -> None:
        if self._storage is not None:
            self._storage.write_event(event)
        self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "open":
            spec = OpenBatch.model_validate(event["spec"])
            self.by_step[spec.step] = Batch(spec=spec, opened_at=event["time"])
            return
        batch, name = self.by_step.get(event["step"]), event.get("trajectory", "")
        if batch is None:
            return  # of a batch that was forgotten, and its opening is gone from the log
        if kind == "start":
            batch.started.add(name)
            if any(step < event["step"] and not one.closed for step, one in self.by_step.items()):
                self.refill = True
        elif kind == "finish":
            batch.started.add(name)
            batch.finished[name] = Finished(event["group"], event.get("version"))
            batch.aborted.discard(name)
        elif kind == "abort":
            batch.started.add(name)
            batch.aborted.add(name)
            batch.finished.pop(name, None)
        elif kind == "consume":
            batch.consumed |= set(event["trajectories"])
            if event.get("key") is not None:
                batch.last_consumption = (event["key"], event["trajectories"])
        elif kind == "close":
            batch.closed_at = event["time"]
            self.refill = any(step > event["step"] and one.started for step, one in self.by_step.items())

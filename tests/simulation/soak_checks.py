"""What must hold during the soak, always and at its end; each breach is a sentence with rollout, time and event."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from soak_cluster import NAMESPACE, TRAINERS, is_ready
from soak_demand import DAY, HOUR

from pearl_api import names
from pearl_operator import kinds
from pearl_operator.clock import from_rfc3339
from pearl_operator.loans.record import ACTIVE
from pearl_operator.ports import RolloutKey
from pearl_operator.report import MAX_STATUS_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from soak import Scene
    from soak_cluster import Object

    from pearl_operator.kinds import Kind

FORCED = frozenset({"SpotNotice", "ReclaimRequested", "BudgetLimit", "Idle", "Suspended"})
"""Reasons of targets that say themselves that they had to be."""
GRACE_SECONDS = 75.0
"""Between a cause and the target that it forces: a look at rest, and an apply that conflicts."""
QUIET_PER_HOUR = 3
"""Targets in an hour in which nothing happened."""
PER_EVENT = 1
"""Further targets for each event of this hour and the one before."""
OPTIONAL_PER_HOUR = 6
"""Optional targets in any hour; half of what `minDwellSeconds` of 300 allows."""
SETTLE_SECONDS = 900.0
"""Start 300 s, drain 30 s, slack 30 s, the longest pause after failures 300 s, and a few looks."""
SHRINK_SECONDS = 180.0
"""From a smaller budget until no pod is above it: drain 30 s, one after the other."""
RECLAIM_SLACK_SECONDS = 15.0
GROWTH_MIB = 24.0
"""Of resident memory between the first week and the end."""
LEAST_SIZES = 4
"""Days from which on growth is judged."""
MEMORY_BYTES = 4096
"""Of `status.memory`."""


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that must not be."""

    seconds: float
    rollout: str
    what: str

    def __str__(self) -> str:
        day, rest = divmod(self.seconds, DAY)
        clock = f"{int(rest / HOUR):02}:{int(rest % HOUR / 60):02}:{rest % 60:04.1f}"
        return f"day {int(day)} {clock}, {self.rollout}: {self.what}"


@dataclass
class Seen:
    """Of one rollout."""

    target: Object | None = None
    changed_at: float = float("-inf")
    """When the target changed last."""
    reached: bool = False
    """The fleet was what the target says."""
    disturbed_at: float = 0.0
    over_since: float | None = None
    unsettled_since: float | None = None
    unsettled_told: bool = False
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=200))
    """(time, what) of what forces changes."""
    budgets: deque[tuple[float, Object]] = field(default_factory=lambda: deque(maxlen=20))
    targets_by_hour: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    optional_by_hour: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    events_by_hour: dict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class Checks:
    """Watches `scene`."""

    scene: Scene
    breaches: list[Breach] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=lambda: defaultdict(Seen))
    optional: int = 0
    forced: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Targets that had to be, by reason."""
    reclaims: list[float] = field(default_factory=list)
    """Seconds until operator and record had let go."""
    settles: list[float] = field(default_factory=list)
    sizes: list[dict[str, float]] = field(default_factory=list)
    """Once a day."""
    _pods: dict[str, tuple[int, str, bool]] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    """By UID: role epoch, role, ready."""
    _outages: int = 0
    _healthy_since: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scene.kube.watchers.append(self._watch)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def breach(self, rollout: str, what: str) -> None:
        self.breaches.append(Breach(self.now, rollout, what))

    # --- what happened

    def told(self, rollout: str, event: str) -> None:
        """Something that forces changes."""
        seen = self.seen[rollout]
        seen.events.append((self.now, event))
        seen.events_by_hour[int(self.now / HOUR)] += 1
        seen.disturbed_at = self.now

    def told_all(self, event: str) -> None:
        for rollout in list(self.seen):
            self.told(rollout, event)

    def noticed(self, rollout: str) -> None:
        """Something that makes changes likely, though none is forced."""
        seen = self.seen[rollout]
        seen.disturbed_at = self.now
        seen.events_by_hour[int(self.now / HOUR)] += 1

    @contextmanager
    def outage(self, what: str) -> Iterator[None]:
        """The operator cannot do its work; what was forced meanwhile happens afterwards."""
        began = self.now
        self._outages += 1
        try:
            yield
        finally:
            self._outages -= 1
            self._healthy_since = self.now
            self._repeat(began, what)

    def restarted(self) -> None:
        """A new operator process: what happened without one is done now."""
        self._healthy_since = self.now
        self._repeat(self.now - 120.0, "the operator was away")

    def _repeat(self, since: float, what: str) -> None:
        for rollout, seen in self.seen.items():
            if what.startswith("new pods") or any(at >= since - GRACE_SECONDS for at, _ in seen.events):
                self.told(rollout, f"{what} until now")
            seen.disturbed_at = self.now

    def healthy_since(self) -> float | None:
        """Since when an operator runs and nothing is away; None = not now."""
        up = self.scene.process.up_since
        return None if up is None or self._outages else max(up, self._healthy_since)

    # --- watches

    def _watch(self, event: str, kind: Kind, body: Object) -> None:
        if kind is kinds.ROLLOUT:
            self._rollout(event, body)
        elif kind is kinds.POD and names.LABEL_ROLE in (body["metadata"].get("labels") or {}):
            self._pod(event, body)

    def _rollout(self, event: str, body: Object) -> None:
        name = body["metadata"]["name"]
        seen = self.seen[name]
        if event == "DELETED":
            seen.target, seen.reached, seen.over_since = None, False, None
            seen.budgets.clear()
            return
        edited = body["spec"] != (seen.budgets[-1][1] if seen.budgets else None)
        if edited:
            seen.budgets.append((self.now, body["spec"]))
            self.told(name, f"the spec was edited (generation {body['metadata']['generation']})")
        target = (body.get("status") or {}).get("target")
        if target is not None and target["id"] != (seen.target or {}).get("id"):
            self._new_target(name, seen, target)
        seen.reached = seen.reached or (seen.target is not None and _reason(body, "PlanProgressing") == "AtTarget")

    def _new_target(self, name: str, seen: Seen, target: Object) -> None:
        before, seen.target = seen.target, target
        roles = [slot["role"] for slot in target["slots"]]
        if ("prefill" in roles) != ("decode" in roles):
            self.breach(name, f"target {target['id']} has one stage only: {', '.join(roles)}")
        if before is not None and target["id"] < before["id"]:
            self.breach(name, f"target {target['id']} follows {before['id']}")
        seen.targets_by_hour[int(self.now / HOUR)] += 1
        cause = self._cause(seen, before, target)
        if cause is not None:
            self.forced[cause] += 1
        else:
            self.optional += 1
            seen.optional_by_hour[int(self.now / HOUR)] += 1
            self._dwell(name, seen, target)
        seen.changed_at = seen.disturbed_at = self.now
        seen.reached = False

    def _cause(self, seen: Seen, before: Object | None, target: Object) -> str | None:
        """Why the target had to be; None = it is optional."""
        if target["reason"] in FORCED:
            return str(target["reason"])
        if before is None:
            return "first"
        wall = self.scene.process.clock.now()
        if not seen.reached and (from_rfc3339(before["deadline"]) or wall) < wall:
            return "deadline of the target before"
        since = max(seen.changed_at, self.now - GRACE_SECONDS) - 1.0
        return "event" if any(at >= since for at, _ in seen.events) else None

    def _dwell(self, name: str, seen: Seen, target: Object) -> None:
        dwell = seen.budgets[-1][1]["policy"]["hysteresis"]["minDwellSeconds"]
        passed = self.now - seen.changed_at
        if passed < dwell - 1.0:
            last = seen.events[-1] if seen.events else (0.0, "nothing")
            self.breach(
                name,
                f"optional target {target['id']} ({target['reason']}) {passed:.0f} s after the change before, within "
                f"minDwellSeconds {dwell}; last event {self.now - last[0]:.0f} s ago: {last[1]}",
            )

    def _pod(self, event: str, body: Object) -> None:
        meta, labels = body["metadata"], body["metadata"]["labels"]
        name, uid = labels[names.LABEL_ROLLOUT], meta["uid"]
        if event == "DELETED":
            self._pods.pop(uid, None)
            self._failed.discard(uid)
            return
        epoch, role = int(labels[names.LABEL_ROLE_EPOCH]), labels[names.LABEL_ROLE]
        before = self._pods.get(uid)
        if before is not None and (epoch < before[0] or (epoch == before[0] and role != before[1])):
            self.breach(name, f"{meta['name']} went from {before[:2]} to {(epoch, role)}: role epochs grow")
        self._pods[uid] = (epoch, role, is_ready(body))
        if (body.get("status") or {}).get("phase") == "Failed" and uid not in self._failed:
            self._failed.add(uid)
            self.told(name, f"{meta['name']} failed")
        if labels[names.LABEL_ZONE] == names.Zone.BORROWED:
            if before is not None and before[2] != is_ready(body):
                self.told(name, f"{meta['name']} {'serves' if is_ready(body) else 'serves no more'}")
        elif event == "ADDED":
            self._within_budget(name, labels[names.LABEL_ZONE], f"after {meta['name']} was made")

    def gpus(self, rollout: str, zone: str) -> int:
        """Held by pods of a zone, those that end included."""
        found = 0
        for body in self.scene.cluster.workers.get(rollout, {}).values():
            if body["metadata"]["labels"][names.LABEL_ZONE] == zone:
                found += int(body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        return found

    def _within_budget(self, rollout: str, zone: str, when: str) -> None:
        held = self.gpus(rollout, zone)
        lately = [spec for at, spec in self.seen[rollout].budgets if at >= self.now - 30.0]
        allowed = max(limit(spec, zone) for spec in [*lately, self.seen[rollout].budgets[-1][1]])
        if held > allowed:
            self.breach(rollout, f"{held} {zone} GPUs, and the budget is {allowed}, {when}")

    # --- reclaims

    def reclaiming(self, rollout: str, pod: str, seconds: float) -> None:
        """A trainer pod takes its GPUs back."""
        slots = {
            int(body["metadata"]["labels"][names.LABEL_SLOT])
            for body in self.scene.cluster.workers.get(rollout, {}).values()
            if body["metadata"]["labels"].get(names.LABEL_LOAN) == pod
        }
        task = asyncio.create_task(self._let_go(rollout, pod, slots, seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, rollout: str, pod: str, slots: set[int], seconds: float) -> None:
        began = self.now
        while not self._is_free(rollout, pod, slots):
            healthy = self.healthy_since()
            if healthy is not None and self.now - max(began, healthy) > seconds + RECLAIM_SLACK_SECONDS:
                self.breach(rollout, f"{self.now - began:.0f} s after {pod} took its GPUs back they are still planned")
                return
            await asyncio.sleep(1.0)
        self.reclaims.append(self.now - began)

    def _is_free(self, rollout: str, pod: str, slots: set[int]) -> bool:
        objects = self.scene.kube.objects
        loan = objects.get((kinds.LOAN.plural, TRAINERS, pod))
        target = (objects.get((kinds.ROLLOUT.plural, NAMESPACE, rollout), {}).get("status") or {}).get("target") or {}
        planned = {slot["slot"] for slot in target.get("slots", [])}
        active = loan is not None and (loan.get("status") or {}).get("phase") in [phase.value for phase in ACTIVE]
        return not active and planned.isdisjoint(slots)

    # --- from time to time

    def sample(self) -> None:
        """Twice a minute."""
        for name, seen in list(self.seen.items()):
            body = self.scene.kube.objects.get((kinds.ROLLOUT.plural, NAMESPACE, name))
            if body is not None and seen.budgets:
                self._check_budget(name, seen)
                self._check_settled(name, seen, body)

    def _check_budget(self, name: str, seen: Seen) -> None:
        spec = seen.budgets[-1][1]
        over = [zone for zone in ("reserved", "elastic") if self.gpus(name, zone) > limit(spec, zone)]
        healthy = self.healthy_since()
        if not over or healthy is None:
            seen.over_since = None
        elif seen.over_since is None:
            seen.over_since = self.now
        elif self.now - seen.over_since > SHRINK_SECONDS:
            self.breach(name, f"{self.gpus(name, over[0])} {over[0]} GPUs are above {limit(spec, over[0])} for 180 s")
            seen.over_since = self.now + DAY

    def _check_settled(self, name: str, seen: Seen, body: Object) -> None:
        healthy = self.healthy_since()
        if healthy is None:
            return
        calm = self.now - max(healthy, seen.disturbed_at)
        problem = unsettled(body)
        if problem is None:
            if seen.unsettled_since is not None:
                self.settles.append(self.now - seen.disturbed_at)
            seen.unsettled_since, seen.unsettled_told = None, False
            return
        seen.unsettled_since = self.now if seen.unsettled_since is None else seen.unsettled_since
        if calm > SETTLE_SECONDS and not seen.unsettled_told:
            seen.unsettled_told = True
            self.breach(name, f"not settled {calm:.0f} s after the last event ({_last(seen)}): {problem}")

    def hours(self, end_seconds: float) -> dict[str, list[int]]:
        """Targets by hour, of hours in which nothing happened and of the others; breaches where there were too many."""
        quiet: list[int] = []
        busy: list[int] = []
        for name, seen in self.seen.items():
            for hour in range(1, int(end_seconds / HOUR)):
                events = seen.events_by_hour.get(hour, 0)
                near = events + seen.events_by_hour.get(hour - 1, 0)
                targets = seen.targets_by_hour.get(hour, 0)
                bound = QUIET_PER_HOUR + PER_EVENT * near
                (quiet if near == 0 else busy).append(targets)
                if targets > bound:
                    said = f"{targets} targets in this hour with {near} events: at most {bound}"
                    self.breaches.append(Breach(hour * HOUR, name, said))
                if seen.optional_by_hour.get(hour, 0) > OPTIONAL_PER_HOUR:
                    said = f"{seen.optional_by_hour[hour]} optional targets in this hour: at most {OPTIONAL_PER_HOUR}"
                    self.breaches.append(Breach(hour * HOUR, name, said))
        return {"quiet": quiet, "busy": busy}

    # --- leaks

    def daily(self) -> None:
        """Sizes of everything that could grow, and what must not be left."""
        gc.collect()
        sizes = {"day": self.now / DAY, "rss_mib": rss_mib(), "objects": float(len(gc.get_objects()))}
        sizes["api_objects"] = float(len(self.scene.kube.objects))
        sizes["tasks"] = float(len(asyncio.all_tasks()))
        core, service = self.scene.process.core, self.scene.process.service
        if core is not None and service is not None:
            index = core.index
            sizes["index"] = float(sum(len(t) for t in (index.pods, index.nodes, index.loans, index.rollouts)))
            sizes["loan_memories"] = float(len(service._world.memories))
            sizes["buckets"] = float(len(service._world.limits._buckets))
            sizes["series"] = float(sum(len(family.samples) for family in core.metrics.registry.collect()))
            pasts = [loop._past for loop in core.supervisor.loops.values()]
            sizes["served"] = float(sum(len(past.served) for past in pasts))
            sizes["remakes"] = float(sum(len(past.remakes._failed) for past in pasts))
        for name in self.seen:
            body = self.scene.kube.objects.get((kinds.ROLLOUT.plural, NAMESPACE, name))
            if body is None:
                continue
            status = body.get("status") or {}
            size, memory = len(json.dumps(status)), len(status.get("memory") or "")
            sizes["status_bytes"] = max(sizes.get("status_bytes", 0.0), size)
            sizes["memory_bytes"] = max(sizes.get("memory_bytes", 0.0), memory)
            if size > MAX_STATUS_BYTES:
                self.breach(name, f"the status has {size} bytes")
            if memory > MEMORY_BYTES:
                self.breach(name, f"status.memory has {memory} bytes")
        self.sizes.append(sizes)

    def forgotten(self, name: str) -> None:
        """Nothing is left of a rollout that was deleted."""
        for left in self.left_of(name):
            self.breach(name, f"it was deleted, and left is {left}")

    def left_of(self, name: str) -> list[str]:
        key = RolloutKey(NAMESPACE, name)
        left = [
            f"{plural} {where}/{one}"
            for (plural, where, one), body in self.scene.kube.objects.items()
            if plural != kinds.EVENT.plural and (body["metadata"].get("labels") or {}).get(names.LABEL_ROLLOUT) == name
        ]
        core, service = self.scene.process.core, self.scene.process.service
        if core is None or service is None:
            return left
        tables = {"index": core.index.rollouts, "loops": core.supervisor.loops, "ring": core.ring._entries}
        left += [f"an entry of {what}" for what, table in tables.items() if key in table]
        left += [f"pod {pod.address.name} in the index" for pod in core.index.pods.values() if pod.rollout == key]
        left += {
            f"series of {family.name}"
            for family in core.metrics.registry.collect()
            for sample in family.samples
            if sample.labels.get("rollout") == name
        }
        if key in service._world.gate.known():
            left.append("the last look in the loan gate")
        return left

    def nothing_left(self) -> None:
        """After everything was deleted."""
        for name in self.scene.rollouts:
            self.forgotten(name)
        objects = self.scene.kube.objects
        kept = {kinds.NODE.plural, kinds.EVENT.plural}
        left = sorted(
            f"{plural} {name}" for plural, _, name in objects if plural not in kept and name != names.RELEASE_SECRET
        )
        if left:
            self.breach("all", f"everything was deleted, and left are {len(left)} objects: {', '.join(left[:5])}")
        core, service = self.scene.process.core, self.scene.process.service
        if core is None or service is None:
            self.breach("all", "no operator runs at the end")
            return
        tables = {
            "index.pods": core.index.pods,
            "index.loans": core.index.loans,
            "loan memories": service._world.memories,
            "grants under way": service._world.granting,
            "watched deaths": service._follower.overlaps.open,
        }
        for what, table in tables.items():
            if table:
                self.breach("all", f"everything was deleted, and {what} has {len(table)} entries: {list(table)[:3]}")

    def growth(self, most_mib: float) -> None:
        """Memory between the first week (or half, of a shorter run) and the end."""
        if len(self.sizes) < LEAST_SIZES:
            return
        early = self.sizes[min(6, len(self.sizes) // 2)]
        late = self.sizes[-1]
        if late["rss_mib"] - early["rss_mib"] > most_mib:
            grown = late["rss_mib"] - early["rss_mib"]
            self.breach("all", f"the process grew by {grown:.0f} MiB from day {early['day']:.0f} to the end")
        for what in ("tasks", "index", "loan_memories", "buckets", "series", "api_objects"):
            if late.get(what, 0.0) > 2.0 * early.get(what, 0.0) + 50.0:
                self.breach("all", f"{what} went from {early.get(what)} (day {early['day']:.0f}) to {late.get(what)}")


def limit(spec: Object, zone: str) -> int:
    """GPUs that a zone may have."""
    capacity = spec["capacity"]
    return int(capacity["reserved"]["gpus"] if zone == "reserved" else capacity.get("elastic", {}).get("maxGpus", 0))


def unsettled(body: Object) -> str | None:
    """What of a rollout is not as it should be when nothing happens; None = all is."""
    status = body.get("status") or {}
    if status.get("observedGeneration") != body["metadata"]["generation"]:
        return f"generation {body['metadata']['generation']} was not observed"
    found = {each["type"]: each for each in status.get("conditions", [])}
    progressing, capacity = found["PlanProgressing"], found["CapacityAvailable"]
    if capacity["status"] == "False" and capacity["reason"] == "NoGpus":
        return None  # pods that wait for a node may wait
    if progressing["reason"] != "AtTarget":
        return f"PlanProgressing {progressing['reason']}: {progressing.get('message')}"
    ready = found["Ready"]
    if ready["status"] != "True" and ready["reason"] not in ("Idle", "Suspended", "NoWorkers", "GatewayUnavailable"):
        return f"Ready {ready['reason']}: {ready.get('message')}"
    return None


def _reason(body: Object, condition: str) -> str | None:
    conditions = (body.get("status") or {}).get("conditions", [])
    return next((each["reason"] for each in conditions if each["type"] == condition), None)


def _last(seen: Seen) -> str:
    return seen.events[-1][1] if seen.events else "none"


def rss_mib() -> float:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0

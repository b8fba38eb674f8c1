"""Plays cases: a phase of the loan, the faults that come then, a reclaim, and what must hold."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from loans_chaos import faults as table
from loans_chaos.chaos_device import ENGINE_BYTES, STUCK_BYTES
from pearl_api.wire.worker import WorkerPhase
from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loans_chaos.faults import Fault
    from loans_chaos.phases import Phase
    from loans_chaos.scene import Scene

WITHIN_SECONDS = 12.0
"""Of every reclaim: longer than the lease, so that what ends by lease ends inside it."""
LATE_SECONDS = 1.0
"""How late the SDK's answer may be on a machine where everything competes for two cores."""
TRAINING_SECONDS = 0.5
AGAIN = 4
MISHAPS = (AssertionError, TimeoutError, OSError, RuntimeError, httpx.HTTPError)
"""What a case may end in where something does not hold."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to play."""

    phase: Phase
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.phase.name}: {' + '.join(fault.name for fault in self.faults)}"


@dataclass(slots=True)
class Played:
    """What happened."""

    name: str
    outcome: str = ""
    """Of the first reclaim: `Free`, or `NotReturned`."""
    via: str = ""
    killed: bool = False
    seconds: float = 0.0
    """Of the first reclaim, as the trainer measured it."""
    again: int = 0
    """Reclaims after the first until Free."""
    lasted: float = 0.0
    problems: list[str] = field(default_factory=list)
    why: str = ""
    last: bool = False
    """The scene cannot be used any more."""


def singles(phases: Sequence[Phase], faults: Sequence[Fault]) -> list[Case]:
    """Every fault at every phase."""
    return [Case(phase, (fault,)) for phase in phases for fault in faults if _fits(phase, (fault,))]


def pairs(phases: Sequence[Phase], faults: Sequence[Fault], count: int, seed: int) -> list[Case]:
    """`count` pairs of faults, each at a phase, drawn without repetition."""
    some = [
        Case(phase, tuple(sorted((one, other), key=lambda fault: fault.order)))
        for phase in phases
        for index, one in enumerate(faults)
        for other in faults[index + 1 :]
        if table.can_be_paired(one, other) and _fits(phase, (one, other))
    ]
    return random.Random(seed).sample(some, min(count, len(some)))


def _fits(phase: Phase, faults: Sequence[Fault]) -> bool:
    # Memory that was in use before the grant is no loan's, and an engine that does not run cannot be stuck.
    return phase.lent or not {table.MEMORY.name, table.STUCK.name} & {fault.name for fault in faults}


def plays(cases: Sequence[Case]) -> list[Callable[[Scene], Played]]:
    """What `report.run` takes."""
    return [partial(play, case) for case in cases]


def play(case: Case, scene: Scene) -> Played:
    """One case, from rest to rest."""
    played, began, overlaps = Played(case.name), time.monotonic(), len(scene.watch.overlaps)
    undo: list[Callable[[], None]] = []
    try:
        undo.extend(fault.prepare(scene) for fault in case.faults if fault.prepare)
        scene.look()
        case.phase.reach(scene)
        answer = _reclaim_amid(scene, case, undo)
        _judge(played, case, answer)
        _rest(scene, played, undo)
        case.phase.restore(scene)
        scene.settle()
        _check_borrowers(scene, played)
    except MISHAPS as error:
        played.problems.append(f"{type(error).__name__}: {error}")
        _start_over(scene, case, undo, played)
    if (seen := len(scene.watch.overlaps) - overlaps) > 0:
        played.problems.append(f"trainer and engine held the GPU at the same time in {seen} looks")
    played.lasted = time.monotonic() - began
    return played


def _reclaim_amid(scene: Scene, case: Case, undo: list[Callable[[], None]]) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    reclaim = threading.Thread(target=lambda: answers.append(scene.tell("reclaim", within=WITHIN_SECONDS)))
    if case.phase.inside:
        reclaim.start()
        wait_for(lambda: _is_over_or_draining(scene, answers), seconds=30, what="the reclaim has begun")
    undo.extend(fault.inject(scene) for fault in case.faults)
    case.phase.then(scene)
    if not case.phase.inside:
        reclaim.start()
    reclaim.join(timeout=150)
    assert answers, "the reclaim neither returned nor raised"
    return answers[0]


def _is_over_or_draining(scene: Scene, answers: list[dict[str, Any]]) -> bool:
    state = scene.agent()
    return bool(answers) or (state is not None and state.phase is not WorkerPhase.READY)


def _judge(played: Played, case: Case, answer: dict[str, Any]) -> None:
    played.outcome = "Free" if answer["free"] else "NotReturned"
    played.via, played.killed = answer.get("via", ""), answer.get("killed", False)
    played.seconds, played.why = answer.get("seconds", 0.0), answer.get("why", "")
    names = {fault.name for fault in case.faults}
    if played.seconds > WITHIN_SECONDS + LATE_SECONDS:
        late = f"{played.outcome} after {played.seconds:.1f} s, and the deadline was {WITHIN_SECONDS:g} s"
        played.problems.append(late)
    if answer["free"]:
        if answer["others"] in (ENGINE_BYTES, STUCK_BYTES, ENGINE_BYTES + STUCK_BYTES):
            played.problems.append(f"a false Free: {answer['others'] >> 30} GiB of the GPU were still in use")
    elif not any(fault.keeps for fault in case.faults):
        played.problems.append(f"NotReturned: {played.why}")
    if table.MEMORY.name in names and answer["free"] and not played.problems:
        played.problems.append("Free although memory stayed")


def _rest(scene: Scene, played: Played, undo: list[Callable[[], None]]) -> None:
    """Train for a moment, mend what is broken, and get the GPU back where it has not come yet."""
    if played.outcome == "Free":
        time.sleep(TRAINING_SECONDS)
    while undo:
        undo.pop()()
    while played.outcome != "Free" and played.again < AGAIN:
        played.again += 1
        answer = scene.tell("reclaim", within=WITHIN_SECONDS)
        if answer["free"]:
            break
        if played.again == AGAIN:
            played.problems.append(f"not free though everything was mended: {answer['why']}")
    scene.tell("rest")


def _check_borrowers(scene: Scene, played: Played) -> None:
    if (count := len(scene.borrowers())) != 1:
        played.problems.append(f"{count} borrower pods instead of 1")


def _start_over(scene: Scene, case: Case, undo: list[Callable[[], None]], played: Played) -> None:
    """The next case needs a scene at rest, whatever became of this one."""
    try:
        while undo:
            undo.pop()()
        scene.tell("reclaim", within=WITHIN_SECONDS)
        scene.tell("rest")
        case.phase.restore(scene)
        scene.settle()
    except MISHAPS as error:
        played.problems.append(f"and the scene did not come to rest: {type(error).__name__}: {error}")
        played.last = True


def as_row(played: Played) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(played), "ok": not played.problems}

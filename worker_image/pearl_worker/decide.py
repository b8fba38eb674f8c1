"""What the agent does next; pure. Facts and wishes in, one step out; the loop in `worker` carries it out.

Level-based: no step remembers why it was chosen. Whatever happens in between (the engine dies, the loan is called
back, newer weights appear), the next look at the facts decides again.
"""

from dataclasses import dataclass
from enum import StrEnum

from pearl_api.names import Activity
from pearl_api.wire.worker import WorkerPhase


class Step(StrEnum):
    """One thing to do with the engine."""

    REST = "rest"
    START = "start"
    WAKE = "wake"
    LOAD = "load"
    PROVE = "prove"
    OPEN = "open"
    DRAIN = "drain"
    SLEEP = "sleep"
    VACATE = "vacate"  # give the device back within a deadline
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The engine as it is. The defaults describe no engine."""

    running: bool = False
    ever_started: bool = False
    asleep: bool = False
    half_awake: bool = False
    """A wake-up began and has not succeeded: it may take memory at any moment."""
    loaded: int | None = None
    """Version of whole weights; None = none, or half-loaded ones."""
    current: bool = False
    """Reached the wanted version since the last start or wake-up; it may serve."""
    proven: bool = False
    """Served a token since it was last touched."""
    served: bool = False
    """Served a token since its start."""
    gate_open: bool = False
    drained: bool = False
    """The gate is closed and nothing is inside."""
    vacated: bool = False
    """Asleep, and the device was seen free afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked of the worker."""

    stop: bool = False
    may_run: bool = True
    """Not borrowed, or under a live grant."""
    activity: Activity = Activity.ACTIVE
    wanted: int | None = 0
    """Version to serve; None = the manifest cannot be read yet."""
    loadable: bool = True
    """Loading `wanted` may be tried now."""
    restart: bool = False
    may_start: bool = True
    """The back-off after a crash is over."""


def next_step(facts: Facts, wish: Wish) -> Step:
    """The one thing to do now."""
    if wish.stop:
        return Step.STOP if facts.running else Step.REST
    if not wish.may_run:
        return Step.VACATE if facts.running and not facts.vacated else Step.REST
    if not facts.running:
        return Step.START if wish.may_start and wish.activity is not Activity.ASLEEP else Step.REST
    if wish.restart:
        return Step.RESTART
    if wish.activity is Activity.ASLEEP:
        return Step.REST if facts.asleep else Step.SLEEP
    return _towards_service(facts, wish)


def _towards_service(facts: Facts, wish: Wish) -> Step:  # noqa: PLR0911 - a decision list
    if facts.asleep:
        return Step.WAKE if wish.wanted is not None and wish.loadable else Step.REST
    if facts.loaded is None or (wish.wanted is not None and facts.loaded != wish.wanted):
        if wish.loadable and wish.wanted is not None:
            return Step.LOAD
        if facts.loaded is None:
            return Step.RESTART
    if not facts.current:
        return Step.REST  # in good health, but nobody may see its weights
    if not facts.proven:
        return Step.PROVE
    if wish.activity is Activity.DRAINING:
        return Step.REST if facts.drained else Step.DRAIN
    return Step.REST if facts.gate_open else Step.OPEN


def must_cut(running: Step, wish: Wish) -> bool:
    """Whether the step under way is to be broken off, because its purpose is gone and time matters."""
    if running in (Step.VACATE, Step.STOP):
        return False
    if wish.stop or not wish.may_run:
        return True
    return running is Step.DRAIN and wish.activity is not Activity.DRAINING


def phase(  # noqa: PLR0911 - a decision list
    facts: Facts, wish: Wish, running: Step, *, weights_failed: bool
) -> WorkerPhase:
    """The name of the present state, for readers outside."""
    if running in (Step.VACATE, Step.STOP, Step.SLEEP, Step.DRAIN):
        return WorkerPhase.DRAINING
    if not facts.running:
        return _phase_without_engine(facts, wish)
    if weights_failed and not facts.gate_open:
        return WorkerPhase.WEIGHTS_FAILED
    if facts.asleep:
        return WorkerPhase.WAKING if running is Step.WAKE else WorkerPhase.ASLEEP
    if facts.gate_open and facts.proven:
        return WorkerPhase.READY
    if facts.drained and wish.activity is Activity.DRAINING:
        return WorkerPhase.DRAINING
    return WorkerPhase.WAKING if facts.served else WorkerPhase.STARTING


def _phase_without_engine(facts: Facts, wish: Wish) -> WorkerPhase:
    if wish.stop:
        return WorkerPhase.STOPPED
    if not wish.may_run:
        return WorkerPhase.STOPPED if facts.ever_started else WorkerPhase.COLD
    return WorkerPhase.ASLEEP if wish.activity is Activity.ASLEEP else WorkerPhase.STARTING

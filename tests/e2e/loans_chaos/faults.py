"""What can go wrong, each as an object that breaks something and gives back how to mend it."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loans_chaos import processes
from loans_chaos.chaos_device import STUCK_BYTES, hold
from pearl_dev.fleet import wait_for
from pearl_dev.processes import Ledger
from pearl_dev.product import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from loans_chaos.scene import Scene

    Undo = Callable[[], None]

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
AHEAD_SECONDS = 5


def nothing() -> None:
    """To undo what needs no undoing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`keeps`: the GPU may stay away, so that `reclaim()` may raise `NotReturned` (it must never say free falsely).

    `order`: of two faults the lower comes first. `prepare` runs before the loan is brought to its phase, and is undone
    last.
    """

    name: str
    text: str
    inject: Callable[[Scene], Undo]
    keeps: bool = False
    order: int = 0
    prepare: Callable[[Scene], Undo] | None = None
    resource: str = ""
    """Faults of one resource are not paired."""


def _kill(role: str) -> Callable[[Scene], Undo]:
    def inject(scene: Scene) -> Undo:
        first = processes.first_of(scene.uid(role))
        processes.send([first] if first else [], signal.SIGKILL)
        return nothing

    return inject


def _kill_trainer(scene: Scene) -> Undo:
    """The SDK's process; its supervisor starts the next."""
    pids = processes.of_pod(scene.uid("trainer"))
    processes.send([pid for pid, inside in pids.items() if inside != 1], signal.SIGKILL)
    return nothing


def _cut(role: str) -> Callable[[Scene], Undo]:
    def inject(scene: Scene) -> Undo:
        sandbox, address = processes.sandbox_of(scene.uid("borrower")), scene.address(role)
        assert sandbox is not None
        assert processes.cut(sandbox, address)
        return lambda: _mended(processes.mend(sandbox, address))

    return inject


def _mended(_done: bool) -> None:
    return


def stop_api_server(seconds: float) -> Fault:
    """The API server does not answer for so long."""

    def inject(scene: Scene) -> Undo:
        server, since = Ledger(scene.cluster.paths.ledger).processes()["kube-apiserver"], time.monotonic()
        processes.send([server.pid], signal.SIGSTOP)

        def undo() -> None:
            time.sleep(max(0.0, seconds - (time.monotonic() - since)))
            processes.send([server.pid], signal.SIGCONT)

        return undo

    text = f"the API server stands still for {seconds:.0f} s"
    return Fault("api-stopped", text, inject, order=9, resource="api")


def _second_operator(scene: Scene) -> Undo:
    def scale(replicas: int) -> None:
        scene.kubectl("-n", NAMESPACE, "scale", "deployment/pearl-operator", f"--replicas={replicas}")

    scale(2)
    wait_for(lambda: len(_running_operators(scene)) == 2, seconds=240, what="two operators run")
    return lambda: scale(1)


def _running_operators(scene: Scene) -> list[str]:
    pods = scene.component("operator")
    return [pod["metadata"]["name"] for pod in pods if processes.first_of(pod["metadata"]["uid"])]


def _freeze_leader(scene: Scene) -> Undo:
    """The leader stands still until the other has taken over, then goes on as if it still led."""
    holder = _holder(scene)
    leader = next(pod for pod in scene.component("operator") if holder.startswith(pod["metadata"]["name"]))
    first = processes.first_of(leader["metadata"]["uid"])
    assert first is not None
    processes.send([first], signal.SIGSTOP)

    def undo() -> None:
        wait_for(lambda: _holder(scene) not in ("", holder), seconds=120, what="the other operator leads")
        processes.send([first], signal.SIGCONT)
        time.sleep(3)  # the time in which it could do harm

    return undo


def _holder(scene: Scene) -> str:
    leases = scene.api.items(LEASES)
    return next((str(lease["spec"].get("holderIdentity") or "") for lease in leases), "")


def _freeze_engine(scene: Scene) -> Undo:
    """The engine's processes stand still: it ignores sleep, and everything else but SIGKILL."""
    state = scene.agent()
    inside = state.engine_pid if state else None
    pids = processes.group_of(scene.uid("borrower"), inside) if inside else []
    processes.send(pids, signal.SIGSTOP)
    return lambda: processes.send(pids, signal.SIGCONT)


def _keep_memory(scene: Scene) -> Undo:
    return hold(scene.device, STUCK_BYTES)


def _move_clocks(scene: Scene) -> Undo:
    def move(seconds: int) -> None:
        scene.set_clock("agent", seconds)
        scene.set_clock("trainer", -seconds)

    move(AHEAD_SECONDS)
    return lambda: move(0)


NONE = Fault("nothing", "nothing goes wrong", lambda _scene: nothing)
OPERATOR = Fault("operator-killed", "the operator's process is killed", _kill("operator"), resource="operator")
GATEWAY = Fault("gateway-killed", "the gateway's process is killed", _kill("gateway"), resource="gateway")
AGENT = Fault("agent-killed", "the worker agent is killed, and its engine with it", _kill("borrower"), resource="agent")
TRAINER = Fault(
    "trainer-killed", "the trainer's process is killed and started again", _kill_trainer, resource="trainer"
)
CUT = Fault("operator-cut", "no packets between operator and worker agent", _cut("operator"), order=-1)
TRAINER_CUT = Fault("trainer-cut", "no packets between trainer and worker agent", _cut("trainer"), keeps=True, order=-1)
TWO = Fault(
    "two-operators",
    "the leading operator stands still until another leads, then goes on",
    _freeze_leader,
    prepare=_second_operator,
    resource="operator",
)
STUCK = Fault("engine-stuck", "the engine ignores sleep", _freeze_engine, order=-1, resource="engine")
MEMORY = Fault("memory-stays", "device memory stays, whoever is killed", _keep_memory, keeps=True, resource="memory")
CLOCKS = Fault("clocks-off", "agent's clock set 5 s ahead, trainer's 5 s back", _move_clocks, order=-1)


def every(api_stopped_seconds: float = 60.0) -> list[Fault]:
    """All of them."""
    api = stop_api_server(api_stopped_seconds)
    return [NONE, OPERATOR, GATEWAY, AGENT, TRAINER, CUT, TRAINER_CUT, TWO, STUCK, MEMORY, CLOCKS, api]


def can_be_paired(one: Fault, other: Fault) -> bool:
    """Not with nothing, not two of one thing, and no election of a leader without an API server."""
    if NONE in (one, other) or one.name == other.name or (one.resource and one.resource == other.resource):
        return False
    return {one.resource, other.resource} != {"api", "operator"} or TWO not in (one, other)

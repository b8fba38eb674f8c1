"""Where a loan can be when something breaks: how it is brought there, and back to rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loans_chaos.scene import LONG_SECONDS
from pearl_api.names import Activity
from pearl_api.wire.worker import WorkerPhase
from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from loans_chaos.scene import Scene

COLOCATED = {"mode": "Colocated", "ratio": None}


def nothing(_scene: Scene) -> None:
    """Stay where it is."""


@dataclass(frozen=True, slots=True)
class Phase:
    """`reach` comes before the fault, `then` right after it, and then the trainer reclaims.

    `inside`: the fault comes when the reclaim has begun.
    """

    name: str
    text: str
    reach: Callable[[Scene], None]
    then: Callable[[Scene], None] = nothing
    restore: Callable[[Scene], None] = nothing
    inside: bool = False
    lent: bool = True
    """Something is in force when the fault comes."""


def lend(scene: Scene) -> None:
    """Offer until the agent has a grant; the SDK repeats the offer while the last loan cools down."""
    scene.tell("lend")
    scene.until_agent("the grant", lambda state: state.loan is not None and state.loan.granted)


def serve(scene: Scene) -> None:
    """Until the gateway routes to the borrowed worker."""
    lend(scene)
    scene.until_agent("the engine is ready", lambda state: state.phase is WorkerPhase.READY)
    uid = scene.uid("borrower")

    def routed() -> bool:
        return any(w.uid == uid and w.ready and w.activity is Activity.ACTIVE for w in scene.routed())

    wait_for(routed, seconds=LONG_SECONDS, what="the gateway routes to the borrowed worker")


def work(scene: Scene) -> None:
    """Until it has turns inside."""
    serve(scene)
    _busy(scene, 60, 1200)


def _busy(scene: Scene, prompt_tokens: int, max_tokens: int, at_once: int = 1) -> None:
    uid = scene.uid("borrower")

    def inside() -> bool:
        for _ in range(at_once):
            scene.load.submit(prompt_tokens, max_tokens)
        return any(w.uid == uid and w.in_flight for w in scene.routed())

    wait_for(inside, seconds=90, what="the borrowed worker has turns inside", last=scene.routed)


def flip(scene: Scene) -> None:
    """Until its role is being changed."""
    serve(scene)
    before = _label(scene, "role")
    scene.fleet.patch({"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": scene.reserved}})
    wait_for(lambda: _label(scene, "role") != before, seconds=90, what="the borrowed worker changes its role")


def _label(scene: Scene, name: str) -> str:
    pod = next(pod for pod in scene.borrowers() if pod["metadata"]["uid"] == scene.uid("borrower"))
    return str(pod["metadata"]["labels"][f"pearl.dev/{name}"])


def pin(scene: Scene) -> None:
    """Until it prefills for others, whose KV is pinned."""
    flip(scene)
    wait_for(lambda: _label(scene, "role") == "prefill", seconds=90, what="the borrowed worker does the prefill")
    _busy(scene, 1200, 40, at_once=12)


def update(scene: Scene) -> None:
    """Until newer weights are published, which the agent is about to load."""
    serve(scene)
    scene.publish()
    scene.until_agent("the manifest was seen", lambda state: state.wanted_version == scene.version, 60)


def drain(scene: Scene) -> None:
    """Until the operator drains it, because the rollout is suspended."""
    serve(scene)
    scene.fleet.patch({"suspend": True})
    wait_for(lambda: _label(scene, "activity") == Activity.DRAINING, seconds=90, what="the operator drains it")


def cool(scene: Scene) -> None:
    """Until it was reclaimed and given up again."""
    serve(scene)
    assert scene.tell("reclaim", within=30)["free"]
    scene.tell("rest")


def _colocated(scene: Scene) -> None:
    scene.fleet.patch(COLOCATED)


def _resume(scene: Scene) -> None:
    scene.fleet.patch({"suspend": False})
    scene.fleet.wait_ready(scene.reserved, seconds=LONG_SECONDS)


def _offer(scene: Scene) -> None:
    scene.tell("lend")


EVERY = (
    Phase("offer", "the GPU is offered", nothing, then=_offer, lent=False),
    Phase("wake", "its engine starts or wakes", lend),
    Phase("serve", "it serves, with turns inside", work),
    Phase("flip", "its role is being changed", flip, restore=_colocated),
    Phase("pins", "it prefills, with KV pinned for others", pin, restore=_colocated),
    Phase("update", "newer weights are being loaded", update),
    Phase("drain", "the operator drains it", drain, restore=_resume),
    Phase("reclaim", "the reclaim has begun", work, inside=True),
    Phase("cool", "it was given back a moment ago", cool, lent=False),
)

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


def _busy(scene: Scene, prompt_tokens: int, max_tokens: int) -> None:
    uid = scene.uid("borrower")

    def inside() -> bool:
        scene.load.submit(prompt_tokens, max_tokens)
        return any(w.uid == uid and w.in_flight for w in scene.routed())

    wait_for(inside, seconds=90, what="the borrowed worker has turns inside")


def flip(scene: Scene) -> None:
    """Until its role is being changed."""
    serve(scene)
    before = _role(scene)
    scene.fleet.patch({"mode": "Disaggregated", "ratio": {"prefill": 1, "decode": scene.reserved}})
    wait_for(lambda: _role(scene) != before, seconds=90, what="the borrowed worker changes its role")


def _role(scene: Scene) -> str:
    pod = next(pod for pod in scene.borrowers() if pod["metadata"]["uid"] == scene.uid("borrower"))
    return str(pod["metadata"]["labels"]["pearl.dev/role"])


def pin(scene: Scene) -> None:
    """Until it prefills for others, whose KV is pinned."""
    flip(scene)
    wait_for(lambda: _role(scene) == "prefill", seconds=90, what="the borrowed worker does the prefill")
    _busy(scene, 1200, 40)


def update(scene: Scene) -> None:
    """Until newer weights are published, which the agent is about to load."""
    serve(scene)
    scene.publish()
    scene.until_agent("the manifest was seen", lambda state: state.wanted_version == scene.version, 60)


def drain(scene: Scene) -> None:
    """Until the operator drains it, because borrowers are to have another template."""
    serve(scene)
    scene.change_template()
    scene.until_agent("the drain", lambda state: state.activity is not Activity.ACTIVE, 90)


def cool(scene: Scene) -> None:
    """Until it was reclaimed and given up again."""
    serve(scene)
    assert scene.tell("reclaim", within=30)["free"]
    scene.tell("rest")


def _colocated(scene: Scene) -> None:
    scene.fleet.patch(COLOCATED)


def _offer(scene: Scene) -> None:
    scene.tell("lend")


EVERY = (
    Phase("offer", "the GPU is offered", nothing, then=_offer, lent=False),
    Phase("wake", "its engine starts or wakes", lend),
    Phase("serve", "it serves, with turns inside", work),
    Phase("flip", "its role is being changed", flip, restore=_colocated),
    Phase("pins", "it prefills, with KV pinned for others", pin, restore=_colocated),
    Phase("update", "newer weights are being loaded", update),
    Phase("drain", "the operator drains it", drain),
    Phase("reclaim", "the reclaim has begun", work, inside=True),
    Phase("cool", "it was given back a moment ago", cool, lent=False),
)

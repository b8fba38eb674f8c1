"""A trainer of one GPU pod and a driver pod without a GPU: the driver dies, alone or with its group."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from loans_chaos import processes
from loans_chaos.phases import serve
from loans_chaos.runner import LATE_SECONDS, WITHIN_SECONDS, Played
from loans_chaos.scene import POD, TRAINERS, Scene
from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE_SECONDS = 8.0
VACATE_SECONDS = 10.0
"""What an agent takes at most, after the lease, of a rollout with the default deadlines."""


def driver_killed(scene: Scene) -> Played:
    """The driver's process dies; the one that follows takes the GPUs back."""
    played, began = Played("group serves: driver-killed"), time.monotonic()
    serve(scene)
    pids = processes.of_pod(scene.uid("driver"))
    processes.send([pid for pid, inside in pids.items() if inside != 1], signal.SIGKILL)
    answer = scene.tell("reclaim", within=WITHIN_SECONDS)
    played.outcome, played.via = "Free" if answer["free"] else "NotReturned", answer.get("via", "")
    played.seconds, played.why = answer.get("seconds", 0.0), answer.get("why", "")
    if not answer["free"]:
        played.problems.append(f"NotReturned: {played.why}")
    elif answer["others"]:
        played.problems.append(f"a false Free: {answer['others'] >> 30} GiB of the GPU were still in use")
    scene.tell("rest")
    scene.settle()
    played.lasted = time.monotonic() - began
    return played


def group_deleted(scene: Scene) -> Played:
    """Driver and GPU pod are deleted without grace while lent: the engine ends with its lease, or with its owner."""
    played, began = Played("group serves: driver and pods deleted"), time.monotonic()
    serve(scene)
    deleted = time.monotonic()
    scene.kubectl("-n", TRAINERS, "delete", "pod", POD, "driver-0", "--grace-period=0", "--force", "--wait=false")
    most = LEASE_SECONDS + VACATE_SECONDS + LATE_SECONDS
    try:
        wait_for(lambda: not scene.shares.others(), seconds=most, what="no engine holds the GPU")
        played.outcome, played.via, played.seconds = "Free", "lease or owner", time.monotonic() - deleted
        wait_for(lambda: not scene.borrowers(), seconds=120, what="the borrower ended with its owner")
    except TimeoutError as error:
        played.problems.append(str(error))
    scene.start_trainer()
    played.lasted = time.monotonic() - began
    return played


EVERY: tuple[Callable[[Scene], Played], ...] = (driver_killed, group_deleted)

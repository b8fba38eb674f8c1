"""Measures role flips under load on the real local cluster: from the decision to the first token in the new role.

    python tests/bench/flips.py [--flips 100] [--emulated] [--json FILE] [--page DIRECTORY]

Operator, gateway, agents and (without `--emulated`) vLLM are the real ones; requests never stop. Each flip moves one
worker between prefill and decode.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("e2e", "support", "bench")]

from figures import print_rows  # noqa: E402
from flips_page import Flip, Measured, rows, write_page  # noqa: E402
from loans_chaos.stage import cluster, rollout  # noqa: E402
from traffic import steady  # noqa: E402

from pearl_dev.fleet import wait_for  # noqa: E402
from pearl_dev.progress import Progress  # noqa: E402

if TYPE_CHECKING:
    from pearl_api.wire.gateway import WorkerView
    from pearl_dev.fleet import Fleet

RATIOS = ({"prefill": 2, "decode": 1}, {"prefill": 1, "decode": 2})
GPUS = 3
LOOK_SECONDS = 0.05
"""More looks would be load of their own: at one every 20 ms requests took half as long again."""
PROMPT_TOKENS, ANSWER_TOKENS, STREAMS = 40, 16, 3


def flip(fleet: Fleet, ratio: dict[str, int]) -> Flip:
    """One flip, until the worker was seen to have served in its new role."""
    epochs = {worker.uid: worker.acked_epoch for worker in fleet.stats().workers}
    fleet.patch({"ratio": ratio})
    deadline = time.monotonic() + 30

    def moved() -> list[WorkerView]:
        return [worker for worker in fleet.stats().workers if worker.acked_epoch != epochs[worker.uid]]

    while not (found := moved()) or any(one.first_token_in_role_seconds is None for one in found):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no worker served in its new role for 30 s: {fleet.stats().workers}")
        time.sleep(LOOK_SECONDS)
    served_at = time.time()
    decided_at = datetime.fromisoformat(fleet.status()["target"]["startedAt"]).timestamp()
    served, in_role = served_at - decided_at, max(one.first_token_in_role_seconds or 0.0 for one in found)
    return Flip(max(served - in_role, 0.0), served)


def measure(fleet: Fleet, flips: int, *, engines: str, load_before: float) -> Measured:
    """That many flips, one after the other, while requests run; raises if one of those fails."""
    fleet.patch({"mode": "Disaggregated", "ratio": RATIOS[-1]})
    fleet.wait_roles(RATIOS[-1])
    pods, before, lost = fleet.uids(), fleet.engines(), fleet.stats().counters.lost_turns
    flipped: list[Flip] = []
    name = f"flips-{time.time():.0f}"
    with steady(fleet, name, prompt_tokens=PROMPT_TOKENS, max_tokens=ANSWER_TOKENS, streams=STREAMS) as answers:
        wait_for(lambda: len(answers) > STREAMS, seconds=60, what="requests are answered")
        first = len(answers)
        for number, ratio in enumerate(itertools.islice(itertools.cycle(RATIOS), flips + 1)):
            taken = flip(fleet, ratio)
            fleet.wait_roles(ratio)
            fleet.wait_ready(GPUS)
            if number:  # at the first one, pairs of workers meet that never met
                flipped.append(taken)
                print(f"flip {number} of {flips}: {taken.routed:.3f} s, token {taken.served:.3f} s", flush=True)
        answered = len(answers) - first
    return Measured(
        flips=flipped,
        answered=answered,
        lost_turns=fleet.stats().counters.lost_turns - lost,
        replaced_pods=len(set(fleet.uids().items()) - set(pods.items())),
        restarted_engines=len(set(fleet.engines().items()) - set(before.items())),
        cores=os.cpu_count() or 1,
        load_before=load_before,
        engines=engines,
    )


def main() -> int:
    """Exit code 1 where a request failed, a pod was replaced or an engine restarted."""
    parser = argparse.ArgumentParser(prog="flips", description="Measures role flips on the real local cluster.")
    add = parser.add_argument
    add("--name", default="flips", help="cluster, used if it is up and left as it was (default: %(default)s)")
    add("--flips", type=int, default=100, help="default: %(default)s")
    add("--emulated", action="store_true", help="emulated engines instead of real vLLM")
    add("--json", type=Path, help="where the result goes")
    add("--page", type=Path, help="folder for flips.md and its plot")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with (
        cluster(options.name, Progress()) as running,
        rollout(running, real=not options.emulated, gpus=GPUS) as (_, fleet),
    ):
        engines = "emulated" if options.emulated else "vLLM"
        measured = measure(fleet, options.flips, engines=engines, load_before=load)
    print_rows(rows(measured))
    if options.json:
        options.json.write_text(json.dumps(measured.as_dict(), indent=1))
    if options.page:
        write_page(measured, options.page)
    return 0 if measured.good else 1


if __name__ == "__main__":
    sys.exit(main())

"""`make demo`: the whole product on this machine.

Set-up (a cluster, images, an engine, models) is cached. What follows takes about ten minutes and ends with a report.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

from examples.common import local, page
from examples.common.sampler import Sampler
from examples.demo import agents, promises, report, training
from examples.demo.facts import Record
from examples.demo.stage import HERE, Stage
from examples.demo.view import View
from pearl_dev.errors import ClusterError
from pearl_dev.fleet import Api
from pearl_dev.progress import Progress

NAME = "demo"
FLEETS = ("agents", "policy")


def play(stage: Stage, steps: int) -> None:
    """The acts."""
    stage.act("kubectl apply: 3 workers with SmolLM2, 2 with the tiny model; real vLLM starts in real pods")
    with ThreadPoolExecutor(2) as pool:
        for ready in [
            pool.submit(stage.agents.wait_ready, 3, seconds=420),
            pool.submit(stage.policy.wait_ready, 2, seconds=420),
        ]:
            ready.result()
    before = stage.agents.uids()
    agents.run(stage)
    after = stage.agents.uids()
    agents.checked(stage)
    training.run(stage, steps)
    lost = sum(fleet.stats().counters.lost_turns for fleet in (stage.agents, stage.policy))
    promises.check(stage.record, uids_before=before, uids_after=after, lost_turns=lost, wanted_steps=steps)


def tell(stage: Stage, console: Console) -> bool:
    """Print the end and write the report; returns whether every promise was kept."""
    console.print(page.promises_on_screen(stage.record.checks))
    console.print(report.verdict(stage.record.loads))
    target = stage.folder / "report.html"
    target.write_text(report.html(stage.record, agents=stage.agents.name, policy=stage.policy.name))
    console.print(f"Report: {target}")
    return all(one.kept for one in stage.record.checks)


def main() -> int:
    """Entry point; 0 = every promise was kept."""
    parser = argparse.ArgumentParser(description="PEARL on this machine: real cluster, real vLLM, real trainer.")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up afterwards")
    parser.add_argument("--steps", type=int, default=25, help="updates of the trainer (default: 25)")
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder for report and logs")
    options = parser.parse_args()
    progress, console, record = Progress(), Console(), Record()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        installation = local.set_up(NAME, ("tiny", "smollm2"), progress)
    except ClusterError as error:
        console.print(f"[red]error:[/red] {error}")
        return 2
    started, view = time.monotonic(), View(record)
    api = Api(installation.cluster.kubeconfig)
    agents_fleet, policy = (local.apply(installation, api, HERE / f"manifests/{name}.yaml") for name in FLEETS)
    sampler = Sampler(record, (agents_fleet, policy))
    stage = Stage(installation, agents_fleet, policy, record, sampler, view, options.out)
    view.start()
    try:
        play(stage, options.steps)
    finally:
        view.stop()
        sampler.close()
        local.keep_logs(installation, options.out)
        if not options.keep:
            local.take_down(NAME, progress)
    console.print(f"Took {time.monotonic() - started:.0f} s after set-up.")
    return 0 if tell(stage, console) else 1


if __name__ == "__main__":
    sys.exit(main())

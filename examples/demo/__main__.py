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
from rich.table import Table

from examples.demo import agents, promises, report, training
from examples.demo.facts import Record
from examples.demo.sampler import Sampler
from examples.demo.stage import HERE, Stage
from examples.demo.view import View
from pearl_dev import cluster
from pearl_dev.errors import ClusterError
from pearl_dev.fleet import Api, Fleet
from pearl_dev.product import NAMESPACE, Installation, install, prepare
from pearl_dev.progress import Progress
from pearl_dev.settings import from_environment

NAME = "demo"


def set_up(progress: Progress) -> Installation:
    """A fresh cluster with PEARL on it."""
    settings = from_environment()
    artifacts = prepare(settings, progress, ("tiny", "smollm2"))
    cluster.down(settings, NAME, progress)
    running = cluster.up(settings, cluster.Wanted(name=NAME, gpus=4), progress)
    return install(running, artifacts, progress)


def apply(installation: Installation, api: Api, name: str) -> Fleet:
    """`kubectl apply` of one of the demo's manifests."""
    manifest = installation.manifest((HERE / "manifests" / f"{name}.yaml").read_text())
    manifest["metadata"]["namespace"] = NAMESPACE
    installation.weights_of(name)
    fleet = Fleet(api, NAMESPACE, name)
    fleet.apply(manifest)
    return fleet


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
    promises.check(stage.record, uids_before=before, uids_after=after, lost_turns=lost)


def tell(stage: Stage, console: Console) -> bool:
    """Print the end and write the report; returns whether every promise was kept."""
    table = Table("promise", "", "seen", title="What was kept")
    for promise, kept, seen in stage.record.checks:
        table.add_row(promise, "[green]kept[/green]" if kept else "[red]broken[/red]", seen)
    console.print(table)
    console.print(report.verdict(stage.record.loads))
    page = stage.folder / "report.html"
    page.write_text(report.html(stage.record, agents=stage.agents.name, policy=stage.policy.name))
    console.print(f"Report: {page}")
    return all(kept for _, kept, _ in stage.record.checks)


def keep_logs(installation: Installation, folder: Path) -> None:
    """What every pod of PEARL wrote, one file each, beside the report."""
    kubectl = installation.cluster.kubectl
    for namespace in (NAMESPACE, *installation.trainer_namespaces):
        pods = installation.cluster.get("-n", namespace, "pods")["items"]
        for name in (pod["metadata"]["name"] for pod in pods):
            (folder / f"{name}.log").write_text(
                kubectl("-n", namespace, "logs", name, "--all-containers", "--tail=-1", "--ignore-errors")
            )


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
        installation = set_up(progress)
    except ClusterError as error:
        console.print(f"[red]error:[/red] {error}")
        return 2
    started, view = time.monotonic(), View(record)
    api = Api(installation.cluster.kubeconfig)
    fleets = (apply(installation, api, "agents"), apply(installation, api, "policy"))
    sampler = Sampler(record, fleets)
    stage = Stage(installation, *fleets, record, sampler, view, options.out)
    view.start()
    try:
        play(stage, options.steps)
    finally:
        view.stop()
        sampler.close()
        keep_logs(installation, options.out)
        if not options.keep:
            cluster.down(from_environment(), NAME, progress)
    console.print(f"Took {time.monotonic() - started:.0f} s after set-up.")
    return 0 if tell(stage, console) else 1


if __name__ == "__main__":
    sys.exit(main())

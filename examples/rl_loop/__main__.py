"""`make rl-loop`: a trainer that lends its GPU between updates, on a real cluster on this machine.

Set-up (a cluster, images, an engine, a model) is cached. What follows takes less than five minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from examples.common import local, page
from examples.rl_loop import loop, report
from pearl_dev.errors import ClusterError
from pearl_dev.fleet import Api
from pearl_dev.progress import Progress

NAME = "rl-loop"


def main() -> int:
    """Entry point; 0 = every promise was kept, 1 = one was not, 2 = no cluster."""
    parser = argparse.ArgumentParser(description="A real RL loop with PEARL on this machine.")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up afterwards")
    parser.add_argument("--steps", type=int, default=24, help="updates (default: 24)")
    parser.add_argument("--out", type=Path, default=Path("report/rl-loop"), help="folder for plot, page and logs")
    options = parser.parse_args()
    progress, console = Progress(), Console()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        installation = local.set_up(NAME, ["tiny"], progress)
    except ClusterError as error:
        console.print(f"[red]error:[/red] {error}")
        return 2
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - started:5.0f} s] {text}", highlight=False, markup=False)

    api = Api(installation.cluster.kubeconfig)
    run = loop.start(installation, api)
    try:
        loop.follow(run, installation, steps=options.steps, arguments=[], say=say)
    finally:
        local.keep_logs(installation, options.out)
        if not options.keep:
            local.take_down(NAME, progress)
    console.print(f"Took {time.monotonic() - started:.0f} s after set-up. {report.gpu_use(run)}")
    console.print(page.promises_on_screen(run.promises))
    console.print(f"Report: {report.write(run, options.out)}")
    return 0 if run.kept else 1


if __name__ == "__main__":
    sys.exit(main())

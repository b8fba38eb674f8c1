"""The command line `pearl-dev`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pearl_dev import binaries, cluster, kind, status
from pearl_dev.errors import ClusterError
from pearl_dev.handle import Cluster, attach, find
from pearl_dev.progress import Progress
from pearl_dev.settings import Settings, from_environment


def parser() -> argparse.ArgumentParser:
    """The options of every verb."""
    top = argparse.ArgumentParser(prog="pearl-dev", description="A real Kubernetes on this machine.")
    verbs = top.add_subparsers(dest="verb", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="pearl", help="which cluster (default: pearl)")
    up = verbs.add_parser("up", parents=[common], help="start a cluster; builds what it needs the first time")
    up.add_argument("--nodes", type=int, default=2, help="real nodes, 0 = the control plane alone (default: 2)")
    up.add_argument("--gpus", type=int, default=4, help="fake nvidia.com/gpu per node (default: 4)")
    up.add_argument("--dra-gpus", type=int, default=2, help="fake GPUs per node for ResourceClaims (default: 2)")
    up.add_argument("--kwok-nodes", type=int, default=0, help="nodes that exist only in the API (default: 0)")
    up.add_argument("--no-monitoring", action="store_true", help="leave Prometheus out")
    up.add_argument(
        "--image", type=Path, action="append", default=[], help="image archive to unpack before the nodes start"
    )
    up.add_argument("--kind", action="store_true", help="use Docker and kind instead")
    verbs.add_parser("build", help="only build and cache what `up` needs")
    verbs.add_parser("down", parents=[common], help="remove a cluster and everything it changed here")
    verbs.add_parser("status", parents=[common], help="say what runs")
    verbs.add_parser("kubeconfig", parents=[common], help="print the path of the kubeconfig")
    load = verbs.add_parser("load-image", parents=[common], help="import image archives into every node")
    load.add_argument("archives", type=Path, nargs="+", metavar="TAR")
    node = verbs.add_parser("node", parents=[common], help="cut a node's power, or start it again")
    node.add_argument("action", choices=["stop", "start"])
    node.add_argument("index", type=int)
    execute = verbs.add_parser(
        "exec", parents=[common], help="run a command in the cluster's network, with kubectl and helm"
    )
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return top


def _attach(settings: Settings, progress: Progress, name: str) -> Cluster:
    return attach(settings, name, binaries.ensure(settings, progress))


def _execute(running: Cluster, words: list[str]) -> None:
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise ClusterError("exec: name a command, as in `pearl-dev exec -- kubectl get nodes`")
    argv = command if running.spec.kind else running.inside(command)
    sys.stdout.flush()
    os.execvpe(argv[0], argv, running.environment)  # noqa: S606 - to run it is what was asked


def _use(running: Cluster, options: argparse.Namespace) -> None:
    match options.verb:
        case "kubeconfig":
            print(running.kubeconfig)
        case "status":
            print(status.report(running))
        case "load-image":
            running.load_image(*options.archives)
        case "node":
            if not 0 <= options.index < running.spec.nodes:
                raise ClusterError(f"node {options.index}: use 0 to {running.spec.nodes - 1}")
            (running.stop_node if options.action == "stop" else running.start_node)(options.index)
        case "exec":
            _execute(running, options.command)


def dispatch(settings: Settings, options: argparse.Namespace, progress: Progress) -> None:
    """Do what one verb asks."""
    match options.verb:
        case "build":
            cluster.prepare(settings, progress)
        case "up":
            wanted = cluster.Wanted(
                options.name,
                options.nodes,
                options.gpus,
                options.kwok_nodes,
                not options.no_monitoring,
                options.image,
                options.dra_gpus,
            )
            running = (kind.up if options.kind else cluster.up)(settings, wanted, progress)
            progress.say(f"Cluster {options.name} is up. KUBECONFIG={running.kubeconfig}")
            progress.say("Try: pearl-dev exec -- kubectl get pods -A")
        case "down":
            spec = find(settings, options.name)
            remove = kind.down if spec is not None and spec.kind else cluster.down
            if not remove(settings, options.name, progress):
                progress.say(f"There is no cluster {options.name}.")
        case _:
            _use(_attach(settings, progress, options.name), options)


def main() -> None:
    """Entry point; errors that a person can put right are printed without a traceback."""
    progress = Progress()
    try:
        dispatch(from_environment(), parser().parse_args(), progress)
    except ClusterError as error:
        progress.console.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

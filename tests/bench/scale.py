"""Measures the operator at scale: kwok's nodes, fake agents, pods that come and go; beside a plain operator.

    python tests/bench/scale.py [--nodes 1000] [--rollouts 20] [--pods 2000] [--json FILE] [--page DIRECTORY]

API server, etcd, scheduler, controller manager and kwok are real and run on this machine; kubelets there are none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench"
sys.path[:0] = [str(ROOT / "tests" / "support"), str(BENCH)]

from ports import free_port  # noqa: E402
from scale_api import APPLY, NAMESPACE, ROLLOUTS, Api, connected  # noqa: E402
from scale_churn import Churn, Fleet  # noqa: E402
from scale_numbers import Reading, Window, cpu_seconds, histogram, memory_bytes, scrape  # noqa: E402
from scale_page import Measured, Operated, print_table, rows, write_page  # noqa: E402

from pearl_dev.cluster import Wanted, down, up  # noqa: E402
from pearl_dev.progress import Progress  # noqa: E402
from pearl_dev.settings import from_environment  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pearl_dev.handle import Cluster

Object = dict[str, Any]
GPUS_PER_WORKER = 2
ELASTIC_SHARE = 5
"""One worker of so many is elastic."""
SAMPLE_SECONDS = 2.0
START_SECONDS = 600.0
SETTLE_SECONDS = 600.0
QUIET_SECONDS = 10.0
"""After everything is Ready, before idle time counts."""
NICE = -10
"""Of operators and fakes: on a cluster an operator's request of CPU is its own, and gateways run elsewhere."""
TOLERATIONS = {"spec": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}}


def rollout(name: str, workers: int) -> Object:
    """A PearlRollout of so many workers."""
    elastic = workers // ELASTIC_SHARE * GPUS_PER_WORKER
    capacity = {
        "reserved": {"gpus": workers * GPUS_PER_WORKER - elastic},
        "elastic": {"minGpus": elastic, "maxGpus": elastic},
    }
    return {
        "apiVersion": "pearl.dev/v1alpha1",
        "kind": "PearlRollout",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "model": {"name": "Qwen/Qwen3-8B", "uri": "/models/qwen3-8b"},
            "engine": {"image": "example/worker:1", "tensorParallel": GPUS_PER_WORKER, "maxModelLen": 32768},
            "capacity": capacity,
            "podTemplate": TOLERATIONS,
            "gateway": {"podTemplate": TOLERATIONS},
        },
    }


@dataclass
class Process:
    """An operator that is measured: its processor time and memory are sampled all the time."""

    pid: int
    port: int
    heard_port: int | None
    samples: list[tuple[float, float, int]]
    """Monotonic seconds, processor seconds, bytes."""

    async def sample(self) -> None:
        """For ever."""
        while True:
            self.samples.append((time.monotonic(), cpu_seconds(self.pid), memory_bytes(self.pid)))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def read(self) -> Reading:
        """Now."""
        text = await asyncio.to_thread(scrape, self.port)
        heard = await asyncio.to_thread(scrape, self.heard_port) if self.heard_port is not None else ""
        return Reading(
            at=time.monotonic(),
            cpu=cpu_seconds(self.pid),
            calls=histogram(text, "pearl_call_seconds", to="apiserver"),
            reactions=histogram(text, "pearl_reaction_seconds"),
            heard=histogram(heard, "scale_heard_seconds"),
        )


@contextmanager
def started(script: str, *words: object, log: Path, **environment: str) -> Iterator[int]:
    """One of the bench's processes, as long as the block lasts; its process id."""
    argv = [sys.executable, str(BENCH / script), *map(str, words)]
    paths = os.pathsep.join(filter(None, sys.path))
    with log.open("ab") as out:
        process = subprocess.Popen(
            argv,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdout=out,
            stderr=out,
            cwd=ROOT,
            start_new_session=True,
        )
        prefer(process.pid)
        try:
            yield process.pid
            if process.poll() is not None:
                raise RuntimeError(f"{script} ended by itself, see {log}")
        finally:
            process.terminate()
            process.wait(30)


def prefer(pid: int) -> None:
    """Gives the first process of a session its priority, also where the kernel shares the cores among sessions."""
    os.setpriority(os.PRIO_PROCESS, pid, NICE)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


@asynccontextmanager
async def real_operator(cluster: Cluster, fakes_port: int, logs: Path) -> AsyncIterator[Process]:
    """PEARL's."""
    port, heard = free_port(), free_port()
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "PEARL_NAMESPACE": NAMESPACE,
        "PEARL_GATEWAY_IMAGE": "example/gateway:1",
        "PEARL_PORT": str(port),
        "PEARL_IDENTITY": "scale",
    }
    with started("scale_operator.py", fakes_port, heard, log=logs / "operator.log", **environment) as pid:
        async with sampled(Process(pid, port, heard, [])) as process:
            yield process


@asynccontextmanager
async def plain_operator(cluster: Cluster, logs: Path) -> AsyncIterator[Process]:
    """The one to compare with."""
    port = free_port()
    with started("scale_plain.py", cluster.kubeconfig, port, log=logs / "plain.log") as pid:
        async with sampled(Process(pid, port, None, [])) as process:
            yield process


@asynccontextmanager
async def sampled(process: Process) -> AsyncIterator[Process]:
    """While the block lasts."""
    task = asyncio.create_task(process.sample())
    try:
        yield process
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Bench:
    """One run on a cluster that is there."""

    def __init__(self, api: Api, fleet: Fleet, options: argparse.Namespace, progress: Progress) -> None:
        self._api = api
        self._fleet = fleet
        self._options = options
        self._progress = progress

    async def create(self) -> None:
        """The rollouts, workers shared out evenly."""
        for number in range(self._options.rollouts):
            workers = self._options.pods // self._options.rollouts
            body = rollout(f"r{number:02d}", workers)
            await self._api.call(
                "PATCH", f"{ROLLOUTS}/{body['metadata']['name']}", body, kind=APPLY, fieldManager="bench"
            )

    async def all_ready(self, what: str, seconds: float) -> float:
        """Until every worker is Ready; how long that took."""
        wanted, began = self._options.pods // self._options.rollouts * self._options.rollouts, time.monotonic()
        with self._progress.step(what) as step:
            while len(self._fleet.pods) != wanted or self._fleet.ready < wanted:
                passed = time.monotonic() - began
                if passed > seconds:
                    raise TimeoutError(f"{what}: {self._fleet.ready} of {wanted} Ready after {seconds:.0f} s")
                step.update(f"{self._fleet.ready} of {wanted} Ready, {len(self._fleet.pods)} there")
                await asyncio.sleep(0.5)
        return time.monotonic() - began

    async def operate(self, process: Process, what: str) -> Operated:
        """Idle time, then churn, then until it is whole again."""
        options = self._options
        took = await self.all_ready(f"{what}: {options.pods} pods Ready", START_SECONDS)
        await self._pass(f"{what}: settles", QUIET_SECONDS)
        before, idle_from = await process.read(), time.monotonic()
        await self._pass(f"{what}: idle", options.idle_seconds)
        rested = await process.read()
        churn = Churn(self._api, self._fleet, random.Random(options.seed))
        self._fleet.replaced, self._fleet.deleted_at = [], {}
        churn_from = time.monotonic()
        work = asyncio.create_task(churn.run(options.rate, options.churn_seconds))
        with self._progress.step(f"{what}: {options.rate:g} pods/s go") as step:
            while not work.done():
                passed = time.monotonic() - churn_from
                step.update(f"{churn.changes} went, {len(self._fleet.replaced)} replaced, {self._fleet.ready} Ready")
                await asyncio.wait([work], timeout=1)
                if passed > options.churn_seconds + SETTLE_SECONDS:
                    raise TimeoutError("the churn does not end")
        await work
        whole = await self.all_ready(f"{what}: whole again", SETTLE_SECONDS)
        after = await process.read()
        return Operated(
            start_seconds=took,
            idle=Window.between(before, rested),
            churn=Window.between(rested, after, churn.changes),
            rate=churn.changes / options.churn_seconds,
            whole_seconds=whole,
            deleted=churn.deleted,
            nodes=churn.nodes,
            noticed=churn.noticed,
            left_behind=churn.left_behind,
            replaced=list(self._fleet.replaced),
            samples=[(at - idle_from, cpu, memory) for at, cpu, memory in process.samples],
            churn_from=churn_from - idle_from,
            churn_to=churn_from + options.churn_seconds - idle_from,
        )

    async def _pass(self, what: str, seconds: float) -> None:
        began = time.monotonic()
        with self._progress.step(what) as step:
            while (passed := time.monotonic() - began) < seconds:
                step.update(f"{passed:.0f} of {seconds:.0f} s")
                await asyncio.sleep(min(1.0, seconds - passed))


async def measure(cluster: Cluster, options: argparse.Namespace, progress: Progress) -> Measured:
    """Both operators, one after the other, over the same pods."""
    load, logs = os.getloadavg()[0], options.logs or cluster.paths.logs
    logs.mkdir(parents=True, exist_ok=True)
    prepare(cluster)
    fakes_port = free_port()
    with started("scale_fakes.py", cluster.kubeconfig, fakes_port, log=logs / "fakes.log"):
        async with connected(cluster.kubeconfig) as api:
            fleet = Fleet()
            following = asyncio.create_task(fleet.follow(api))
            bench = Bench(api, fleet, options, progress)
            await bench.create()
            async with real_operator(cluster, fakes_port, logs) as process:
                pearl = await bench.operate(process, "PEARL")
            async with plain_operator(cluster, logs) as process:
                plain = await bench.operate(process, "Plain operator")
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return Measured(
        nodes=options.nodes,
        gpus=options.nodes * 8,
        rollouts=options.rollouts,
        pods=options.pods,
        rate=options.rate,
        pearl=pearl,
        plain=plain,
        cores=os.cpu_count() or 1,
        load_before=load,
    )


def prepare(cluster: Cluster) -> None:
    """CRDs, the namespace, and the gateways' ServiceAccount."""
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "charts/pearl/crds"))
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {"name": "pearl-gateway", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})


def main() -> int:
    """Measures, prints, writes; exit code 1 where a target was missed."""
    parser = argparse.ArgumentParser(prog="scale", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--name", default="scale", help="of the cluster, which is made and removed (default: %(default)s)")
    add("--nodes", type=int, default=1000, help="kwok nodes with 8 GPUs each (default: %(default)s)")
    add("--rollouts", type=int, default=20, help="default: %(default)s")
    add("--pods", type=int, default=2000, help="workers of all rollouts (default: %(default)s)")
    add("--rate", type=float, default=20.0, help="pods per second that go (default: %(default)s)")
    add("--idle-seconds", type=float, default=60.0, help="best a multiple of 60 (default: %(default)s)")
    add("--churn-seconds", type=float, default=40.0, help="default: %(default)s")
    add("--seed", type=int, default=1)
    add("--logs", type=Path, help="folder of the processes' logs (default: the cluster's, which goes with it)")
    add("--json", type=Path, help="where the result goes")
    add("--page", type=Path, help="folder of the page and its plot")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started goes, however this ends
    progress, settings = Progress(), from_environment()
    down(settings, options.name, progress)  # a run that was killed left it
    wanted = Wanted(options.name, nodes=0, gpus=0, kwok_nodes=options.nodes, monitoring=False, dra_gpus=0)
    cluster = up(settings, wanted, progress)
    try:
        measured = asyncio.run(measure(cluster, options, progress))
    finally:
        down(settings, options.name, progress)
    print_table(rows(measured))
    if options.json:
        options.json.write_text(json.dumps(measured.as_dict(), indent=1) + "\n")
    if options.page:
        write_page(measured, options.page)
    return 0 if measured.good else 1


if __name__ == "__main__":
    sys.exit(main())

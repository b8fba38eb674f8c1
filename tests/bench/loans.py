"""Measures the loan protocol: many GPU sets that are lent and taken back all the time, over real HTTP on the loopback.

    python tests/bench/loans.py [--sets 100] [--seconds 60] [--json FILE] [--page DIRECTORY]

One process is the operator (core, planner, loan service, an in-memory API server), this one holds the trainers' SDKs
and the worker agents with emulated engines. What an engine takes to sleep or to die is no part of the overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "bench")]

import loans_operator  # noqa: E402
from figures import print_rows  # noqa: E402
from loans_page import Measured, rows, write_page  # noqa: E402
from loans_trainers import Agents, Times, agents_server, trainers  # noqa: E402

JOIN_SECONDS = 0.15
"""Sets join one after the other, as no hundred agents start in one process on a cluster; then it counts."""


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def churn(pipe: Any, port: int, agents_port: int, *, sets: int, seconds: float, seed: int) -> Measured:  # noqa: PLR0913
    """Lets all sets lend and reclaim for so long."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made = trainers(sets, f"http://127.0.0.1:{port}", root, Times(), seed)
        agents = Agents(pipe, made, root)
        server = agents_server(agents, agents_port)
        beside = [asyncio.create_task(work) for work in (server.serve(), agents.probe())]
        await until_served(port)
        began, cpu = loop.time(), time.process_time()
        beside.append(asyncio.create_task(progress(made, began, sets * JOIN_SECONDS + seconds)))
        since = began + sets * JOIN_SECONDS
        await asyncio.gather(*(trainer.run(since, since + seconds, loop.time) for trainer in made.values()))
        cpu, lasted = time.process_time() - cpu, loop.time() - began
        async with httpx2.AsyncClient(trust_env=False) as client:
            other = (await client.post(f"http://127.0.0.1:{port}/over")).json()["cpu_seconds"]
        server.should_exit = True
        for work in beside[1:]:
            work.cancel()
        await asyncio.gather(*beside, *(pod.stop() for pod in agents.pods.values()), return_exceptions=True)
    return Measured.of(
        list(made.values()), began=since, seconds=lasted, operator_cpu_seconds=other, trainers_cpu_seconds=cpu
    )


async def until_served(port: int) -> None:
    """The operator answers."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        while True:
            try:
                await client.get(f"http://127.0.0.1:{port}/v1/loans")
            except httpx2.TransportError:
                await asyncio.sleep(0.1)
            else:
                return


async def progress(made: dict[str, Any], began: float, seconds: float) -> None:
    """A line every 5 s."""
    while True:
        await asyncio.sleep(5)
        done = sum(len(trainer.reclaims) for trainer in made.values())
        lost = sum(len(trainer.not_returned) for trainer in made.values())
        passed = asyncio.get_running_loop().time() - began
        print(f"{passed:4.0f} of {seconds:.0f} s: {done} reclaims, {lost} not returned", file=sys.stderr, flush=True)


def main() -> int:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--sets", type=int, default=100, help="GPU sets, one trainer each")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they churn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--page", type=Path, help="folder of the page and its plot")
    arguments = parser.parse_args()
    # Every first offer comes before its borrower pod runs, and is refused.
    logging.getLogger("pearl_trainer").setLevel(logging.ERROR)
    ours, theirs = multiprocessing.Pipe()
    port, agents_port = free_port(), free_port()
    operator = multiprocessing.get_context("spawn").Process(
        target=loans_operator.run, args=(theirs, arguments.sets, port, agents_port), daemon=True
    )
    operator.start()
    load = os.getloadavg()[0]
    wanted = {"sets": arguments.sets, "seconds": arguments.seconds, "seed": arguments.seed}
    measured = asyncio.run(churn(ours, port, agents_port, **wanted))
    operator.join(timeout=10)
    measured = measured.with_machine(cores=os.cpu_count() or 1, load_before=load)
    print_rows(rows(measured))
    for problem in measured.not_returned:
        print(f"NotReturned: {problem}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured.as_dict(), indent=2) + "\n")
    if arguments.page:
        write_page(measured, arguments.page)
    return 1 if measured.not_returned or measured.double_holders else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures the gateway beside vllm-router on the same workers, and what a turn costs it.

    python tests/bench/gateway.py [--scale 1] [--repeats 3] [--real 2] [--json FILE] [--page DIRECTORY]

Engines, gateway and router are processes of their own; this one asks. What the engines need is in no figure of CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from figures import print_rows
from gateway_cells import CAPACITY, PACED, REAL, SMALL, THROUGHPUT, Cell, memory_shape, planned_local_append
from gateway_page import Result, rows, write_page
from gateway_processes import RIGHTS, Server, engines, gateway, real_engines, router
from gateway_turns import Load, Measured, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAY_SECONDS = 5.0
_MEMORY_ROUND = 64


@dataclass(frozen=True)
class Site:
    """Workers of one kind, and everything that stands before them."""

    name: str
    split: bool
    workers: tuple[str, ...]
    servers: tuple[Server, ...]


class Bench:
    """One run of everything; `results` grows."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._runs = 0
        self.result = Result(cores=os.cpu_count() or 1, load_before=os.getloadavg()[0])

    def run(self) -> None:
        """All sites in turn."""
        speed = self._options.speed
        with ExitStack() as stack:
            self._measure(self._site(stack, "at once", None, 1.0, split=False), [*PACED, *CAPACITY])
        for split in (False, True):
            with ExitStack() as stack:
                site = self._site(stack, "H100 timing", self._options.table, speed, split=split)
                self._measure(site, THROUGHPUT)
        if self._options.real:
            for split in (False, True):
                with ExitStack() as stack:
                    self._measure(self._real_site(stack, split=split), REAL)
        with ExitStack() as stack:
            self._memory(self._site(stack, "memory", None, 1.0, split=False, alone=True))

    def _site(  # noqa: PLR0913 - one call each, by name
        self, stack: ExitStack, name: str, table: str | None, speed: float, *, split: bool, alone: bool = False
    ) -> Site:
        log = self._folder / "engines.log"
        workers = stack.enter_context(engines(self._options.engines, table, speed, log))
        return self._before(stack, name, workers, split=split, alone=alone)

    def _real_site(self, stack: ExitStack, *, split: bool) -> Site:
        workers = stack.enter_context(real_engines(self._options.real, self._folder))
        return self._before(stack, "real vLLM", workers, split=split, alone=False)

    def _before(self, stack: ExitStack, name: str, workers: tuple[str, ...], *, split: bool, alone: bool) -> Site:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        local = self._options.local_append
        if local is None:
            local = planned_local_append(self._options.table, max(1, len(workers) // 2))
        ours = gateway(workers, split=split, local_append=local, folder=folder)
        servers = [stack.enter_context(ours)]
        if not alone:
            servers += [
                stack.enter_context(router(workers, split=split, policy=policy, folder=folder))
                for policy in self._options.policy
            ]
        return Site(name, split, workers, tuple(servers))

    def _measure(self, site: Site, shapes: Sequence[Shape]) -> None:
        for whole in shapes:
            shape = self._scaled(whole)
            # The gateway only adds: what it adds is told apart from what the engine takes by asking the engine too.
            direct = (Server("direct", site.workers),) if whole in PACED else ()
            cell = Cell(site.name, site.split, shape, {})
            asyncio.run(self._warm(site, shape.vocabulary))
            for repeat in range(self._options.repeats):
                servers = (*direct, *site.servers)
                # Alternating who is first, so that a machine that gets slower is nobody's disadvantage.
                for server in servers if repeat % 2 == 0 else reversed(servers):
                    measured = asyncio.run(self._once(site, cell, server))
                    cell.runs.setdefault(server.name, []).append(measured)
            self.result.cells.append(cell)

    def _scaled(self, shape: Shape) -> Shape:
        count = max(2, round(shape.trajectories * self._options.scale))
        return replace(shape, trajectories=count, at_once=min(shape.at_once, count))

    async def _warm(self, site: Site, vocabulary: int) -> None:
        small = replace(SMALL, vocabulary=vocabulary)
        for server in site.servers:
            await Load(server, small, self._name()).play()

    async def _once(self, site: Site, cell: Cell, server: Server) -> Measured:
        await forget(site.workers)
        what = f"{cell.name}: {server.name}"
        measured = await Load(server, cell.shape, self._name()).play(Teller(what, cell.shape))
        say(f"{what}: {measured.tokens_per_second:.0f} tokens/s in {measured.duration_seconds:.1f} s")
        for problem in measured.problems[:3]:
            say(f"  {problem}")
        return measured

    def _name(self) -> str:
        self._runs += 1
        return f"bench-{self._runs}"

    def _memory(self, site: Site) -> None:
        """Batch after batch, as in training: what is kept of a batch must go with it."""
        (server,) = site.servers
        rounds = max(5, self._options.memory_turns // (_MEMORY_ROUND * memory_shape(0, 1).turns))
        for step in range(rounds):
            shape = memory_shape(step, _MEMORY_ROUND)
            measured = asyncio.run(Load(server, shape, self._name(), step=step).play())
            self.result.memory_problems += measured.problems
            self.result.memory.append((len(measured.turn_seconds), server.memory_bytes() or 0))
            if step % max(1, rounds // 10) == 0:
                say(f"memory: batch {step + 1} of {rounds}, {self.result.memory[-1][1] / 2**20:.1f} MiB")


class Teller:
    """Says now and then how far a run is."""

    def __init__(self, what: str, shape: Shape) -> None:
        self._what = what
        self._turns = shape.trajectories * shape.turns
        self._last = time.monotonic()

    def __call__(self, measured: Measured) -> None:
        """After every turn."""
        if time.monotonic() - self._last > _SAY_SECONDS:
            self._last = time.monotonic()
            say(f"{self._what}: {len(measured.turn_seconds)} of {self._turns} turns")


async def forget(workers: Sequence[str]) -> None:
    """Empty the engines' prefix caches, so that the next run finds what the last one found."""
    async with aiohttp.ClientSession(headers=RIGHTS) as session:
        for url in workers:
            async with session.post(url + "/reset_prefix_cache") as response:
                response.raise_for_status()


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measures, prints, writes."""
    options = _parser().parse_args()
    # A run that is ended from outside must end what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        bench.run()
    result = bench.result
    print_rows(rows(result))
    if options.json:
        options.json.write_text(json.dumps(result.as_dict(), indent=2) + "\n")
    if options.page:
        write_page(result, options.page)
    return 0 if result.good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--scale", type=float, default=1.0, help="factor on the number of trajectories; 0.1 for a look")
    add("--repeats", type=int, default=3, help="runs of each cell, of which the median counts")
    add("--engines", type=int, default=4, help="emulated engines; half of them prefill where prefill is apart")
    add("--table", default="Qwen/Qwen3-8B/H100-TP2", help="timing of the engines that take time")
    add("--speed", type=float, default=1.0, help="engine seconds per second of these")
    add("--policy", nargs="+", default=["consistent_hash", "cache_aware"], help="of vllm-router; the best one counts")
    add("--local-append", type=int, help="PEARL_LOCAL_APPEND_TOKENS of the gateway (default: what the planner says)")
    add("--memory-turns", type=int, default=100_000, help="turns of the memory run")
    add("--real", type=int, default=0, metavar="N", help="also N real vLLM workers on the CPU")
    add("--json", type=Path, help="where the results go")
    add("--page", type=Path, help="folder of the page and its plots")
    return parser


if __name__ == "__main__":
    sys.exit(main())

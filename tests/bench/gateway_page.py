"""What the gateway bench measured: figures, table, plots and page."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from figures import in_markdown
from gateway_cells import CAPACITY, LONG, PACED, SHORT, THROUGHPUT, Cell
from gateway_plots import plot_latency, plot_throughput

from pearl_gateway.load.report import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from figures import Row
    from gateway_turns import Measured, Shape

_CHUNK_TOKENS = 16
_WARM_SHARE = 0.2
"""Share of the memory run after which the process has what it needs: growth counts from there."""
_MULTI = "multi-turn"


@dataclass
class Result:
    """Everything that one run of the bench came to."""

    cells: list[Cell] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    """(turns, resident bytes afterwards) of every batch of the memory run."""
    memory_problems: list[str] = field(default_factory=list)
    cores: int = 0
    load_before: float = 0.0

    @property
    def good(self) -> bool:
        """No turn through the gateway failed, and none had other tokens than elsewhere."""
        return not self.problems and not self.differing

    @property
    def problems(self) -> list[str]:
        """Turns that the gateway did not answer."""
        runs = [run for cell in self.cells for run in cell.runs.get("gateway", [])]
        return [problem for run in runs for problem in run.problems] + self.memory_problems

    @property
    def differing(self) -> int:
        """Answers of the gateway that differ from another server's answer to the same tokens."""
        return sum(_differing(cell) for cell in self.cells)

    def summary(self) -> dict[str, float | None]:
        """The figures that are compared with the targets; None = not measured."""
        cpu = self.cpu_seconds_per_turn("gateway", LONG)
        return {
            "added_latency_p50_seconds": self._worst_added(50),
            "added_latency_p99_seconds": self._worst_added(99),
            "throughput_vs_vllm_router_colocated": self._least(lambda cell: not cell.split and not _is_multi(cell)),
            "throughput_vs_vllm_router_disaggregated": self._least(lambda cell: cell.split and not _is_multi(cell)),
            "throughput_vs_vllm_router_multiturn": self._least(_is_multi),
            "turns_per_second_per_core": None if not cpu else 1 / cpu,
            "streamed_tokens_per_second_per_core": None if not cpu else LONG.answer_tokens / cpu,
            "cpu_microseconds_per_turn": None if cpu is None else 1e6 * cpu,
            "memory_growth_bytes": self._growth(),
        }

    def details(self) -> dict[str, Any]:
        """Figures that the summary leaves out."""
        cpu = {name: self.cpu_seconds_per_turn(name, LONG) for name in self.servers(CAPACITY)}
        ours, others = cpu.get("gateway"), [one for name, one in cpu.items() if name != "gateway" and one]
        return {
            "router_added_latency_p50_seconds": self._router_added(50),
            "router_added_latency_p99_seconds": self._router_added(99),
            "cpu_microseconds_per_chunk": self.cpu_microseconds_per_chunk("gateway"),
            "router_cpu_microseconds_per_turn": 1e6 * min(others) if others else None,
            "cpu_vs_vllm_router": ours / min(others) if ours and others else None,
            "memory_turns": sum(turns for turns, _ in self.memory),
            "failed_turns": len(self.problems),
            "differing_answers": self.differing,
            "cores": self.cores,
            "load_before": self.load_before,
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything but the digests of the answers."""
        cells = []
        for cell in self.cells:
            runs = {name: [_without_answers(run) for run in found] for name, found in cell.runs.items()}
            cells.append({"name": cell.name, "shape": asdict(cell.shape), "runs": runs})
        return {"summary": self.summary(), "details": self.details(), "cells": cells, "memory": self.memory}

    def of(self, shapes: Sequence[Shape]) -> list[Cell]:
        """Cells of these shapes; a scaled shape keeps its name."""
        names = {shape.name for shape in shapes}
        return [cell for cell in self.cells if cell.shape.name in names]

    def servers(self, shapes: Sequence[Shape]) -> list[str]:
        """Who was asked there."""
        return list(dict.fromkeys(name for cell in self.of(shapes) for name in cell.runs))

    def cpu_seconds_per_turn(self, server: str, shape: Shape) -> float | None:
        """Process time, not wall time: it hardly depends on what else the machine does."""
        runs = [run for cell in self.of([shape]) for run in cell.runs.get(server, [])]
        known = [run.cpu_seconds / len(run.turn_seconds) for run in runs if run.cpu_seconds and run.turn_seconds]
        return statistics.median(known) if known else None

    def cpu_microseconds_per_chunk(self, server: str) -> float | None:
        """What a further event of 16 tokens costs: long answers less short ones."""
        long, short = (self.cpu_seconds_per_turn(server, shape) for shape in (LONG, SHORT))
        chunks = (LONG.answer_tokens - SHORT.answer_tokens) / _CHUNK_TOKENS
        return None if long is None or short is None else 1e6 * (long - short) / chunks

    def _worst_added(self, percent: float, server: str = "gateway") -> float | None:
        found = [one for cell in self.of(PACED) if (one := added_seconds(cell, server, percent)) is not None]
        return max(found, default=None)

    def _router_added(self, percent: float) -> float | None:
        """Of the better policy, in the cell where it adds most: told beside the gateway's."""
        routers = [name for name in self.servers(PACED) if name.startswith("vllm-router")]
        worst = [self._worst_added(percent, name) for name in routers]
        return min((one for one in worst if one is not None), default=None)

    def _least(self, wanted: Callable[[Cell], bool]) -> float | None:
        ratios = [ratio(cell) for cell in self.of(THROUGHPUT) if wanted(cell)]
        return min((one for one in ratios if one is not None), default=None)

    def _growth(self) -> int | None:
        if len(self.memory) < 2:
            return None
        return self.memory[-1][1] - self.memory[int(_WARM_SHARE * len(self.memory))][1]


def added_seconds(cell: Cell, server: str, percent: float) -> float | None:
    """Percentile of the turns through `server`, less the same percentile of turns that went to the engine directly."""
    through, direct = (turn_percentile(cell, name, percent) for name in (server, "direct"))
    return None if through is None or direct is None else through - direct


def turn_percentile(cell: Cell, server: str, percent: float) -> float | None:
    """Median over the runs, so that one bad moment of the machine is not the figure."""
    found = [percentile(sorted(run.turn_seconds), percent) for run in cell.runs.get(server, [])]
    known = [one for one in found if one is not None]
    return statistics.median(known) if known else None


def tokens_per_second(cell: Cell, server: str) -> float:
    """Median over the runs."""
    return statistics.median(run.tokens_per_second for run in cell.runs[server])


def ratio(cell: Cell) -> float | None:
    """Throughput of the gateway over that of vllm-router with the policy that is best here."""
    others = [tokens_per_second(cell, name) for name in cell.runs if name.startswith("vllm-router")]
    if not others or "gateway" not in cell.runs:
        return None
    return tokens_per_second(cell, "gateway") / max(others)


def _is_multi(cell: Cell) -> bool:
    return _MULTI in cell.shape.name


def _differing(cell: Cell) -> int:
    runs = [run for found in cell.runs.values() for run in found]
    ours = cell.runs.get("gateway", [])
    return max((sum(_other(one.answers, run.answers) for run in runs) for one in ours), default=0)


def _other(left: dict[str, str], right: dict[str, str]) -> int:
    return sum(left[name] != right[name] for name in left.keys() & right.keys())


def _without_answers(run: Measured) -> dict[str, Any]:
    content = asdict(run)
    del content["answers"]
    return content


def rows(result: Result) -> list[Row]:
    """What, measured, target."""
    figures, more = result.summary(), result.details()

    def shown(name: str, pattern: str, factor: float = 1.0) -> str:
        value = figures[name] if name in figures else more[name]
        return "not measured" if value is None else pattern.format(factor * value)

    return [
        ("added latency of a turn, median", shown("added_latency_p50_seconds", "{:.2f} ms", 1e3), "≤ 2 ms"),
        ("added latency of a turn, p99", shown("added_latency_p99_seconds", "{:.2f} ms", 1e3), "≤ 10 ms"),
        ("the same of vllm-router, median", shown("router_added_latency_p50_seconds", "{:.2f} ms", 1e3), ""),
        ("the same of vllm-router, p99", shown("router_added_latency_p99_seconds", "{:.2f} ms", 1e3), ""),
        ("throughput, colocated", shown("throughput_vs_vllm_router_colocated", "{:.3f} ×"), "≥ 0.9 × vllm-router"),
        ("throughput, disaggregated", shown("throughput_vs_vllm_router_disaggregated", "{:.3f} ×"), "≥ 0.9 ×"),
        ("throughput, multi-turn", shown("throughput_vs_vllm_router_multiturn", "{:.3f} ×"), "> 1 ×"),
        ("turns of 256 tokens per second and core", shown("turns_per_second_per_core", "{:.0f}"), "≥ 300"),
        (
            "streamed tokens per second and core",
            shown("streamed_tokens_per_second_per_core", "{:,.0f}"),
            "≥ 75,000",
        ),
        ("CPU of such a turn", shown("cpu_microseconds_per_turn", "{:.0f} µs"), ""),
        ("CPU of a further chunk of 16 tokens", shown("cpu_microseconds_per_chunk", "{:.0f} µs"), ""),
        ("CPU of such a turn in vllm-router", shown("router_cpu_microseconds_per_turn", "{:.0f} µs"), ""),
        ("CPU, gateway to vllm-router", shown("cpu_vs_vllm_router", "{:.1f} ×"), ""),
        (
            f"memory growth over {more['memory_turns']:,} turns",
            shown("memory_growth_bytes", "{:.1f} MiB", 2**-20),
            "flat",
        ),
        ("failed turns, other tokens", f"{more['failed_turns']}, {more['differing_answers']}", "0, 0"),
        ("cores, load before", f"{more['cores']}, {more['load_before']:.1f}", ""),
    ]


def cell_rows(result: Result) -> list[tuple[str, ...]]:
    """Cell, server, tokens per second, median and p99 of a turn, turns that failed."""
    found = []
    for cell in result.cells:
        for server in cell.runs:
            middle, tail = (turn_percentile(cell, server, percent) for percent in (50, 99))
            times = [f"{1e3 * one:.1f} ms" if one is not None else "-" for one in (middle, tail)]
            failed = sum(len(run.problems) for run in cell.runs[server])
            found.append((cell.name, server, f"{tokens_per_second(cell, server):,.0f}", *times, str(failed)))
    return found


def write_page(result: Result, folder: Path) -> None:
    """`gateway.md` with its plots as PNG and SVG."""
    plot_latency(result.of(PACED), folder)
    plot_throughput([(cell.name, ratio(cell)) for cell in result.of(THROUGHPUT)], folder)
    table = in_markdown(rows(result))
    cells = "\n".join(f"| {' | '.join(row)} |" for row in cell_rows(result))
    (folder / "gateway.md").write_text(TEXT.format(table=table, cells=cells))


TEXT = """# The gateway beside vllm-router, on the same workers

Workers are emulated engines ([emulator](../emulator.md)) and, where the table names them, real vLLM on the CPU. Gateway
and router stand before the same ones, at the same time, and are asked one after the other with the same token ids;
the engines' prefix caches are emptied in between. The router runs with each of its policies `consistent_hash` (which
is told the trajectory, as the gateway is) and `cache_aware`, and is compared with the better one, cell by cell.
Clients, engines, gateway and router share one machine over the loopback. The gateway prefills on the decode worker
what the planner would let it at this load (`PEARL_LOCAL_APPEND_TOKENS`).

`make bench-gateway` repeats it (`JSON=FILE` writes every turn).

| | measured | target |
|---|---|---|
{table}

*Added latency*: 256 trajectories at once, four turns each with two seconds of tools between them, engines that answer
at once, prompts of 512 and answers of 64 tokens; a percentile of whole turns (last token) through the gateway less the
same percentile of turns that go to the engine directly, the worse of streamed and whole answers. *CPU* is process time
of the gateway, asked as fast as it goes with answers of 256 tokens in chunks of 16; turns and tokens per core are its
inverse. *Throughput* is tokens per second where engines with the timing of an H100 are the limit, over the router's:
the worst of streamed and whole answers, and of colocated and disaggregated for multi-turn. *Memory growth* counts from
a fifth of the run on; every batch is finished, consumed and closed, as a trainer does.
*Other tokens* are answers that differ from what engine or router say to the same prompt.

![Turn latency through each](gateway-latency.png)

![Throughput over that of vllm-router](gateway-throughput.png)

| cell | through | tokens/s | turn, median | turn, p99 | failed |
|---|---|---|---|---|---|
{cells}
"""

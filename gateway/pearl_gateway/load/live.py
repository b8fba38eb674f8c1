"""A live view of a replay in the terminal."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from pearl_gateway.load.report import percentile

if TYPE_CHECKING:
    from rich.console import Console

    from pearl_gateway.load.replay import Progress

_EVERY_SECONDS = 0.5
_RECENT = 200
"""Turns whose times are shown."""


def progress_table(progress: Progress, now: float) -> Table:
    """The numbers of this moment."""
    seconds = max(now - progress.started_at, 1e-6)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("trajectories", f"{progress.finished} of {progress.trajectories}, {progress.running} running")
    table.add_row("turns", f"{len(progress.played)} of {progress.turns}, {progress.waiting_for_tools} in a tool")
    table.add_row("tokens", f"{progress.generated_tokens}, {progress.generated_tokens / seconds:.0f} per second")
    recent = sorted(one.seconds for one in progress.played[-_RECENT:])
    if recent:
        middle, tail = (percentile(recent, percent) or 0.0 for percent in (50, 99))
        table.add_row(f"last {len(recent)} turns", f"{middle:.3f} s median, {tail:.3f} s p99")
    table.add_row("repeated", str(progress.repeats))
    table.add_row("failed", str(len(progress.failed)))
    if progress.checked:
        table.add_row("checked", f"{progress.checked} turns, {len(progress.wrong)} differ")
    return table


async def show(progress: Progress, console: Console) -> None:
    """Until cancelled. Only on a terminal; elsewhere a line every ten seconds."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(20 * _EVERY_SECONDS)
            console.print(
                f"{len(progress.played)}/{progress.turns} turns, {progress.finished}/{progress.trajectories} "
                f"trajectories, {progress.generated_tokens} tokens, {len(progress.failed)} failed"
            )
    with Live(progress_table(progress, time.monotonic()), console=console, refresh_per_second=4) as live:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            live.update(progress_table(progress, time.monotonic()))

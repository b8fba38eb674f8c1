"""The live terminal view: what is being done, the fleets, the last decisions, the trainer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from examples.common.timeline import FleetSample
    from examples.demo.facts import Record

SHOWN_DECISIONS = 5
SHOWN_ACTS = 12


class View:
    """Redraws itself from the record; without a terminal it prints one line per act instead."""

    def __init__(self, record: Record, console: Console | None = None) -> None:
        """Nothing is shown before `start`."""
        self._record = record
        self._console = console or Console()
        self._started = time.monotonic()
        self._acts: list[str] = []
        self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=2, transient=True)

    def start(self) -> None:
        """Begin drawing."""
        if self._console.is_terminal:
            self._live.start()

    def stop(self) -> None:
        """End drawing; what was done stays on the screen."""
        if self._console.is_terminal:
            self._live.stop()
            for act in self._acts:
                self._console.print(act)

    def act(self, text: str) -> None:
        """The scenario goes on."""
        line = f"[{time.monotonic() - self._started:5.0f} s] {text}"
        self._acts.append(line)
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False)

    def _draw(self) -> Group:
        return Group(
            Panel(Text("\n".join(self._acts[-SHOWN_ACTS:])), title="PEARL, act 2"),
            _fleets(self._record),
            _decisions(self._record),
            _trainer(self._record),
        )


def _fleets(record: Record) -> Table:
    table = Table("rollout", "P", "D", "C", "borrowed", "ready", "generated", "prefilled", expand=True)
    latest: dict[str, FleetSample] = {sample.rollout: sample for sample in record.samples[-8:]}
    for sample in latest.values():
        table.add_row(
            sample.rollout,
            *(str(n) for n in (sample.prefill, sample.decode, sample.colocated, sample.borrowed, sample.ready)),
            *("–" if n is None else f"{n:,}" for n in (sample.generated_tokens, sample.prefilled_tokens)),
        )
    return table


def _decisions(record: Record) -> Table:
    table = Table("at", "rollout", "decision", "why", expand=True)
    for one in record.decisions[-SHOWN_DECISIONS:]:
        table.add_row(f"{one.at:.0f} s", one.rollout, f"{one.reason}\n{one.shape}", one.message)
    return table


def _trainer(record: Record) -> Text:
    if not record.steps:
        return Text("")
    last = record.steps[-1]
    reclaim = f"{last.reclaim_seconds:.2f} s" if last.was_lent else "not lent"
    return Text(
        f"trainer: update {len(record.steps)}, reward {last.reward:.2f}, weights version {last.version}, "
        f"reclaim {reclaim} (deadline {last.deadline_seconds or 0.0:.0f} s)"
    )

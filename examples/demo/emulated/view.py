"""The live view of act 1: GPUs, workers, batch, trainer, and what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from examples.demo.emulated.facts import Record, Sample, Told
    from pearl_simulator.types import Scenario

SHOWN = 14
COLORS = {
    "operator": "cyan",
    "loan": "magenta",
    "trainer": "yellow",
    "cloud": "red",
    "fleet": "green",
    "agents": "blue",
}
REAL = (
    "Real: the operator's loops, planner, loan service and status. Emulated: API server, machines, engines, agents of "
    "the workers, gateway, trainer and time."
)


class View:
    """Redraws itself from the record; without a terminal it prints one line for everything that happens."""

    def __init__(self, record: Record, scenario: Scenario, speed: float, console: Console) -> None:
        """Nothing is shown before `start`."""
        self._record = record
        self._scenario = scenario
        self._speed = speed
        self._console = console
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=True)

    def start(self) -> None:
        """Begin drawing."""
        if self._console.is_terminal:
            self._live.start()
        else:
            self._console.print(REAL, highlight=False, markup=False)

    def stop(self) -> None:
        """End drawing; what happened stays on the screen."""
        if self._console.is_terminal:
            self._live.stop()
            for one in self._record.told[-SHOWN:]:
                self._console.print(_line(one), soft_wrap=True)

    def say(self, one: Told) -> None:
        """Something happened."""
        if not self._console.is_terminal:
            self._console.print(_line(one), soft_wrap=True)

    def _draw(self) -> Group:
        if not self._record.samples:
            return Group(Text("The operator starts."))
        now = self._record.samples[-1]
        pace = f"{self._speed:g}× time" if self._speed else "as fast as possible"
        at = f"{now.at / 60:.0f} of {self._scenario.horizon_seconds / 60:.0f} minutes of a Bamboo spot trace, {pace}"
        told = Group(*(_line(one) for one in self._record.told[-SHOWN:]))
        return Group(
            Panel(self._fleet(now), title=f"PEARL, act 1: {at}"), Panel(told, title="what happens"), Text(REAL, "dim")
        )

    def _fleet(self, now: Sample) -> Table:
        fleet, table = self._scenario.fleet, Table.grid(padding=(0, 2))
        table.add_row("reserved GPUs", _bar(now.reserved, fleet.reserved_gpus, "blue"), f"{now.reserved}")
        there = f"{now.elastic} of {now.spot} that there are"
        table.add_row("spot GPUs", _bar(now.elastic, now.spot, "green", fleet.elastic_max_gpus), there)
        table.add_row("training GPUs", _bar(now.borrowed, fleet.borrowed_max_gpus, "magenta"), _trainer(now))
        roles = f"{now.prefill} prefill, {now.decode} decode, {now.colocated} colocated; {now.ready} ready"
        table.add_row("workers", roles, now.mode)
        table.add_row("a batch takes", _seconds(now.predicted_seconds), self._fixed(now))
        table.add_row("last reclaim", self._reclaim(), f"{len(self._record.batches)} batches so far")
        return table

    def _fixed(self, now: Sample) -> str:
        return f"{_seconds(now.fixed_seconds)} on the {self._scenario.fleet.reserved_gpus} reserved GPUs, colocated"

    def _reclaim(self) -> str:
        lent = [one for one in self._record.reclaims if one.was_lent]
        return f"{lent[-1].seconds:.1f} s, deadline {lent[-1].deadline_seconds:.0f} s" if lent else "none yet"


def _bar(held: int, there: int, color: str, most: int | None = None) -> Text:
    """Held, there and not held, not there."""
    missing = max((most or there) - max(there, held), 0)
    return Text.assemble(("█" * held, color), ("░" * max(there - held, 0), color), ("·" * missing, "dim"))


def _trainer(now: Sample) -> str:
    if now.training:
        return "the trainer updates"
    return "lent while it waits for its batch" if now.lent else "idle: it waits for its batch"


def _seconds(value: float | None) -> str:
    return "not predicted yet" if value is None else f"{value:,.0f} s predicted"


def _line(one: Told) -> Text:
    clock = f"{one.at / 60:5.1f} min "
    return Text.assemble(
        (clock, "dim"), (f"{one.who:<9}", COLORS.get(one.who, "")), one.text, no_wrap=True, overflow="ellipsis"
    )

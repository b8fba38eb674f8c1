"""Says what is being done, how far it is, and how long it took."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

REPEAT_SECONDS = 30.0
"""How often a long step shows a sign of life where there is no terminal."""


@dataclass(slots=True)
class Step:
    """One thing being done now."""

    title: str
    console: Console
    status: Status | None
    started: float
    shown: float

    def update(self, detail: str) -> None:
        """Show how far the step is."""
        seconds = time.monotonic() - self.started
        line = f"{self.title}: {detail}, {seconds:.0f} s"
        if self.status is not None:
            self.status.update(line)
        elif time.monotonic() - self.shown >= REPEAT_SECONDS:
            self.shown = time.monotonic()
            self.console.print(f"  … {line}", highlight=False)


@dataclass(slots=True)
class Progress:
    """Prints one line per finished step."""

    console: Console = field(default_factory=lambda: Console(stderr=True))
    quiet: bool = False

    def say(self, text: str) -> None:
        """Print one line between steps."""
        if not self.quiet:
            self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Time what happens inside; a failure is marked as one."""
        started = time.monotonic()
        live = self.console.is_terminal and not self.quiet
        status = self.console.status(title) if live else None
        step = Step(title, self.console, status, started, started)
        if status is not None:
            status.start()
        mark = "[red]✗[/red]"
        try:
            yield step
            mark = "[green]✓[/green]"
        finally:
            if status is not None:
                status.stop()
            self.say(f"{mark} {title} [dim]{time.monotonic() - started:.1f} s[/dim]")

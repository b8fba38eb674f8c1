"""What every part of the demo shares: the installation, the two fleets, the record, and a place for files."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.common.sampler import Sampler
    from examples.demo.facts import Record
    from examples.demo.view import View
    from pearl_dev.fleet import Fleet
    from pearl_dev.product import Installation

HERE = Path(__file__).parent


@dataclass(slots=True)
class Stage:
    """One run of the demo."""

    installation: Installation
    agents: Fleet
    policy: Fleet
    record: Record
    sampler: Sampler
    view: View
    folder: Path
    """Where logs, summaries and the report go."""
    _steps: Iterator[int] = field(default_factory=itertools.count)

    def act(self, text: str) -> None:
        """Say what happens now, on the screen and in the plots."""
        self.view.act(text)
        if not text.startswith(" "):
            self.sampler.mark(text.split(";", 1)[0].split(",", 1)[0])

    def next_step(self) -> int:
        """A batch number that no batch had yet; the trainer's own start elsewhere."""
        return 1_000_000 + next(self._steps)

    def program(self, name: str) -> str:
        """A program of this project's environment."""
        return str(Path(sys.executable).with_name(name))

    def scaled(self, phase: str, token_factor: float, inputs: float, responses: float, time_scale: float) -> None:
        """Tell how recorded sessions were scaled for a phase."""
        text = (
            f"{phase}: token counts × {token_factor:.3f} to fit the model's context, inputs × {inputs:g}, "
            f"answers × {responses:g}, tool delays × {time_scale:g}."
        )
        if text not in self.record.scales:
            self.record.scales.append(text)

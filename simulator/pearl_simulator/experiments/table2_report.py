"""`pearl-sim table2`: the choices of the published equations next to the published choices."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pearl_simulator.experiments.table2 import table2
from pearl_simulator.reporting.report import Report, Table

if TYPE_CHECKING:
    from pearl_simulator.experiments.setting import Setting

ABOUT = (
    "The six prefill:decode ratios of the PEARL paper's Table 2, chosen by its Equations 2 and 3 with one parameter "
    "set (Qwen3-8B, two H100 GPUs per worker). Three parameters were fitted to the six ratios, so this shows that the "
    "equations lead to the published choices; it validates nothing beyond that."
)


def run(_setting: Setting) -> Report:
    """Deterministic: no seeds, nothing is simulated."""
    found = table2()
    rows = tuple(
        (
            f"{row.gpus} GPUs{' + overlap' if row.overlap else ''}",
            row.workers,
            " or ".join(row.wanted),
            row.got,
            row.matches,
            ", ".join(f"{ratio} {seconds:,.0f} s" for ratio, seconds in row.top),
        )
        for row in found.rows
    )
    columns = ("fleet", "workers", "published", "chosen", "same", "best three, predicted per batch")
    return Report(
        experiment="table2",
        title="Table 2 of the PEARL paper",
        about=ABOUT,
        summary={"matches": found.matches},
        tables=(Table("Chosen ratios", columns, rows),),
        parameters={"model": asdict(found.model)},
    )

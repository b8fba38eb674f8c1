"""The part of the report that act 2 fills."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from examples.common import page
from examples.common.plots import svg
from examples.demo import plots

if TYPE_CHECKING:
    from examples.demo.facts import LoadResult, Record


def parts(record: Record, *, agents: str, policy: str) -> list[str]:
    """HTML of act 2, piece by piece."""
    return [
        "<h2>Act 2: a real cluster, real vLLM, a real trainer</h2>",
        f"<p class=small>{escape(' '.join(record.scales))}</p>",
        page.promises(record.checks),
        "<h3>Shape follows work</h3>",
        svg(plots.shape(record, agents)),
        svg(plots.throughput(record, agents)),
        "<h3>Decisions and why</h3>",
        page.decisions(record.decisions),
        "<h3>The same work on a fixed colocated fleet</h3>",
        svg(plots.comparison(record)),
        f"<p>{escape(verdict(record.loads))}</p>",
        "<h3>Lend, reclaim, train</h3>",
        svg(plots.training(record)),
        svg(plots.shape(record, policy)),
        svg(plots.reclaims(record)),
    ]


def verdict(loads: list[LoadResult]) -> str:
    """Plain sentences on which fleet was faster in each phase, and by how much."""
    sentences = []
    for phase in dict.fromkeys(load.phase for load in loads):
        by_fleet = {load.fleet: load.seconds for load in loads if load.phase == phase}
        pearl, fixed = by_fleet.get("pearl"), by_fleet.get("fixed colocated")
        if pearl is None or fixed is None:
            continue
        change = 100 * (fixed / pearl - 1)
        words = f"{change:.0f} % faster" if change >= 0 else f"{-change:.0f} % slower"
        sentences.append(f"{phase}: PEARL took {pearl:.1f} s, the fixed colocated fleet {fixed:.1f} s ({words}).")
    note = "One run on shared cores: read it as an illustration, not as a benchmark."
    return " ".join([*sentences, note]) if sentences else "Not compared."

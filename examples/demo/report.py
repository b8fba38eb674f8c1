"""The HTML report: one file, plots inside."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from examples.demo import plots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.demo.facts import LoadResult, Record

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
h1{margin-bottom:0}table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;
text-align:left;vertical-align:top}td.n{text-align:right}.kept{color:#1b7f5c}.broken{color:#b3261e;font-weight:bold}
svg{max-width:100%;height:auto}.small{color:#666;font-size:13px}
"""


def html(record: Record, *, agents: str, policy: str) -> str:
    """The whole page."""
    parts = [
        "<h1>PEARL demo</h1>",
        f"<p class=small>{escape(' '.join(record.scales))}</p>",
        "<h2>Promises</h2>",
        _checks(record),
        "<h2>Shape follows work</h2>",
        plots.svg(plots.shape(record, agents)),
        plots.svg(plots.throughput(record, agents)),
        "<h3>Decisions and why</h3>",
        _decisions(record),
        "<h2>The same work on a fixed colocated fleet</h2>",
        plots.svg(plots.comparison(record)),
        f"<p>{escape(verdict(record.loads))}</p>",
        "<h2>Lend, reclaim, train</h2>",
        plots.svg(plots.training(record)),
        plots.svg(plots.shape(record, policy)),
        plots.svg(plots.reclaims(record)),
    ]
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>PEARL demo</title><style>{STYLE}</style>"
        f"</head><body>{''.join(parts)}</body></html>\n"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{lines}</table>"


def _checks(record: Record) -> str:
    def state(kept: bool) -> str:
        return "<span class=kept>kept</span>" if kept else "<span class=broken>broken</span>"

    rows = [(escape(promise), state(kept), escape(seen)) for promise, kept, seen in record.checks]
    return _table(("promise", "", "seen"), rows)


def _decisions(record: Record) -> str:
    rows = [
        (f"{d.at:.0f} s", escape(d.rollout), escape(d.reason), escape(d.shape), escape(d.message))
        for d in record.decisions
    ]
    return _table(("at", "rollout", "reason", "shape", "why"), rows)


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

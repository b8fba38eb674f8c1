"""Parts of an HTML report that is one file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from examples.common.promises import Promise
    from examples.common.timeline import DecisionFact

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}
h1{margin-bottom:0}table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;
text-align:left;vertical-align:top}td.n{text-align:right}.kept{color:#1b7f5c}.broken{color:#b3261e;font-weight:bold}
svg{max-width:100%;height:auto}.small{color:#666;font-size:13px}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page with a heading."""
    return (
        f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
        f"</head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are HTML, the head is text."""
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{lines}</table>"


def promises(found: Sequence[Promise]) -> str:
    """Each promise, whether it was kept, and what was seen."""

    def state(*, kept: bool) -> str:
        return "<span class=kept>kept</span>" if kept else "<span class=broken>broken</span>"

    rows = [(escape(one.text), state(kept=one.kept), escape(one.seen)) for one in found]
    return table(("promise", "", "seen"), rows)


def promises_on_screen(found: Sequence[Promise], title: str = "What was kept") -> Table:
    """The same for a terminal."""
    shown = Table("promise", "", "seen", title=title)
    for one in found:
        shown.add_row(one.text, "[green]kept[/green]" if one.kept else "[red]broken[/red]", one.seen)
    return shown


def decisions(found: Sequence[DecisionFact]) -> str:
    """What the operator decided and why."""
    rows = [(f"{d.at:.0f} s", escape(d.rollout), escape(d.reason), escape(d.shape), escape(d.message)) for d in found]
    return table(("at", "rollout", "reason", "shape", "why"), rows)

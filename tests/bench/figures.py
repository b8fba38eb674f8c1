"""Figures of a bench with their targets, for the terminal and for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = tuple[str, str, str]
"""What, what was found, the target (empty = none)."""


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of all do not exceed; None where there are none."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def print_rows(table: Sequence[Row]) -> None:
    """To the terminal."""
    width = max(len(what) for what, _, _ in table)
    for what, found, target in table:
        print(f"{what:{width}}  {found}{f'   (target {target})' if target else ''}")


def in_markdown(table: Sequence[Row]) -> str:
    """Lines of a Markdown table."""
    return "\n".join(f"| {what} | {found} | {target} |" for what, found, target in table)

"""Totals of all processes that ever belonged to the gateway; pure.

Every start of a process counts from zero under a name of its own, and its counts only grow. So the greatest count that
anybody heard of is the newest one, two ledgers are joined in any order and any number of times, and the sums never
fall: not when a process dies, nor when the one that answers does.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Ledger: TypeAlias = "dict[str, dict[str, int]]"
"""Name of a process's start → counter → count."""


def joined(one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]) -> Ledger:
    """What both know together; counts of nothing are left out."""
    return {start: _greatest(one.get(start, {}), other.get(start, {})) for start in {**one, **other}}


def sums(ledger: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Every counter over all starts."""
    found: Counter[str] = Counter()
    for counts in ledger.values():
        found.update(counts)
    return dict(found)


def beyond(mine: Mapping[str, Mapping[str, int]], theirs: Mapping[str, Mapping[str, int]]) -> Ledger:
    """What I know of starts that others do not know as well."""
    both = joined(mine, theirs)
    return {start: counts for start, counts in both.items() if counts != joined({}, theirs).get(start)}


def _greatest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    found = {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
    return {name: count for name, count in found.items() if count}

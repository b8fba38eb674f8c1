"""What a member has to tell the owner, kept until it has been heard; and the owner's side, which hears it once."""

from __future__ import annotations

from typing import Any

MOST_NOTES = 65536
"""Of an owner that is away for longer than it takes to start one, the oldest are given up."""


class Outbox:
    """Numbered notes, oldest first."""

    def __init__(self) -> None:
        self.first = 0
        self.notes: list[dict[str, Any]] = []
        self.given_up = 0

    def put(self, kind: str, **content: Any) -> None:
        """One more."""
        self.notes.append({"kind": kind, **content})
        if len(self.notes) > MOST_NOTES:
            self.given_up += 1
            self.acked(self.first + 1)

    def acked(self, number: int) -> None:
        """All before `number` have been heard."""
        del self.notes[: max(0, number - self.first)]
        self.first = max(self.first, number)


class Inbox:
    """Which notes were heard, by the start of the process that sent them."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def new(self, start: str, first: int, notes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that were not heard before; they count as heard now."""
        known = self._next.get(start, first)
        self._next[start] = max(known, first + len(notes))
        return notes[max(0, known - first) :]

    def heard(self, start: str) -> int:
        """Number of the next note that is expected."""
        return self._next.get(start, 0)

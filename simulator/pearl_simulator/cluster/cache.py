"""KV of idle contexts on one worker: least recently used goes first, from its end (a prefix stays usable)."""

from __future__ import annotations

from math import ceil


class PrefixCache:
    """Tokens by trajectory number, oldest use first."""

    __slots__ = ("entries", "total")

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}
        self.total = 0

    def peek(self, key: int) -> int:
        """Tokens held, without using them."""
        return self.entries.get(key, 0)

    def take(self, key: int) -> int:
        """Tokens held; they are no longer idle."""
        tokens = self.entries.pop(key, 0)
        self.total -= tokens
        return tokens

    def keep(self, key: int, tokens: int) -> None:
        """Idle from now on; replaces what was held under this key."""
        old = self.entries.pop(key, 0)
        self.entries[key] = tokens
        self.total += tokens - old

    def trim(self, limit: float) -> None:
        """Evict until at most `limit` tokens are idle."""
        entries = self.entries
        while self.total > limit and entries:
            key = next(iter(entries))
            excess = ceil(self.total - limit)
            if entries[key] > excess:
                entries[key] -= excess
                self.total -= excess
                return
            self.total -= entries.pop(key)

    def clear(self) -> None:
        """Forget all."""
        self.entries.clear()
        self.total = 0

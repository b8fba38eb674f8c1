"""Stop strings: cutting them out of an answer, and finding those that cross the seam of two segments.

The engine finds stop strings in what it generates itself. After a resume it cannot know the text before, so the
gateway looks in the joined text (`StopWatch`). `StopCutter` then does to the text what the engine does to its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_gateway.text import PROMPT_TAIL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.text import TextService
    from pearl_gateway.turn_state import Turn


def stop_strings(stop: object) -> list[str]:
    """The `stop` parameter as a list; empty strings are no stop strings."""
    if isinstance(stop, str):
        return [stop] if stop else []
    return [one for one in stop if isinstance(one, str) and one] if isinstance(stop, list) else []


def find_stop(text: str, stops: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Position and text of the stop string to end at, looking from `start`; the first listed one wins."""
    for stop in stops:
        at = text.find(stop, max(0, start))
        if at >= 0:
            return at, stop
    return None


class StopWatch:
    """Watches one resumed turn for stop strings in its joined text."""

    def __init__(self, turn: Turn, text: TextService) -> None:
        self._turn = turn
        self._text = text
        self._stops = stop_strings(turn.sampling.get("stop"))
        self._seen = 0
        """Tokens whose text was looked at."""
        self._length = 0
        """Length of that text."""

    async def begin(self) -> None:
        """Take note of the text so far; the engine looked at it already."""
        self._turn.held = True
        self._seen = len(self._turn.token_ids)
        self._length = len(await self._decode(self._seen))

    async def check(self) -> bool:
        """Look at what arrived since; on a hit the turn is cut after the token that completed the stop string."""
        total = len(self._turn.token_ids)
        if total == self._seen:
            return False
        text = await self._decode(total)
        longest = max(map(len, self._stops))
        minimum = int(self._turn.sampling.get("min_tokens") or 0)
        if total > minimum and find_stop(text, self._stops, self._length + 1 - longest):
            return await self._cut(total, minimum)
        self._seen, self._length = total, len(text)
        self._turn.show()
        return False

    async def _cut(self, total: int, minimum: int) -> bool:
        # A read may bring several tokens; which one completed the stop string decides where the answer ends.
        longest = max(map(len, self._stops))
        for end in range(max(self._seen + 1, minimum + 1), total + 1):
            text = await self._decode(end)
            found = find_stop(text, self._stops, self._length + 1 - longest)
            if found is not None:
                self._turn.cut(end)
                self._turn.finish_reason, self._turn.stop_reason = "stop", found[1]
                self._turn.show()
                return True
            self._length = len(text)
        return False

    async def _decode(self, end: int) -> str:
        return await self._text.decode(self._turn.prompt[-PROMPT_TAIL:], self._turn.token_ids[:end])


class StopCutter:
    """Passes streamed text on, holding back what could become a stop string."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = list(stops)
        self._include = include
        self._hold = max((len(stop) for stop in self._stops), default=1) - 1
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown now."""
        joined = self._held + text
        keep = min(self._hold, len(joined))
        self._held = joined[len(joined) - keep :] if keep else ""
        return joined[: len(joined) - keep]

    def end(self, text: str, stop_reason: int | str | None) -> str:
        """What is left to show with the last piece of text, cut where the answer stopped."""
        return cut_at_stop(self._held + text, stop_reason, include=self._include)


def cut_at_stop(text: str, stop_reason: int | str | None, *, include: bool = False, start: int = 0) -> str:
    """`text` up to the stop string that ended it; unchanged if none did."""
    if not isinstance(stop_reason, str):
        return text
    at = text.find(stop_reason, start)
    if at < 0:
        return text
    return text[: at + len(stop_reason)] if include else text[:at]

"""Answers as streams of events, while their turns run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from pearl_gateway.answers import request_id, token_choice
from pearl_gateway.jsons import dumps
from pearl_gateway.tokens_out import TextStream
from pearl_gateway.usage import StreamUsage, stream_usage, usage, usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from pearl_gateway.sessions import Sessions
    from pearl_gateway.text import TextService
    from pearl_gateway.turn_state import Turn


class Streams:
    """Follows turns and tells their tokens as they come."""

    def __init__(self, sessions: Sessions, text: TextService) -> None:
        self._sessions = sessions
        self._text = text

    async def text_events(
        self,
        body: dict[str, Any],
        turns: list[Turn],
        samples: int,
        head: dict[str, Any],
        ended: Callable[[dict[str, Any]], None],
    ) -> AsyncGenerator[bytes]:
        """Events of a completion or chat.

        Args:
            body: The client's request.
            turns: One for each sample of each prompt.
            samples: Of each prompt.
            head: What every event begins with; its `object` tells which of the two it is.
            ended: Gets the whole answer as an assistant message, where it is one.
        """
        chat = head["object"] == "chat.completion.chunk"
        streams = [TextStream(self._text, body, turn, chat=chat) for turn in turns]
        said, counts = _Said(), stream_usage(body)
        unsaid = {"prompt_token_ids": turns[0].prompt} if chat and body.get("return_token_ids") else {}
        async with aclosing(self._follow_all(turns, first_alone=chat)) as ranges:
            async for at, start, end in ranges:
                turn = turns[at]
                if turn.error is not None:
                    raise turn.error
                choice = await streams[at].push(start, end, last=turn.settled and end == len(turn.token_ids))
                choice["index"] = at
                said.add(choice)
                event = {**head, **unsaid, "choices": [choice]}
                if counts is StreamUsage.ALWAYS:
                    event["usage"] = usage_of(len(turn.prompt), end)
                unsaid = {}
                yield _event(event)
        if len(turns) == 1:
            ended(said.message())
        if counts is not StreamUsage.NEVER:
            yield _event({**head, "usage": usage(turns, samples)})

    async def _follow_all(self, turns: list[Turn], *, first_alone: bool) -> AsyncGenerator[tuple[int, int, int]]:
        """(index of the turn, start, end) of new tokens, as `follow` gives them."""
        if len(turns) == 1:
            async with aclosing(self.follow(turns[0], first_alone=first_alone)) as ranges:
                async for start, end in ranges:
                    yield 0, start, end
            return
        news: asyncio.Queue[tuple[int, int, int] | None] = asyncio.Queue(maxsize=len(turns))

        async def pump(at: int, turn: Turn) -> None:
            async with aclosing(self.follow(turn, first_alone=first_alone)) as ranges:
                async for start, end in ranges:
                    await news.put((at, start, end))
            await news.put(None)

        pumps = [asyncio.ensure_future(pump(at, turn)) for at, turn in enumerate(turns)]
        try:
            left = len(turns)
            while left:
                found = await news.get()
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for one in pumps:
                one.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def token_events(self, turn: Turn, counts: StreamUsage, *, with_logprobs: bool) -> AsyncGenerator[bytes]:
        """Events of the token path."""
        head = {"request_id": request_id(turn), "output_mode": "tokens"}
        async with aclosing(self.follow(turn)) as ranges:
            async for start, end in ranges:
                if turn.error is not None:
                    raise turn.error
                choice = token_choice(turn, start, end, with_logprobs=with_logprobs)
                event: dict[str, Any] = {**head, "choices": [choice]}
                if counts is StreamUsage.ALWAYS:
                    event["usage"] = usage_of(len(turn.prompt), end)
                yield _event(event)
        if counts is not StreamUsage.NEVER:
            yield _event({**head, "choices": [], "usage": usage([turn])})

    async def follow(self, turn: Turn, *, first_alone: bool = False) -> AsyncGenerator[tuple[int, int]]:
        """Ranges of new tokens as they come; the last one may be empty and comes when the turn is settled.

        `first_alone`: the first token is a range of its own, as in the engine. Some parsers find the mark that begins
        reasoning only where it comes alone.
        """
        sent = 0
        async with self._sessions.reading(turn):
            while True:
                end, settled = turn.visible, turn.settled
                # The last tokens are passed on with the end: a stop string in them is cut by how the answer ended.
                if (end > sent and not turn.complete) or settled:
                    turn.shown = max(turn.shown, end)
                    if first_alone and not sent and end > 1:
                        yield 0, 1
                        sent = 1
                    yield sent, end
                    sent = end
                    if settled:
                        return
                else:
                    await turn.wait()


class _Said:
    """The assistant's message, put together from streamed choices."""

    def __init__(self) -> None:
        self.text = ""
        self._calls: dict[int, dict[str, str]] = {}

    def add(self, choice: dict[str, Any]) -> None:
        """One streamed choice."""
        delta = choice.get("delta") or {}
        self.text += choice.get("text") or delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            known = self._calls.setdefault(call.get("index", 0), {"name": "", "arguments": ""})
            function = call.get("function") or {}
            known["name"] += function.get("name") or ""
            known["arguments"] += function.get("arguments") or ""

    def message(self) -> dict[str, Any]:
        """As an assistant message."""
        calls = [{"function": call} for _, call in sorted(self._calls.items())]
        return {"role": "assistant", "content": self.text, "tool_calls": calls}


def _event(content: dict[str, Any]) -> bytes:
    return dumps(content)

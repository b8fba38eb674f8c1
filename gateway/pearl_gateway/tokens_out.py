"""Token ids to OpenAI answers, by the engines' own derender endpoints; stop strings are cut as the engine cuts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.chat_parts import DeltaCutter, given, hides_tokens, name_calls, whole_finish
from pearl_gateway.logprobs import LOGPROB_CONTEXT, for_derender, named, offsets
from pearl_gateway.stops import StopCutter, cut_at_stop, stop_strings
from pearl_gateway.text import PROMPT_TAIL

if TYPE_CHECKING:
    from pearl_gateway.text import TextService
    from pearl_gateway.turn_state import Turn

_DECODING = ("skip_special_tokens", "spaces_between_special_tokens", "model")


class TokensOut:
    """Text answers of finished turns."""

    def __init__(self, text: TextService) -> None:
        self._text = text

    async def completion_choice(self, body: dict[str, Any], turn: Turn, index: int) -> dict[str, Any]:
        """One choice of a completion."""
        choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None}
        if turn.token_ids:
            request = {
                "generate_responses": [_response(body, turn, chat=False)],
                "prompt_token_ids": [turn.prompt[-PROMPT_TAIL:]],
                "completion_request": _decoding(body, prompt=[0]),
            }
            answer = await self._text.call("/v1/completions/derender", request)
            found = answer["choices"][0]
            choice["logprobs"] = named(body, found.get("logprobs"), turn.entries)
            if shown_end(turn):
                choice["text"] = found["text"]
        choice["text"] = await self._cut(turn, choice["text"])
        choice.update(finish_reason=turn.finish_reason, stop_reason=turn.stop_reason)
        if body.get("return_token_ids"):
            choice.update(token_ids=turn.token_ids, prompt_token_ids=turn.prompt)
        return choice

    async def chat_choice(self, body: dict[str, Any], turn: Turn, index: int) -> dict[str, Any]:
        """One choice of a chat completion, with tool calls and reasoning as the engine's parsers see them."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        choice: dict[str, Any] = {"index": index, "logprobs": None}
        hidden = False
        if turn.token_ids:
            request = {
                "generate_response": {**_response(body, turn, chat=True), "prompt_token_ids": turn.prompt},
                "prompt_token_ids": turn.prompt,
                "chat_request": chat_request(body),
            }
            answer = await self._text.call("/v1/chat/completions/derender", request)
            found = answer["choices"][0]
            hidden = hides_tokens(body, found)
            if not hidden:
                choice["logprobs"] = named(body, found.get("logprobs"), turn.entries)
            if shown_end(turn):
                message = found["message"]
        for name in ("reasoning", "content"):
            if isinstance(message.get(name), str):
                message[name] = await self._cut(turn, message[name])
        name_calls(turn, message)
        finish = whole_finish(body, message, turn.finish_reason)
        choice.update(message=message, finish_reason=finish, stop_reason=turn.stop_reason)
        if body.get("return_token_ids") and not hidden:
            choice["token_ids"] = turn.token_ids
        return choice

    async def _cut(self, turn: Turn, text: str) -> str:
        if not isinstance(turn.stop_reason, str):
            return text
        minimum = int(turn.sampling.get("min_tokens") or 0)
        # Before `min_tokens` the engine lets stop strings pass, so the first one that counts comes later.
        start = len(await self._text.decode(turn.prompt[-PROMPT_TAIL:], turn.token_ids[:minimum])) if minimum else 0
        include = bool(turn.sampling.get("include_stop_str_in_output"))
        return cut_at_stop(text, turn.stop_reason, include=include, start=max(0, start + 1 - len(turn.stop_reason)))


class TextStream:
    """The text of one streamed turn, piece by piece."""

    def __init__(self, text: TextService, body: dict[str, Any], turn: Turn, *, chat: bool) -> None:
        self._text = text
        self._body = body
        self._turn = turn
        self._chat = chat
        self._state: Any = None
        self._offset = 0
        """Length of the tokens' names so far, of a completion with logprobs."""
        stops, include = stop_strings(turn.sampling.get("stop")), bool(turn.sampling.get("include_stop_str_in_output"))
        self._cutter = StopCutter(stops, include=include)
        self._delta_cutter = DeltaCutter(stops, include=include)

    async def push(self, start: int, end: int, *, last: bool) -> dict[str, Any]:
        """The choice of a streamed event for tokens [start, end) of the answer; `last` when there will be no more."""
        turn = self._turn
        source: dict[str, Any] = {
            "index": 0,
            "token_ids": turn.token_ids[start : min(end, shown_end(turn))],
            "finish_reason": turn.finish_reason if last else None,
            "stop_reason": turn.stop_reason if last else None,
        }
        entries = turn.entries[start:end]
        if entries:
            source["logprobs"] = for_derender(self._body, entries, chat=self._chat)
        nothing = not source["token_ids"] and not entries and not self._chat
        choice = {"text": "", **source} if nothing else await self._derender(source)
        hidden = self._chat and hides_tokens(self._body, choice)
        choice.pop("token_ids", None)
        found = None if hidden else choice.get("logprobs")
        if entries and found is None and not hidden:
            found = await self._chat_logprobs(start, end)
        choice["logprobs"] = self._placed(named(self._body, found, entries))
        if self._chat:
            self._finish_delta(choice, last=last)
        else:
            choice["text"] = self._cut(choice.get("text") or "", last=last)
        if self._body.get("return_token_ids") and not hidden:
            choice["token_ids"] = turn.token_ids[start:end]
            if not start and not self._chat:
                choice["prompt_token_ids"] = turn.prompt
        return choice

    async def _chat_logprobs(self, start: int, end: int) -> dict[str, Any] | None:
        """Logprobs of tokens [start, end) of a chat; streamed derendering leaves them out where there are parsers."""
        before = max(0, start - LOGPROB_CONTEXT)
        choice = {
            "index": 0,
            "token_ids": self._turn.token_ids[before:end],
            "logprobs": for_derender(self._body, self._turn.entries[before:end], chat=True),
        }
        # Nothing of the message is used: without tools there is less to parse.
        plain = {name: self._body[name] for name in (*_DECODING, "messages") if name in self._body}
        request = {"generate_response": {"choices": [choice]}, "chat_request": plain}
        answer = await self._text.call("/v1/chat/completions/derender", request)
        found = answer["choices"][0].get("logprobs")
        return None if found is None else {"content": found["content"][start - before :]}

    def _placed(self, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        if self._chat or logprobs is None:
            return logprobs
        start, names = self._offset, logprobs["tokens"]
        self._offset += sum(map(len, names))
        return {**logprobs, "text_offset": offsets(names, start)}

    async def _derender(self, source: dict[str, Any]) -> dict[str, Any]:
        request: dict[str, Any] = {"stream": True, "generate_chunk": {"choices": [source]}, "stream_state": self._state}
        if self._chat:
            request |= {"prompt_token_ids": self._turn.prompt, "chat_request": chat_request(self._body)}
            answer = await self._text.call("/v1/chat/completions/derender", request)
        else:
            request |= {
                "prompt_token_ids": self._turn.prompt[-PROMPT_TAIL:],
                "completion_request": _decoding(self._body, prompt=[0]),
            }
            answer = await self._text.call("/v1/completions/derender", request)
        self._state = answer["stream_state"]
        choice: dict[str, Any] = answer["chunk"]["choices"][0]
        return choice

    def _finish_delta(self, choice: dict[str, Any], *, last: bool) -> None:
        turn = self._turn
        delta = given(choice.get("delta") or {})
        name_calls(turn, delta)
        self._delta_cutter.push(delta, last=last, stop_reason=turn.stop_reason)
        choice["delta"] = delta
        if last and turn.finish_reason != "stop":
            # Derendering says `tool_calls` for every end of an answer with a call, also where it was cut short.
            choice["finish_reason"] = turn.finish_reason

    def _cut(self, text: str, *, last: bool) -> str:
        return self._cutter.end(text, self._turn.stop_reason) if last else self._cutter.push(text)


def chat_request(body: dict[str, Any]) -> dict[str, Any]:
    """The client's request as the derender endpoints take it."""
    request = {name: value for name, value in body.items() if name not in ("stream", "stream_options", "n")}
    return request if body.get("include_reasoning", True) else {**request, "return_token_ids": True}


def shown_end(turn: Turn) -> int:
    """How many tokens of an answer the text shows: not the stop token that ended it, as in the engine."""
    by_token = turn.finish_reason == "stop" and not isinstance(turn.stop_reason, str)
    return len(turn.token_ids) - (by_token and not turn.sampling.get("include_stop_str_in_output"))


def _response(body: dict[str, Any], turn: Turn, *, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        # Derendering takes at least one token, also where only their logprobs are wanted.
        "token_ids": turn.token_ids[: shown_end(turn)] or turn.token_ids,
        "finish_reason": turn.finish_reason,
        "stop_reason": turn.stop_reason,
    }
    if turn.entries:
        choice["logprobs"] = for_derender(body, turn.entries, chat=chat)
    return {"choices": [choice]}


def _decoding(body: dict[str, Any], *, prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, **{name: body[name] for name in _DECODING if name in body}}

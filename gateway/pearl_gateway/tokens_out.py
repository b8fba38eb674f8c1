"""Token ids to OpenAI answers, by the engines' own derender endpoints; stop strings are cut as the engine cuts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.stops import StopCutter, cut_at_stop, stop_strings
from pearl_gateway.text import PROMPT_TAIL

if TYPE_CHECKING:
    from pearl_gateway.text import TextService
    from pearl_gateway.trajectory import Turn

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
                "generate_responses": [_response(turn)],
                "prompt_token_ids": [turn.prompt[-PROMPT_TAIL:]],
                "completion_request": _decoding(body, prompt=[0]),
            }
            answer = await self._text.call("/v1/completions/derender", request)
            choice.update(text=answer["choices"][0]["text"], logprobs=answer["choices"][0].get("logprobs"))
        choice["text"] = await self._cut(turn, choice["text"])
        choice.update(finish_reason=turn.finish_reason, stop_reason=turn.stop_reason)
        if body.get("return_token_ids"):
            choice.update(token_ids=turn.token_ids, prompt_token_ids=turn.prompt)
        return choice

    async def chat_choice(self, body: dict[str, Any], turn: Turn, index: int) -> dict[str, Any]:
        """One choice of a chat completion, with tool calls and reasoning as the engine's parsers see them."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        choice: dict[str, Any] = {"index": index, "logprobs": None}
        if turn.token_ids:
            request = {
                "generate_response": {**_response(turn), "prompt_token_ids": turn.prompt},
                "prompt_token_ids": turn.prompt,
                "chat_request": chat_request(body),
            }
            answer = await self._text.call("/v1/chat/completions/derender", request)
            message = answer["choices"][0]["message"]
            choice["logprobs"] = answer["choices"][0].get("logprobs")
        if isinstance(message.get("content"), str):
            message["content"] = await self._cut(turn, message["content"])
        finish = "tool_calls" if message.get("tool_calls") and turn.finish_reason == "stop" else turn.finish_reason
        choice.update(message=message, finish_reason=finish, stop_reason=turn.stop_reason)
        if body.get("return_token_ids"):
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
        include = bool(turn.sampling.get("include_stop_str_in_output"))
        self._cutter = StopCutter(stop_strings(turn.sampling.get("stop")), include=include)

    async def push(self, start: int, end: int, *, last: bool) -> dict[str, Any]:
        """The choice of a streamed event for tokens [start, end) of the answer; `last` when there will be no more."""
        turn = self._turn
        source: dict[str, Any] = {
            "index": 0,
            "token_ids": turn.token_ids[start:end],
            "finish_reason": turn.finish_reason if last else None,
            "stop_reason": turn.stop_reason if last else None,
        }
        if turn.entries:
            source["logprobs"] = {"content": turn.entries[start:end]}
        choice = await self._derender(source) if end > start or self._chat else {"index": 0, "text": "", **source}
        choice.pop("token_ids", None)
        self._hold_back_stops(choice, last=last)
        if self._body.get("return_token_ids"):
            choice["token_ids"] = turn.token_ids[start:end]
        return choice

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

    def _hold_back_stops(self, choice: dict[str, Any], *, last: bool) -> None:
        holder, name = (choice.setdefault("delta", {}), "content") if self._chat else (choice, "text")
        text = holder.get(name) or ""
        shown = self._cutter.end(text, self._turn.stop_reason) if last else self._cutter.push(text)
        if shown or name in holder:
            holder[name] = shown


def chat_request(body: dict[str, Any]) -> dict[str, Any]:
    """The client's request as the derender endpoints take it."""
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options", "n")}


def usage(turns: list[Turn], samples: int = 1) -> dict[str, int]:
    """Tokens of an answer; a prompt counts once for all its `samples`, as the engine counts it."""
    prompt = sum(len(turn.prompt) for turn in turns[::samples])
    completion = sum(len(turn.token_ids) for turn in turns)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _response(turn: Turn) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": turn.token_ids,
        "finish_reason": turn.finish_reason,
        "stop_reason": turn.stop_reason,
    }
    if turn.entries:
        choice["logprobs"] = {"content": turn.entries}
    return {"choices": [choice]}


def _decoding(body: dict[str, Any], *, prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, **{name: body[name] for name in _DECODING if name in body}}

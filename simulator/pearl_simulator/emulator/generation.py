"""The three generation routes: from a request to sequences in the engine, and from their progress to the answer."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator import asked, errors
from pearl_simulator.emulator.answers import Answer, ChatAnswer, CompletionAnswer, TokensAnswer
from pearl_simulator.emulator.config import VERSION
from pearl_simulator.emulator.errors import ApiError, LateError
from pearl_simulator.emulator.http import BrokenConnectionError, Request, unless_gone
from pearl_simulator.emulator.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pearl_simulator.emulator.asked import Asked
    from pearl_simulator.emulator.engine import Engine
    from pearl_simulator.emulator.sequence import Delta


_LONGEST_SALT = 128


def _salt(given: Any) -> int:
    """What keeps cached KV of such requests apart from others'."""
    if not given:
        return 0
    if len(given) > _LONGEST_SALT or any(one in given for one in "@/\\\0"):
        rule = "must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise ApiError(f"Parameter 'cache_salt' {rule} (parameter=cache_salt)", param="cache_salt")
    return hash(given)


class Generations:
    """Serves generation requests of one engine."""

    def __init__(self, engine: Engine, new_id: Callable[[], str], wall: Callable[[], float]) -> None:
        self._engine = engine
        self._new_id = new_id
        self._wall = wall
        self.open = 0
        """Requests being answered."""

    async def completion(self, request: Request) -> None:
        """`/v1/completions`."""
        await self._serve(request, asked.completion, CompletionAnswer)

    async def chat(self, request: Request) -> None:
        """`/v1/chat/completions`."""
        await self._serve(request, asked.chat, ChatAnswer)

    async def generate(self, request: Request) -> None:
        """`/inference/v1/generate`."""
        await self._serve(request, asked.generate, TokensAnswer)

    async def _serve(self, request: Request, check: Callable[[dict[str, Any], Any], Asked], form: type[Answer]) -> None:
        body = asked.parse_json(request.content)
        asked.check_model(body, self._engine.config)
        try:
            checked = check(body, self._engine.config)
        except LateError as error:
            if not body.get("stream"):
                raise
            await request.open_stream()
            await self._end_stream(request, error)
            return
        fate = self._engine.perturbation.fate(self._engine.draw)
        if fate == "error":
            raise errors.failed("Internal server error")
        if fate == "hang":
            await request.gone()
            return
        name = form.prefix + (request.header("x-request-id") or body.get("request_id") or self._new_id())
        answer = form(checked, self._identity(name), cached_details=self._engine.config.prompt_tokens_details)
        sequences = self._sequences(name, checked, form)
        self._engine.submit(sequences)
        self.open += 1
        try:
            work = self._stream if checked.stream else self._whole
            drop = self._engine.perturbation.drop_after_tokens if fate == "drop" else None
            await unless_gone(request, work(request, answer, sequences, drop))
        finally:
            self.open -= 1
            self._engine.leave(sequences)

    def _identity(self, name: str) -> dict[str, Any]:
        fingerprint = f"vllm-{VERSION}-{self._engine.engine_id[:8]}"
        model = self._engine.config.model
        return {"id": name, "model": model, "created": int(self._wall()), "fingerprint": fingerprint}

    def _sequences(self, name: str, checked: Asked, form: type[Answer]) -> list[Sequence]:
        params = asked.kv_params(checked.body) if self._engine.config.kv_transfer else None
        salt = _salt(checked.body.get("cache_salt"))
        completion = form is CompletionAnswer
        samples = checked.sampling.samples
        return [
            Sequence(
                # vLLM numbers the prompts of a completion request; an abort has to name the numbered id.
                request_id=f"{name}-{at}" if completion else name,
                internal_id=f"{name}{f'-{at}' if completion else ''}-{self._new_id()[:8]}",
                index=at * samples + sample,
                prompt=prompt,
                sampling=checked.sampling,
                arrived=self._engine.clock.now(),
                kv_params=dict(params) if params else None,
                salt=salt,
                streaming=checked.stream,
            )
            for at, prompt in enumerate(checked.prompts)
            for sample in range(samples)
        ]

    async def _whole(self, request: Request, answer: Answer, sequences: list[Sequence], drop: int | None) -> None:
        async for _sequence, _delta in _deltas(sequences):
            pass
        if drop is not None:
            await request.break_off()
        if any(one.finish_reason == "error" for one in sequences):
            raise errors.dead() if self._engine.dead else errors.failed("Internal server error")
        await request.answer_json(answer.whole(sequences))

    async def _stream(self, request: Request, answer: Answer, sequences: list[Sequence], drop: int | None) -> None:
        opened = False
        sent = 0
        async for sequence, delta in _deltas(sequences):
            if delta.finish_reason == "error":
                await self._stream_error(request, opened=opened)
                return
            if not opened:
                opened = True
                await request.open_stream()
                for event in answer.opening(sequences):
                    await request.event(event)
            await request.event(answer.event(sequence, delta))
            sent += delta.end - delta.start
            if drop is not None and sent >= drop:
                raise BrokenConnectionError
        closing = answer.closing(sequences)
        if closing is not None:
            await request.event(closing)
        await request.raw_event(b"[DONE]", last=True)

    async def _stream_error(self, request: Request, *, opened: bool) -> None:
        error = errors.dead() if self._engine.dead else errors.failed("Internal server error")
        if not opened:
            raise error
        await self._end_stream(request, error)

    @staticmethod
    async def _end_stream(request: Request, error: ApiError) -> None:
        await request.event(error.body)
        await request.raw_event(b"[DONE]", last=True)


async def _deltas(sequences: list[Sequence]) -> AsyncIterator[tuple[Sequence, Delta]]:
    """What happens to the sequences of one request, as it happens, until all have ended."""
    if len(sequences) == 1:
        (only,) = sequences
        while True:
            delta = await only.deltas.get()
            yield only, delta
            if delta.finish_reason is not None:
                return
    merged: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    async def follow(at: int) -> None:
        while True:
            delta = await sequences[at].deltas.get()
            merged.put_nowait((at, delta))
            if delta.finish_reason is not None:
                return

    followers = [asyncio.ensure_future(follow(at)) for at in range(len(sequences))]
    try:
        for _ in itertools.count():
            at, delta = await merged.get()
            yield sequences[at], delta
            if all(one.done() for one in followers) and merged.empty():
                return
    finally:
        for one in followers:
            one.cancel()

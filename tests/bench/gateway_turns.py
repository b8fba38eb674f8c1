"""The load of the gateway bench: trajectories that grow turn by turn, by token ids, streamed or not."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from gateway_processes import RIGHTS, SESSION_HEADER

from pearl_api.wire.gateway import HEADER_STEP, HEADER_TRAJECTORY, HEADER_TURN
from pearl_gateway.load.stream import StreamError, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway_processes import Server

_LOWEST_TOKEN, _VOCABULARY = 100, 32_000
_TURN_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The work of one cell; tokens are per turn."""

    name: str
    trajectories: int
    at_once: int
    turns: int
    prompt_tokens: int
    tool_tokens: int
    answer_tokens: int
    tool_seconds: float = 0.0
    """Mean time between turns; drawn evenly from 0 to twice that."""
    stream: bool = True
    vocabulary: int = _VOCABULARY


@dataclass(slots=True)
class Measured:
    """One run of one shape against one server."""

    server: str
    duration_seconds: float = 0.0
    turn_seconds: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    """Until the first bytes of the answer's body, where it is streamed."""
    tokens: int = 0
    cpu_seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """A digest of every answer, to compare servers: the same context must give the same tokens."""

    @property
    def tokens_per_second(self) -> float:
        """Generated, over the whole run."""
        return self.tokens / self.duration_seconds


class Load:
    """Plays one shape against one server; `run` makes names new to it, `step` opens a batch of its own if given."""

    def __init__(self, server: Server, shape: Shape, run: str, *, step: int | None = None) -> None:
        self._server = server
        self._shape = shape
        self._run = run
        self._step = step
        self.measured = Measured(server.name)

    async def play(self, tell: Callable[[Measured], None] = lambda _: None) -> Measured:
        """All trajectories, `at_once` of them; `tell` is called after every turn."""
        self._tell = tell
        slots = asyncio.Semaphore(self._shape.at_once)
        timeout = aiohttp.ClientTimeout(total=_TURN_SECONDS, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=RIGHTS) as session:
            self._session = session
            await self._control("", {"step": self._step, "groups": self._shape.trajectories, "groupSize": 1})
            before, started = self._server.cpu_seconds(), time.monotonic()
            await asyncio.gather(*(self._in_turn(slots, number) for number in range(self._shape.trajectories)))
            self.measured.duration_seconds = time.monotonic() - started
            after = self._server.cpu_seconds()
            self.measured.cpu_seconds = None if before is None or after is None else after - before
            await self._control(f"/{self._step}/consume", None)
            await self._control(f"/{self._step}/close", None)
        return self.measured

    async def _control(self, path: str, body: dict[str, Any] | None) -> None:
        if self._step is None:
            return
        async with self._session.post(f"{self._server.urls[0]}/v1/batches{path}", json=body) as response:
            await response.read()
            response.raise_for_status()

    async def _in_turn(self, slots: asyncio.Semaphore, number: int) -> None:
        async with slots:
            try:
                await self._trajectory(number)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, StreamError) as error:
                self.measured.problems.append(f"{self._shape.name} {number}: {error!r}")

    async def _trajectory(self, number: int) -> None:
        # Tokens follow from shape and number alone, so that every server gets the same.
        draw = random.Random(f"{self._shape.name}/{number}")
        name = f"{self._run}-{number}"
        context = self._draw(draw, self._shape.prompt_tokens)
        for turn in range(self._shape.turns):
            if self._shape.tool_seconds:
                await asyncio.sleep(draw.uniform(0, 2 * self._shape.tool_seconds))
            answer = await self._turn(number, name, turn, context)
            self.measured.answers[f"{number}/{turn}"] = hashlib.sha256(str(answer).encode()).hexdigest()[:16]
            context += answer + self._draw(draw, self._shape.tool_tokens)
        if self._step is not None:
            await self._control(f"/{self._step}/finish", {"trajectory": name, "group": name, "reward": 1.0})

    def _draw(self, draw: random.Random, count: int) -> list[int]:
        return [draw.randrange(_LOWEST_TOKEN, self._shape.vocabulary) for _ in range(count)]

    async def _turn(self, number: int, name: str, turn: int, context: list[int]) -> list[int]:
        sampling = {"max_tokens": self._shape.answer_tokens, "temperature": 0.0, "ignore_eos": True, "logprobs": 0}
        body = {"token_ids": context, "sampling_params": sampling, "stream": self._shape.stream}
        headers = {HEADER_TRAJECTORY: name, HEADER_TURN: str(turn), SESSION_HEADER: name}
        if self._step is not None:
            headers[HEADER_STEP] = str(self._step)
        url = self._server.url_of(number) + "/inference/v1/generate"
        started = time.monotonic()
        async with self._session.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                raise ValueError(f"{response.status} {(await response.text())[:200]}")
            first = await response.content.readany()
            seen = time.monotonic() - started
            content = first + await response.read()
        lasted = time.monotonic() - started
        whole = joined(content.decode()) if self._shape.stream else json.loads(content)
        answer = whole["choices"][0]["token_ids"]
        if len(answer) != self._shape.answer_tokens:
            raise ValueError(f"turn {turn} has {len(answer)} tokens, not {self._shape.answer_tokens}")
        self.measured.turn_seconds.append(lasted)
        self.measured.first_seconds += [seen] if self._shape.stream else []
        self.measured.tokens += len(answer)
        self._tell(self.measured)
        return list(answer)

"""Agents: multi-turn trajectories that never give a turn up, and a record of every token that they were given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Callable

_REPEATABLE = frozenset({408, 425, 429, 499, 502, 503, 504})
_CALL_SECONDS = 20.0
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 0.5
STOP_PAIRS = 60
"""Stop strings of two characters in a request that has some: about one in 150 tokens ends the answer."""


class LostTurnError(Exception):
    """A turn that ended with neither its answer nor an error that is worth a repeat."""


@dataclass(slots=True)
class Given:
    """One turn as its agent saw it."""

    number: int
    prompt: list[int]
    most: int
    stops: tuple[str, ...]
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    partials: list[tuple[int, list[int]]] = field(default_factory=list)
    """(incarnation of the gateway, tokens) of streams that broke off before the end."""
    repeats: int = 0
    answered_in: int = 0
    began_in: int = 0

    @property
    def run_again(self) -> bool:
        """The gateway was started anew while it ran."""
        return self.began_in != self.answered_in


@dataclass(slots=True)
class Told:
    """One trajectory: what its agent has, and what the gateway exported."""

    name: str
    turns: list[Given] = field(default_factory=list)
    broken_at: set[int] = field(default_factory=set)
    """Turns whose prompt did not extend what came before."""
    export: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What the agents do."""

    together: int
    """Trajectories at once."""
    most_turns: int = 6
    prompt_tokens: tuple[int, int] = (40, 300)
    answer_tokens: tuple[int, int] = (8, 90)
    tool_tokens: tuple[int, int] = (4, 90)
    tool_seconds: float = 0.05
    leave_share: float = 0.06
    """Of requests whose agent hangs up and comes back."""
    stop_share: float = 0.25
    edit_share: float = 0.02
    """Of turns that rewrite history."""
    vocabulary: int = 250
    give_up_seconds: float = 90.0


class Agents:
    """Keeps `shape.together` trajectories going until told to stop."""

    def __init__(  # noqa: PLR0913 - its ports
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        seed: str,
        shape: Shape,
        incarnation: Callable[[], int],
        done: Callable[[Told], None],
        lost: Callable[[str], None],
    ) -> None:
        self._session = session
        self._url = url
        self._seed = seed
        self._shape = shape
        self._incarnation = incarnation
        self._done = done
        self._lost = lost
        self._next = 0
        self._stop = False
        self.turns = self.repeats = self.tokens = 0
        self.not_handed_out = 0
        """Trajectories whose hand-out was on its way to the trainer when the gateway was killed."""
        self.longest: tuple[float, str] = (0.0, "")
        """Seconds of the longest turn, and which one it was."""

    def stop(self) -> None:
        """No new trajectories."""
        self._stop = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(max(1, self._shape.together // 2)):
                tasks.create_task(self._groups())

    async def _groups(self) -> None:
        while not self._stop:
            number, self._next = self._next, self._next + 1
            draw = random.Random(f"{self._seed}/{number}")
            size = draw.choice((1, 2, 3))
            batch = {"step": number, "groups": 1, "groupSize": size}
            prompt = self._ids(draw, self._shape.prompt_tokens)
            try:
                await self._control("/v1/batches", batch)
                ends = await asyncio.gather(*(self._trajectory(number, member, prompt) for member in range(size)))
                await self._hand_out(number, [one for one in ends if one is not None])
            except LostTurnError as error:
                self._lost(f"group {number}: {error}")

    def _ids(self, draw: random.Random, between: tuple[int, int]) -> list[int]:
        return [draw.randrange(4, self._shape.vocabulary) for _ in range(draw.randint(*between))]

    async def _trajectory(self, group: int, member: int, prompt: list[int]) -> Told | None:
        draw = random.Random(f"{self._seed}/{group}/{member}")
        told = Told(f"{self._seed}/{group}/{member}")
        context = list(prompt)
        try:
            for number in range(draw.randint(1, self._shape.most_turns)):
                given = self._plan(draw, number, context)
                await self._turn(told.name, group, given, draw)
                told.turns.append(given)
                context = [*given.prompt, *given.token_ids, *self._ids(draw, self._shape.tool_tokens)]
                if draw.random() < self._shape.edit_share:
                    told.broken_at.add(number + 1)
                    context = [*context[: len(context) // 2], *self._ids(draw, self._shape.tool_tokens)]
                await asyncio.sleep(draw.expovariate(1.0) * self._shape.tool_seconds)
        except LostTurnError as error:
            self._lost(f"{told.name} turn {len(told.turns)}: {error}")
            await self._control(f"/v1/batches/{group}/abort", {"trajectory": told.name, "cause": "lost"})
            return None
        end = {"trajectory": told.name, "group": str(group), "reward": 1.0}
        await self._control(f"/v1/batches/{group}/finish", end)
        told.export = await self._control(f"/v1/trajectories/{told.name}", None)
        self._done(told)
        return told

    def _plan(self, draw: random.Random, number: int, context: list[int]) -> Given:
        stops: tuple[str, ...] = ()
        if draw.random() < self._shape.stop_share:
            pairs = ((draw.randrange(33, 127), draw.randrange(33, 127)) for _ in range(STOP_PAIRS))
            stops = tuple(chr(first) + chr(second) for first, second in pairs)
        return Given(number, list(context), draw.randint(*self._shape.answer_tokens), stops)

    async def _hand_out(self, step: int, told: list[Told]) -> None:
        """The trainer's side: it gets every trajectory once, and the same that anybody can read."""
        found, repeats = await self._call(f"/v1/batches/{step}/consume", {})
        expected, got = {one.name: one.export for one in told}, {one["trajectory"]: one for one in found}
        missing = [name for name in expected if name not in got]
        if missing and repeats:
            self.not_handed_out += len(missing)  # the gateway was killed after it had handed them out
        elif missing or any(expected[name] != one for name, one in got.items()):
            raise LostTurnError(f"handed out {sorted(got)} of {sorted(expected)}, or other than they can be read")
        await self._control(f"/v1/batches/{step}/close", {})

    # -- one turn -----------------------------------------------------------------------------------------------

    async def _turn(self, name: str, group: int, given: Given, draw: random.Random) -> None:
        headers = {
            "X-Pearl-Trajectory": name,
            "X-Pearl-Turn": str(given.number),
            "X-Pearl-Group": str(group),
            "X-Pearl-Step": str(group),
        }
        sampling: dict[str, Any] = {"max_tokens": given.most, "temperature": 0.0, "ignore_eos": True}
        if given.stops:
            sampling["stop"] = list(given.stops)
        stream = draw.random() < 0.5
        patience = draw.expovariate(4.0) if draw.random() < self._shape.leave_share else None
        body = {"token_ids": given.prompt, "sampling_params": sampling, "stream": stream}
        given.began_in = self._incarnation()
        began = time.monotonic()
        longest = self._shape.give_up_seconds
        while not await self._try(body, headers, given, longest if patience is None else patience):
            patience = None
            given.repeats += 1
            if time.monotonic() - began > self._shape.give_up_seconds:
                raise LostTurnError(f"no answer for {self._shape.give_up_seconds:g} s")
        given.answered_in = self._incarnation()
        self.turns += 1
        self.repeats += given.repeats
        self.tokens += len(given.token_ids)
        about = f"{name} turn {given.number}, ended {time.strftime('%H:%M:%S')}, {given.repeats} repeats"
        self.longest = max(self.longest, (time.monotonic() - began, about))

    async def _try(self, body: Any, headers: dict[str, str], given: Given, patience: float) -> bool:
        """Whether the whole answer came."""
        incarnation, partial = self._incarnation(), list[int]()
        try:
            async with asyncio.timeout(patience):
                async with self._session.post(
                    self._url + "/inference/v1/generate", json=body, headers=headers
                ) as response:
                    if response.status != HTTPStatus.OK:
                        await self._refused(response)
                        return False
                    whole = await self._read(response, partial, streamed=body["stream"])
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            whole = None
        if whole is None:
            if partial:
                given.partials.append((incarnation, partial))
            await asyncio.sleep(_PAUSE_SECONDS)
            return False
        given.token_ids, given.finish_reason = whole
        return True

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        text = await response.text()
        if response.status not in _REPEATABLE:
            raise LostTurnError(f"{response.status} {text[:300]}")
        await asyncio.sleep(min(float(response.headers.get("Retry-After", "0.1")), _LONGEST_PAUSE_SECONDS))

    @staticmethod
    async def _read(
        response: aiohttp.ClientResponse, partial: list[int], *, streamed: bool
    ) -> tuple[list[int], str] | None:
        """(tokens, finish reason), or None where the stream ended before its answer did."""
        if not streamed:
            choice = json.loads(await response.read())["choices"][0]
            return choice["token_ids"], choice["finish_reason"]
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                code = event["error"].get("code")
                if isinstance(code, int) and code not in _REPEATABLE:
                    raise LostTurnError(f"the stream ended with {event['error']}")
                return None
            choice = event["choices"][0]
            partial += choice["token_ids"]
            if choice["finish_reason"] is not None:
                return list(partial), choice["finish_reason"]
        return None

    async def _control(self, path: str, body: Any) -> Any:
        return (await self._call(path, body))[0]

    async def _call(self, path: str, body: Any) -> tuple[Any, int]:
        """A call that is repeated until it is answered; also how often."""
        repeats = 0
        deadline = time.monotonic() + self._shape.give_up_seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, TimeoutError):
                call = self._session.get if body is None else self._session.post
                more: dict[str, Any] = {} if body is None else {"json": body}
                more["timeout"] = aiohttp.ClientTimeout(total=_CALL_SECONDS)
                async with call(self._url + path, **more) as response:
                    text = await response.text()
                    if response.status == HTTPStatus.OK:
                        return json.loads(text), repeats
                    if response.status not in _REPEATABLE:
                        raise LostTurnError(f"{path}: {response.status} {text[:300]}")
            await asyncio.sleep(_PAUSE_SECONDS)
            repeats += 1
        raise LostTurnError(f"{path}: no answer for {self._shape.give_up_seconds:g} s")

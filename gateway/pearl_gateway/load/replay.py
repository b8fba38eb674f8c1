"""Plays planned groups: admission, turns, tool delays, ends; counts everything and drops nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pearl_gateway.load.client import Answer, GatewayClient, LoadError
from pearl_gateway.load.log import logged_turns
from pearl_gateway.load.plan import arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.load.plan import Group, Work

Path = Literal["tokens", "completions", "chat"]
_PERMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Played:
    """One answered turn, with what is needed to check it."""

    trajectory: str
    turn: int
    prompt: list[int] | None
    """None on the text paths, where the gateway made the ids."""
    token_ids: list[int]
    seconds: float
    first_seconds: float | None
    repeats: int
    versions: list[dict[str, Any]]


@dataclass(slots=True)
class Progress:
    """How far a replay is; read by the live view while it runs."""

    trajectories: int
    turns: int
    started_at: float = field(default_factory=time.monotonic)
    running: int = 0
    waiting_for_tools: int = 0
    finished: int = 0
    failed: list[str] = field(default_factory=list)
    """One line for each trajectory that could not be finished."""
    played: list[Played] = field(default_factory=list)
    generated_tokens: int = 0
    repeats: int = 0
    admission_seconds: list[float] = field(default_factory=list)
    """From the arrival of a group until it was admitted."""
    prompts: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Of turns on the text paths, as the gateway's log has them."""
    troubles: list[str] = field(default_factory=list)
    """Of the run as a whole."""
    checked: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Style:
    """How turns are asked for."""

    path: Path = "tokens"
    temperature: float = 0.0
    time_scale: float = 1.0
    concurrency: int = 64
    """Trajectories at once in a closed loop: the next one starts when another has ended."""
    rate: float | None = None
    """Groups that arrive per second in an open loop: nobody waits for anybody, `concurrency` is no limit."""
    stream: bool = False
    permits: bool = True
    check_log: bool = False
    """Compare the gateway's log of each trajectory with what was sent and received."""


class Replay:
    """Plays one batch of groups against one gateway."""

    def __init__(self, client: GatewayClient, style: Style, progress: Progress, seed: str = "pearl") -> None:
        self._client = client
        self._style = style
        self._progress = progress
        self._seed = seed
        self._slots = asyncio.Semaphore(style.concurrency)

    async def run(self, step: int, groups: Sequence[Group], *, close: bool = True) -> None:
        """Open batch `step`, play all groups, consume and close it.

        Raises:
            LoadError: the batch itself could not be opened or closed.
        """
        size = len(groups[0].members)
        await self._client.call("POST", "/v1/batches", {"step": step, "groups": len(groups), "groupSize": size})
        try:
            if self._style.rate is None:
                await self._closed(step, groups)
            else:
                await self._open(step, groups, arrivals(len(groups), self._style.rate, self._seed))
        except* LoadError as failed:
            raise _first(failed) from None
        await self._client.call("POST", f"/v1/batches/{step}/consume")
        if close:
            await self._client.call("POST", f"/v1/batches/{step}/close")

    async def _closed(self, step: int, groups: Sequence[Group]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                # Admission is first come, first served: ask in order.
                await self._admit(group, step)
                for work in group.members:
                    await self._slots.acquire()
                    tasks.create_task(self._play_in_slot(work, step))

    async def _open(self, step: int, groups: Sequence[Group], starts: Sequence[float]) -> None:
        began = time.monotonic()

        async def arrive(group: Group, start: float) -> None:
            # By the clock, not by the one before: a slow gateway must not slow its own load down.
            await asyncio.sleep(began + start - time.monotonic())
            await self._admit(group, step)
            async with asyncio.TaskGroup() as members:
                for work in group.members:
                    members.create_task(self._play_one(work, step))

        async with asyncio.TaskGroup() as tasks:
            for group, start in zip(groups, starts, strict=True):
                tasks.create_task(arrive(group, start))

    async def _play_in_slot(self, work: Work, step: int) -> None:
        try:
            await self._play_one(work, step)
        finally:
            self._slots.release()

    async def _admit(self, group: Group, step: int) -> None:
        if not self._style.permits:
            return
        asked = time.monotonic()
        request = {"group": group.name, "size": len(group.members), "step": step, "waitSeconds": _PERMIT_SECONDS}
        while not (await self._client.call("POST", "/v1/permits", request))[0]["granted"]:
            pass
        self._progress.admission_seconds.append(time.monotonic() - asked)

    async def _play_one(self, work: Work, step: int) -> None:
        self._progress.running += 1
        try:
            played = await self._play(work, step)
            if self._style.check_log:
                await self._check_log(work, played)
            end = {"trajectory": work.trajectory, "group": work.group, "reward": 1.0}
            await self._client.call("POST", f"/v1/batches/{step}/finish", end)
            self._progress.finished += 1
        except LoadError as error:
            self._progress.failed.append(f"{work.trajectory}: {error}")
            end = {"trajectory": work.trajectory, "group": work.group, "cause": "client"}
            await self._client.call("POST", f"/v1/batches/{step}/abort", end)
        finally:
            self._progress.running -= 1

    async def _play(self, work: Work, step: int) -> list[Played]:
        played = []
        talk = _TALKS[self._style.path](work)
        for number, turn in enumerate(work.session.turns):
            sampling = self._sampling(turn.response_tokens)
            answer = await talk.ask(self._client, number, step, sampling)
            played.append(self._note(work, number, talk.sent, answer))
            if number + 1 < len(work.session.turns):
                talk.add_tool_output(work.tool_output(number))
                self._progress.waiting_for_tools += 1
                await asyncio.sleep(turn.tool_seconds * self._style.time_scale)
                self._progress.waiting_for_tools -= 1
        return played

    async def _check_log(self, work: Work, turns: list[Played]) -> None:
        export, _ = await self._client.call("GET", f"/v1/trajectories/{work.trajectory}")
        logged = logged_turns(export)
        for played in turns:
            found = logged.get(played.turn)
            if found is None or found.token_ids != played.token_ids or found.prompt != (played.prompt or found.prompt):
                what = "is missing in" if found is None else "differs from"
                self._progress.wrong.append(f"{work.trajectory} turn {played.turn}: {what} the gateway's own log")
            elif played.prompt is None:
                self._progress.prompts[work.trajectory, played.turn] = found.prompt

    def _sampling(self, tokens: int) -> dict[str, Any]:
        return {"max_tokens": tokens, "temperature": self._style.temperature, "ignore_eos": True}

    def _note(self, work: Work, number: int, prompt: list[int] | None, answer: Answer) -> Played:
        progress = self._progress
        played = Played(
            trajectory=work.trajectory,
            turn=number,
            prompt=prompt,
            token_ids=answer.token_ids,
            seconds=answer.seconds,
            first_seconds=answer.first_seconds,
            repeats=answer.repeats,
            versions=answer.versions,
        )
        progress.played.append(played)
        progress.generated_tokens += len(answer.token_ids)
        progress.repeats += answer.repeats
        return played


def _first(group: BaseExceptionGroup[LoadError]) -> LoadError:
    """One error of many: they tell the same."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class _TokenTalk:
    """A session by token ids."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._context = work.prompt()
        self.sent: list[int] | None = None

    async def ask(self, client: GatewayClient, number: int, step: int, sampling: dict[str, Any]) -> Answer:
        self.sent = list(self._context)
        answer = await client.tokens(self._work, number, step, self.sent, sampling)
        self._context += answer.token_ids
        return answer

    def add_tool_output(self, tokens: list[int]) -> None:
        self._context += tokens


class _TextTalk:
    """A session as one growing text."""

    sent: list[int] | None = None

    def __init__(self, work: Work) -> None:
        self._work = work
        self._text = _words(work.prompt())

    async def ask(self, client: GatewayClient, number: int, step: int, sampling: dict[str, Any]) -> Answer:
        answer = await client.text(self._work, number, step, self._text, sampling)
        self._text += answer.text
        return answer

    def add_tool_output(self, tokens: list[int]) -> None:
        self._text += _words(tokens)


class _ChatTalk:
    """A session as messages; tools answer as the user, which every template knows."""

    sent: list[int] | None = None

    def __init__(self, work: Work) -> None:
        self._work = work
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": _words(work.prompt())}]

    async def ask(self, client: GatewayClient, number: int, step: int, sampling: dict[str, Any]) -> Answer:
        answer = await client.chat(self._work, number, step, self._messages, sampling)
        self._messages.append(answer.message)
        return answer

    def add_tool_output(self, tokens: list[int]) -> None:
        self._messages.append({"role": "user", "content": _words(tokens)})


_TALKS: dict[Path, Any] = {"tokens": _TokenTalk, "completions": _TextTalk, "chat": _ChatTalk}


def _words(tokens: list[int]) -> str:
    """Text of about as many tokens: one letter each, which is one token or less in any vocabulary."""
    return "".join(chr(97 + token % 26) for token in tokens)

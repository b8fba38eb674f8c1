"""One turn's answer so far: its tokens as chunks arrive, who made them, and who waits for them.

`turn` runs it, `sessions` opens it and lets it go, `trajectory` keeps it when it is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pearl_api.wire.gateway import SegmentReason
from pearl_gateway.chunks import Span

if TYPE_CHECKING:
    from pearl_gateway.chunks import Chunk
    from pearl_gateway.errors import GatewayError
    from pearl_gateway.router import RouteKind


@dataclass(frozen=True, slots=True)
class Piece:
    """Generated tokens [start, end) of a turn that came out of one call to one worker."""

    worker: str
    prefill_worker: str | None
    spans: tuple[Span, ...]
    """Weight versions; positions count from the start of the turn's answer."""
    start: int
    end: int
    reason: SegmentReason
    routed_experts: str | None = None
    """As the engine gives them: base64 of a `.npy`, of all tokens of the call but the last."""


@dataclass(slots=True, eq=False)
class Turn:
    """One request for tokens and its answer so far. Readers wait on it, the runner writes it."""

    trajectory: str
    number: int
    attempt: int
    prompt: list[int]
    sampling: dict[str, Any]
    """vLLM sampling parameters as the client means them for the whole answer."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the engine's request, for example `cache_salt`."""
    parent: int | None = None
    """The turn that it branches from, if it names one."""
    asked: str = ""
    """Digest of the request that its prompt was rendered from; empty = it came as token ids."""
    whole: str = ""
    """Why its history was rendered anew, if it was."""
    min_version: int | None = None
    keep_logprobs: bool = True
    """Ask the engine for the chosen tokens' logprobs even if the client did not."""
    accepted_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    route: RouteKind | None = None
    degraded: str = ""
    """Why it was served degraded, if it was."""
    moved: bool = False
    """Workers changed roles since the turn before."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine which prefilled had in its cache; None = the engine did not say."""
    first_token_at: float | None = None
    ended_at: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: GatewayError | None = None
    fault: str | None = None
    """What the engine said that answered the last try with a fault."""
    settled: bool = False
    """Its whole answer is in the log, or it has a typed error: readers may go."""
    environment_seconds: float | None = None
    """Time between the answer before and this request; None in the first turn."""
    visible: int = 0
    """Tokens that readers may have; fewer than there are while a stop string is looked for."""
    held: bool = False
    """Tokens become visible when they were looked through for stop strings, not when they arrive."""
    shown: int = 0
    """Tokens that a stream has passed on to a client; they can never be taken back."""
    committed: bool = False
    readers: int = 0
    task: asyncio.Task[None] | None = None
    _progress: asyncio.Event = field(default_factory=asyncio.Event)
    _end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[str, int, int]:
        """(trajectory, turn, attempt): the idempotency key."""
        return (self.trajectory, self.number, self.attempt)

    @property
    def complete(self) -> bool:
        """It has its whole answer."""
        return self.finish_reason is not None

    def add(self, chunk: Chunk) -> None:
        """Keep what arrived."""
        self.token_ids += chunk.token_ids
        self.logprobs += chunk.logprobs if chunk.logprobs is not None else [None] * len(chunk.token_ids)
        if chunk.entries is not None and self.sampling.get("logprobs") is not None:
            self.entries += chunk.entries
        if not self.held:
            self.show()

    def show(self) -> None:
        """Let readers have everything that is there."""
        self.visible = len(self.token_ids)
        self.wake()

    def cut(self, end: int) -> None:
        """Forget tokens from `end` on: they came after a stop string, or must not be used."""
        del self.token_ids[end:], self.logprobs[end:], self.entries[end:]
        self.visible = min(self.visible, end)

    def drop_unseen(self) -> None:
        """Forget tokens that nobody has looked through for stop strings: whoever goes on would not do it either."""
        if self.held:
            self.cut(self.visible)

    def settle(self, error: GatewayError | None = None) -> None:
        """Nothing more will come by itself: readers get what is there, or the error."""
        self.error = self.error or error
        self.settled = True
        self._end.set()
        self.show()

    def reopen(self) -> None:
        """Somebody works on it again."""
        self.error, self.settled = None, False
        self._end.clear()

    @property
    def running(self) -> bool:
        """Somebody works on it now."""
        return self.task is not None and not self.task.done()

    async def stopped(self) -> None:
        """Return when nobody works on it any more, so that all its tokens are accounted for."""
        if self.task is not None:
            await asyncio.wait({self.task})

    def account_for_all(self) -> None:
        """Tokens whose call was broken off from outside, and has not written its piece, get one too."""
        start, end = self.pieces[-1].end if self.pieces else 0, len(self.token_ids)
        if start < end:
            span = Span(None, start, end)
            self.pieces.append(Piece("", None, (span,), start, end, SegmentReason.CLIENT_LEFT))

    def wake(self) -> None:
        """Let readers look again."""
        event, self._progress = self._progress, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Return when there is something new."""
        await self._progress.wait()

    async def wait_for_end(self) -> None:
        """Return when it is settled."""
        while not self.settled:
            await self._end.wait()

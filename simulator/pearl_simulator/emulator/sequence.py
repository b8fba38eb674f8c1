"""One sequence inside an emulated engine: what was asked, how far it is, what the client has seen of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pearl_simulator.emulator import tokenizer, tokens


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is asked for; fields that cannot change an emulated answer are left out."""

    max_tokens: int
    min_tokens: int = 0
    samples: int = 1
    logprobs: int | None = None
    """Likely tokens wanted beside the chosen one."""
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    include_stop: bool = False


class State(StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"
    FETCHING = "fetching"  # its KV comes from another engine
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Delta:
    """What happened to a sequence: tokens [start, end) of the answer are new, perhaps it ended."""

    start: int
    end: int
    finish_reason: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable; only the scheduler and the engine write to it."""

    request_id: str
    """As the client may name it in an abort."""
    internal_id: str
    index: int
    prompt: list[int]
    sampling: Sampling
    arrived: float
    kv_params: dict[str, Any] | None = None
    salt: int = 0
    """Of the prefix cache."""
    weights: str = ""
    """The version that was loaded when it came in; one that crosses an update keeps KV of these."""
    deltas: asyncio.Queue[Delta] = field(default_factory=asyncio.Queue)
    streaming: bool = False
    tokens: list[int] = field(init=False)
    """Prompt and answer so far."""
    hashing: int = field(init=False)
    """State of the token function after `tokens`."""
    contents: list[int] = field(default_factory=list)
    """Identity of each whole block's contents."""
    state: State = State.WAITING
    computed: int = 0
    """Leading tokens whose KV is here."""
    blocks: list[int] = field(default_factory=list)
    remembered: int = 0
    """Of its blocks, those that the prefix cache knows."""
    cached: int | None = None
    """Prompt tokens found in the local prefix cache when it was first admitted."""
    external: int = 0
    """Prompt tokens fetched from another engine."""
    fetched: bool = False
    """Its KV parameters were acted on."""
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """(weight version, start, end) of the answer's tokens."""
    scores: list[list[tuple[int, float]]] = field(default_factory=list)
    """Per answer token its likely alternatives, itself first, if logprobs are wanted."""
    text: str = ""
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    stop_cut: int | None = None
    """Length of the text before a stop string that ended it."""
    kv_answer: dict[str, Any] | None = None
    sent: int = 0
    """Answer tokens put into `deltas`."""
    preemptions: int = 0
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.hashing = tokens.prompt_state(self.prompt)

    @property
    def answer(self) -> list[int]:
        """Generated tokens."""
        return self.tokens[len(self.prompt) :]

    @property
    def generated(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - len(self.prompt)

    def whole_blocks(self, size: int, tokens_limit: int) -> list[int]:
        """Identities of the whole blocks within the first `tokens_limit` tokens."""
        count = tokens_limit // size
        while len(self.contents) < count:
            at = len(self.contents) * size
            before = self.contents[-1] if self.contents else self.salt
            self.contents.append(hash((before, tuple(self.tokens[at : at + size]))))
        return self.contents[:count]

    def append(self, token: int, version: str, score: list[tuple[int, float]] | None) -> None:
        """One more token of the answer."""
        at = self.generated
        self.tokens.append(token)
        self.hashing = tokens.push(self.hashing, token)
        self.text += tokenizer.decode((token,)) if token != tokenizer.END else ""
        if score is not None:
            self.scores.append(score)
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1] = (version, self.spans[-1][1], at + 1)
        else:
            self.spans.append((version, at, at + 1))

    def check_end(self, token: int, context_limit: int) -> None:
        """Set the finish reason if this last token ended the answer."""
        sampling, count = self.sampling, self.generated
        if count < sampling.min_tokens:
            return
        if token == tokenizer.END and not sampling.ignore_eos:
            self.finish_reason = "stop"
        elif token in sampling.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token
            self.stop_cut = len(self.text) - (0 if sampling.include_stop else len(tokenizer.decode((token,))))
        elif (stop := self._stop_string()) is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif count >= sampling.max_tokens or len(self.tokens) >= context_limit:
            self.finish_reason = "length"

    def _stop_string(self) -> str | None:
        # A token has one character, so a stop string can only end where the text ends now.
        for stop in self.sampling.stop:
            if self.text.endswith(stop):
                self.stop_cut = len(self.text) - (0 if self.sampling.include_stop else len(stop))
                return stop
        return None

    def shown_text(self) -> str:
        """The text without the stop string that ended it."""
        return self.text if self.stop_cut is None else self.text[: self.stop_cut]

    def put(self, interval: int) -> None:
        """Tell the reader about new tokens: the first, then every `interval`, and the end."""
        count = self.generated
        new = count - self.sent
        if self.finish_reason is None and not (self.streaming and new and (self.sent == 0 or new >= interval)):
            return
        self.deltas.put_nowait(Delta(self.sent, count, self.finish_reason))
        self.sent = count

"""One call of a turn to a worker: what is asked for, and the piece of the answer that comes of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from pearl_gateway.chunks import Span
from pearl_gateway.turn_state import Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_api.wire.gateway import SegmentReason
    from pearl_gateway.chunks import Chunk
    from pearl_gateway.fleet import Worker
    from pearl_gateway.trajectory import Trajectory
    from pearl_gateway.turn_state import Turn
    from pearl_gateway.versions import Accepted

_LONGEST_SALT = 128


class Draft:
    """One call of a turn to a worker while it runs, and the piece of the answer that it brings."""

    __slots__ = (
        "called",
        "closers",
        "first",
        "handed_at",
        "kv_sent",
        "kv_version",
        "lost",
        "prefill",
        "routed_experts",
        "spans",
        "start",
        "told",
        "trajectory",
        "turn",
        "version_before",
        "weights",
        "worker",
    )

    def __init__(
        self, trajectory: Trajectory, turn: Turn, worker: Worker, prefill: Worker | None, weights: Accepted
    ) -> None:
        self.weights = weights
        self.trajectory = trajectory
        self.turn = turn
        self.worker = worker
        self.prefill = prefill
        self.called = prefill or worker
        self.start = len(turn.token_ids)
        self.first = True
        self.lost = False
        self.handed_at = 0.0
        self.kv_sent = False
        self.kv_version: int | None = None
        self.version_before = worker.weight_version
        self.told: int | None = None
        """Version that the worker said before its first token."""
        self.spans: list[Span] | None = None
        self.routed_experts: str | None = None
        self.closers: list[Callable[[], object]] = []

    def lose(self) -> None:
        """A worker of this call is gone: break whatever waits for it."""
        self.lost = True
        for close in self.closers:
            close()

    def add(self, chunk: Chunk) -> None:
        """Tokens arrived."""
        if chunk.spans is not None:
            self.spans = chunk.spans
        self.routed_experts = chunk.routed_experts or self.routed_experts
        self.turn.add(chunk)

    def end(self, reason: SegmentReason, *, crosses: bool = False) -> None:
        """Write the piece into the turn, unless nothing came. `crosses`: calls may outlive a weight update."""
        self.turn.drop_unseen()
        end = len(self.turn.token_ids)
        if end == self.start:
            return
        if self.spans:
            spans = [Span(one.version, one.start + self.start, min(one.end + self.start, end)) for one in self.spans]
        else:
            spans = [Span(self._known(crosses=crosses), self.start, end)]
        pod = self.worker.facts.pod
        prefill_pod = self.prefill.facts.pod if self.prefill is not None else None
        kept = tuple(span for span in spans if span.start < span.end)
        self.turn.pieces.append(Piece(pod, prefill_pod, kept, self.start, end, reason, self.routed_experts))

    def _known(self, *, crosses: bool) -> int | None:
        """The version of a call whose engine died before the end, where the versions of all tokens are told."""
        if crosses:
            return None
        # A weight update would have ended the call.
        if self.told is not None:
            return self.told
        return self.version_before if self.version_before == self.worker.weight_version else None


def bound_by_grammar(turn: Turn) -> bool:
    """Whether the answer must have a structure: the engine's grammar cannot be entered in its middle."""
    return turn.sampling.get("structured_outputs") is not None


def engine_request(turn: Turn, max_model_len: int) -> dict[str, Any]:
    """The engine's request for what is still missing of the answer."""
    done = len(turn.token_ids)
    sampling = dict(turn.sampling)
    sampling["max_tokens"] = room(turn, max_model_len)
    if sampling.get("min_tokens"):
        sampling["min_tokens"] = min(max(0, sampling["min_tokens"] - done), sampling["max_tokens"])
    if sampling.get("logprobs") is None and turn.keep_logprobs:
        sampling["logprobs"] = 0
    if done and sampling.get("seed") is not None:
        sampling["seed"] = derived_seed(sampling["seed"], len(turn.pieces))
    return {**turn.extra, "token_ids": turn.prompt + turn.token_ids, "sampling_params": sampling}


def salt_with_version(body: dict[str, Any], version: int | None) -> None:
    """Keep cached KV apart by the version that its trajectory began with.

    Where KV survives an update, a trajectory goes on with its own, and nobody else finds it under newer weights.
    """
    own = body.get("cache_salt")
    salt = f"{own}-weights-{version}" if own else f"weights-{version}"
    # vLLM takes no '/' and no '@' in it, and no more characters than this.
    body["cache_salt"] = salt if len(salt) <= _LONGEST_SALT else hashlib.sha256(salt.encode()).hexdigest()


def room(turn: Turn, max_model_len: int) -> int:
    """Tokens that the answer may still grow by."""
    longest = max_model_len - len(turn.prompt)
    wanted = turn.sampling.get("max_tokens")
    return int(longest if wanted is None else min(wanted, longest)) - len(turn.token_ids)


def derived_seed(seed: int, segment: int) -> int:
    """The seed of a resumed segment: the same one would repeat the draws that were already used."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{segment}".encode()).digest()[:4]) & 0x7FFFFFFF

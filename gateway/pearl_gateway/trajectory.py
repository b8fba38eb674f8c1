"""The token log of a trajectory: what a trainer consumes and what a lost worker's work is resumed from.

It joins finished turns (`turn_state`) into one log of ids with spans for who made them. It never changes what it has: a
prompt that does not extend it opens a new context (segment `prefixBroken`), and everything before stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pearl_api.wire.gateway import Segment, SegmentReason, TrajectoryExport, TrajectoryProgress
from pearl_gateway.said import Base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_gateway.chunks import Span
    from pearl_gateway.said import Said
    from pearl_gateway.turn_state import Piece, Turn


@dataclass(slots=True, eq=False)
class Trajectory:
    """All turns of one agent session, in one log."""

    id: str
    group: str | None
    traffic: str
    """`train`, `eval` or `other`."""
    step: int | None
    created_at: float
    ephemeral: bool = False
    """A request without a trajectory: nothing is kept after its answer."""
    state: Literal["live", "finished", "aborted"] = "live"
    reward: float | None = None
    cause: str | None = None
    first_version: int | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    generated: list[tuple[int, int]] = field(default_factory=list)
    """Spans of the log that the model generated."""
    versions: list[Span] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    context_start: int = 0
    turns: dict[int, Turn] = field(default_factory=dict)
    turns_done: int = 0
    home: str | None = None
    prefill_home: str | None = None
    cached_tokens: int = 0
    fleet_changes: int | None = None
    """Changes of roles when a turn was last routed; None before the first."""
    last_generated: int | None = None
    """Tokens of the newest answer in the log; None before the first."""
    last_activity: float = 0.0
    idle_since: float | None = None
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By turn in the log: where its context begins and where its answer ends."""
    said: dict[int, Said] = field(default_factory=dict)
    """By turn: what was said up to its end, where that was text."""
    _mark: tuple[Turn, int, int, int, int, int, int | None] | None = None
    """The newest turn in the log and how long everything was before it."""

    @property
    def context(self) -> list[int]:
        """Ids of the present context; the next prompt should extend them."""
        return self.ids[self.context_start :] if self.context_start else self.ids

    def extends(self, prompt: Sequence[int]) -> bool:
        """Whether `prompt` starts with the present context."""
        context = self.context
        return len(prompt) >= len(context) and prompt[: len(context)] == context

    def common_prefix(self, prompt: Sequence[int]) -> int:
        """Leading tokens of `prompt` that the present context has too."""
        context = self.context
        shared = min(len(context), len(prompt))
        if context[:shared] == prompt[:shared]:
            return shared
        return next(at for at in range(shared) if context[at] != prompt[at])

    def base(self, number: int | None, parent: int | None) -> Base | None:
        """Where turn `number` goes on from: its parent, else the newest turn before it; None = from nothing."""
        before = [one for one in self.marks if number is None or one < number]
        at = parent if parent is not None else max(before, default=None)
        if at is None or at not in self.marks:
            return None
        start, end = self.marks[at]
        return Base(self.ids[start:end], self.said.get(at))

    def branches(self, turn: Turn) -> bool:
        """Whether the turn goes on from the earlier one that it names as its parent."""
        base = self.base(None, turn.parent) if turn.parent is not None else None
        return base is not None and turn.prompt[: len(base.ids)] == base.ids

    def routed(self, turn: Turn, changes: int) -> None:
        """A turn, or the rest of it, goes to a worker of the fleet as it is after that many changes of roles."""
        turn.moved |= self.fleet_changes not in (None, changes)
        self.fleet_changes = changes

    def commit(self, turn: Turn) -> bool:
        """Append a turn's prompt and answer to the log; False if its prompt broke the prefix.

        A branch opens a new context too, and breaks nothing.
        Also for an answer cut short by a client that left: what came is kept.
        """
        self._mark = (turn, *self._lengths())
        turn.committed = True
        turn.account_for_all()
        extends, branches = self.extends(turn.prompt), self.branches(turn)
        if extends:
            new = turn.prompt[len(self.context) :]
        else:
            self.context_start = len(self.ids)
            new = turn.prompt
            reason = SegmentReason.BRANCHED if branches else SegmentReason.PREFIX_BROKEN
            self.segments.append(_opened(turn, self.context_start, reason))
        self.ids += new
        self.logprobs += [None] * len(new)
        start = len(self.ids)
        self.ids += turn.token_ids
        self.logprobs += turn.logprobs
        if turn.token_ids:
            self.generated.append((start, len(self.ids)))
        for piece in turn.pieces:
            self._add_piece(turn.number, piece, start)
        self.last_generated = len(turn.token_ids)
        self.marks[turn.number] = (self.context_start, len(self.ids))
        return extends or branches

    def withdraw(self, turn: Turn) -> None:
        """Take the newest turn out of the log again: the client asked for it anew. Older ones stay."""
        if self._mark is None or self._mark[0] is not turn:
            return
        _, ids, generated, versions, segments, context_start, last = self._mark
        del self.ids[ids:], self.logprobs[ids:]
        del self.generated[generated:], self.versions[versions:], self.segments[segments:]
        self.context_start, self.last_generated = context_start, last
        self.turns_done -= 1
        self._mark = None
        self.marks.pop(turn.number, None)
        self.said.pop(turn.number, None)

    def _lengths(self) -> tuple[int, int, int, int, int, int | None]:
        return (
            len(self.ids),
            len(self.generated),
            len(self.versions),
            len(self.segments),
            self.context_start,
            self.last_generated,
        )

    def slim(self, newest: Turn) -> None:
        """Only the newest turn can still be asked for again with all its details."""
        for number in [number for number, turn in self.turns.items() if turn.committed and turn is not newest]:
            del self.turns[number]

    def _add_piece(self, number: int, piece: Piece, offset: int) -> None:
        last = len(piece.spans) - 1
        for index, span in enumerate(piece.spans):
            moved = type(span)(span.version, span.start + offset, span.end + offset)
            self.versions.append(moved)
            if self.first_version is None:
                self.first_version = span.version
            reason = piece.reason if index == last else SegmentReason.WEIGHTS_UPDATED
            self.segments.append(
                Segment(
                    turn=number,
                    worker=piece.worker,
                    prefill_worker=piece.prefill_worker,
                    version=span.version,
                    start=moved.start,
                    end=moved.end,
                    reason=reason,
                    routed_experts=piece.routed_experts if index == last else None,
                )
            )

    def export(self) -> TrajectoryExport:
        """The log as per-token lists; an answer that still grows is not in it."""
        mask = [0] * len(self.ids)
        for start, end in self.generated:
            mask[start:end] = [1] * (end - start)
        versions: list[int | None] = [None] * len(self.ids)
        for span in self.versions:
            versions[span.start : span.end] = [span.version] * (span.end - span.start)
        return TrajectoryExport(
            trajectory=self.id,
            group=self.group,
            state=self.state,
            reward=self.reward,
            cause=self.cause,
            turns=self.turns_done,
            token_ids=list(self.ids),
            loss_mask=mask,
            logprobs=list(self.logprobs),
            versions=versions,
            segments=list(self.segments),
        )

    def progress(self, now: float) -> TrajectoryProgress:
        """Compact facts for the batch predictor."""
        return TrajectoryProgress(
            group=self.group or self.id,
            turns_done=self.turns_done,
            context_tokens=len(self.ids) - self.context_start,
            idle_seconds=None if self.idle_since is None else max(0.0, now - self.idle_since),
        )


def _opened(turn: Turn, start: int, reason: SegmentReason) -> Segment:
    return Segment(
        turn=turn.number,
        worker="",
        version=None,
        start=start,
        end=start + len(turn.prompt),
        reason=reason,
    )

"""Holds one exported trajectory against what its agent was given and against a reference engine; pure but for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway_chaos.traffic import Given, Told

_LONGEST_SHIFT = 8
_VERSIONS = 20
"""How many versions back a span without one may come from."""
_LOGPROB_ERROR = 1e-3
"""Two ways to compute the same float32; an emulated engine's are equal."""


class Reference(Protocol):
    """Engines that nothing is done to, at every version."""

    async def continues(self, prompt: list[int], version: int, count: int) -> tuple[list[int], list[float]]:
        """Greedy tokens after `prompt` and their log-probabilities."""

    def text(self, token_ids: list[int]) -> str | None:
        """The text of tokens; None = not known."""

    async def explain(self, prompt: list[int], got: list[int], newest: int) -> str:
        """Where tokens that are not the wanted ones may come from, for people."""


@dataclass(slots=True)
class Found:
    """What is wrong with trajectories, in tokens; and what the checks saw."""

    trajectories: int = 0
    turns: int = 0
    checked_tokens: int = 0
    lost_tokens: int = 0
    duplicated_tokens: int = 0
    mismatched: int = 0
    unlabelled_tokens: int = 0
    """Without a version, since a worker died before it told; they are held against every version of their time."""
    unchecked_tokens: int = 0
    turns_run_again: int = 0
    tokens_run_again: int = 0
    seams: int = 0
    """Places where an answer went on elsewhere or under other weights."""
    reasons: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def tell(self, problem: str, *, lost: int = 0, doubled: int = 0, mismatched: int = 0) -> None:
        """Something that must not be, and how many tokens it concerns."""
        self.lost_tokens += lost
        self.duplicated_tokens += doubled
        self.mismatched += mismatched
        self.problems.append(problem)

    @property
    def good(self) -> bool:
        return not (self.lost_tokens or self.duplicated_tokens or self.mismatched or self.problems)


@dataclass(frozen=True, slots=True)
class Span:
    """Generated tokens of one version in the log."""

    turn: int
    version: int | None
    start: int
    end: int
    context: int
    """Where the prompt that they continue begins in the log."""
    how: str = ""
    """Who made them and why they end, for people."""


async def check(told: Told, reference: Reference, found: Found, newest: int, *, kept_kv: bool = False) -> None:
    """Adds to `found`. `newest`: version published by now; `kept_kv`: answers may go on with KV of older weights."""
    export = told.export
    assert export is not None
    found.trajectories += 1
    found.turns += len(told.turns)
    problem = misfit(export)
    if problem:
        found.tell(f"{told.name}: {problem}", mismatched=1)
        return
    checked = _Checked(told.name, export, reference, found, newest)
    for given in told.turns:
        checked.against_agent(given)
    checked.count_segments(told.broken_at)
    first = next((span.version for span in checked.spans if span.version is not None), None)
    for span in checked.spans:
        if kept_kv and span.version != first:
            found.unchecked_tokens += span.end - span.start
        else:
            await checked.against_reference(span)


def spans_of(export: dict[str, Any]) -> list[Span]:
    """Generated spans of an export, in order."""
    context, found = 0, []
    for one in export["segments"]:
        if one["reason"] == "prefixBroken":
            context = one["start"]
        else:
            how = f"{one['worker']} after {one['prefillWorker']}" if one["prefillWorker"] else one["worker"]
            span = Span(one["turn"], one["version"], one["start"], one["end"], context, f"{how}, {one['reason']}")
            found.append(span)
    return found


def misfit(export: dict[str, Any]) -> str:
    """What does not fit together within the export."""
    count = len(export["tokenIds"])
    for name in ("lossMask", "logprobs", "versions"):
        if len(export[name]) != count:
            return f"{name} has {len(export[name])} entries for {count} tokens"
    mask, versions = [0] * count, [None] * count
    at = 0
    for span in spans_of(export):
        if not at <= span.start < span.end <= count:
            return f"segment {span} overlaps the one before or the end"
        at = span.end
        mask[span.start : span.end] = [1] * (span.end - span.start)
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    if mask != export["lossMask"]:
        return "lossMask and segments disagree"
    if versions != export["versions"]:
        return "versions and segments disagree"
    if any((logprob is None) == bool(one) for logprob, one in zip(export["logprobs"], mask, strict=True)):
        return "a generated token has no log-probability, or a prompt token has one"
    return ""


@dataclass(frozen=True, slots=True)
class _Checked:
    """One trajectory."""

    name: str
    export: dict[str, Any]
    reference: Reference
    found: Found
    newest: int

    @property
    def spans(self) -> list[Span]:
        return spans_of(self.export)

    def against_agent(self, given: Given) -> None:
        """Everything that the agent was given is in the log, once, and nothing else."""
        where, ids = f"{self.name} turn {given.number}", self.export["tokenIds"]
        spans = [one for one in self.spans if one.turn == given.number]
        start, end = (spans[0].start, spans[-1].end) if spans else (0, 0)
        self._count(f"{where}: its answer in the log", given.token_ids, ids[start:end])
        if spans:
            self._count(f"{where}: its prompt in the log", given.prompt, ids[spans[0].context : start])
        for incarnation, partial in given.partials:
            kept = given.token_ids[: len(partial)]
            if incarnation == given.answered_in:
                self._count(f"{where}: what was streamed before", partial, kept)
            elif partial != kept:
                self.found.tokens_run_again += len(partial)
        self.found.turns_run_again += given.run_again
        self._whole(where, given)

    def _whole(self, where: str, given: Given) -> None:
        """Whether the answer ended where it should."""
        text = self.reference.text(given.token_ids)
        if given.stops and text is None:
            return
        ends = [text.find(one) + len(one) for one in given.stops if one in text] if text else []
        expected, wanted = ("stop", min(ends)) if ends else ("length", given.most)
        more = len(given.token_ids) - wanted
        if more < 0:
            problem = f"{where}: {-more} of {wanted} tokens are missing ({given.finish_reason})"
            self.found.tell(problem, lost=-more)
        elif more > 0:
            self.found.tell(f"{where}: {more} tokens after its end ({given.finish_reason})", mismatched=more)
        elif given.finish_reason != expected:
            self.found.tell(f"{where}: ended with {given.finish_reason} and not {expected}", mismatched=1)

    def _count(self, what: str, wanted: list[int], got: list[int]) -> None:
        """Tell what is missing, doubled and different in `got`."""
        if wanted == got:
            return
        lost = doubled = other = 0
        for kind, a, b, c, d in SequenceMatcher(None, wanted, got, autojunk=False).get_opcodes():
            lost += b - a if kind == "delete" else 0
            doubled += d - c if kind == "insert" else 0
            other += max(b - a, d - c) if kind == "replace" else 0
        problem = f"{what}: {lost} tokens lost, {doubled} doubled, {other} different"
        self.found.tell(problem, lost=lost, doubled=doubled, mismatched=other)

    def count_segments(self, broken_at: set[int]) -> None:
        """Why segments ended; and that no prefix was broken but by its agent."""
        for segment in self.export["segments"]:
            reason = segment["reason"]
            self.found.reasons[reason] = self.found.reasons.get(reason, 0) + 1
            self.found.seams += reason not in ("complete", "prefixBroken")
            if reason == "prefixBroken" and segment["turn"] not in broken_at:
                self.found.tell(f"{self.name} turn {segment['turn']}: it only extends and broke", mismatched=1)

    async def against_reference(self, span: Span) -> None:
        """Its version gives these tokens after this prefix, with these log-probabilities."""
        ids, count = self.export["tokenIds"], span.end - span.start
        prefix, got = ids[span.context : span.start], ids[span.start : span.end]
        where = f"{self.name} turn {span.turn} [{span.start}, {span.end}) version {span.version} of {span.how}"
        self.found.checked_tokens += count
        if span.version is None:
            self.found.unlabelled_tokens += count
            await self._against_any(where, prefix, got)
            return
        tokens, logprobs = await self.reference.continues(prefix, span.version, count)
        if tokens != got:
            at = next(at for at, (one, other) in enumerate(zip(tokens, got, strict=True)) if one != other)
            await self._classify(where, span.version, prefix + got[:at], got[at:], got[:at])
            return
        pairs = zip(logprobs, self.export["logprobs"][span.start : span.end], strict=True)
        wrong = sum(abs(one - other) > _LOGPROB_ERROR for one, other in pairs)
        if wrong:
            self.found.tell(f"{where}: {wrong} log-probabilities differ from the reference's", mismatched=wrong)

    async def _against_any(self, where: str, prefix: list[int], got: list[int]) -> None:
        """One of the versions of its time does, or one and then newer ones."""
        at, version = 0, max(-1, self.newest - _VERSIONS)
        while at < len(got) and version < self.newest:
            version += 1
            tokens, _ = await self.reference.continues(prefix + got[:at], version, len(got) - at)
            at += next(
                (at for at, (one, other) in enumerate(zip(tokens, got[at:], strict=True)) if one != other), len(tokens)
            )
        if at < len(got):
            self.found.tell(f"{where}: no version near {self.newest} gives this", mismatched=len(got))

    async def _classify(self, where: str, version: int, prefix: list[int], rest: list[int], good: list[int]) -> None:
        """A token that is missing or doubled shifts the rest of the answer; anything else is a mismatch."""
        why = await self.reference.explain(prefix, rest, self.newest)
        after, _ = await self.reference.continues(prefix, version, len(rest) + _LONGEST_SHIFT)
        for shift in range(1, _LONGEST_SHIFT + 1):
            if after[shift : shift + len(rest)] == rest:
                self.found.tell(f"{where}: {shift} tokens are lost before token {len(good)}", lost=shift)
                return
            doubled = rest[:shift] == good[-shift:]
            if doubled and after[: len(rest) - shift] == rest[shift:]:
                self.found.tell(f"{where}: {shift} tokens are doubled at token {len(good)}", doubled=shift)
                return
        problem = f"{where}: {len(rest)} tokens differ from the reference, from token {len(good)} on{why}"
        self.found.tell(problem, mismatched=len(rest))

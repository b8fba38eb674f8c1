"""The workers as this process sees them: what the watch says, and what its own calls learned.

Written by `membership` (facts) and by `turn` (load, failures); read by `router` through `candidates`.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pearl_api.names import Activity, Role
from pearl_gateway.elsewhere import NOWHERE
from pearl_gateway.router import Candidate
from pearl_gateway.versions import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_SLOW_START_SECONDS = 10.0
_SLOW_START_FACTOR = 4.0
_LINK_BACKOFF_SECONDS = 5.0
_LINK_BACKOFF_LONGEST_SECONDS = 60.0
_PREFILL_TOKENS_PER_REQUEST = 512
"""Queued prompt tokens that weigh as much as one running request when loads are compared."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker pod as the watch (or the static file) describes it."""

    uid: str
    pod: str
    url: str | None
    """Base URL of the engine; None until the pod has an address."""
    agent_url: str | None
    role: Role
    role_epoch: int
    activity: Activity
    ready: bool
    borrowed: bool = False
    """On a trainer's GPU: it keeps prefilled KV only for a short lease."""
    lender: str | None = None
    """Whose loan the tokens of a borrower are limited to (`pearl_api.tokens.lender`)."""


@dataclass(slots=True, eq=False)
class Worker:
    """A worker with what this process knows about it."""

    facts: WorkerFacts
    role_seen_at: float
    in_flight: int = 0
    reserved: int = 0
    """Turns that have their place here and begin at once."""
    prefill_tokens: int = 0
    """Prompt tokens sent to it that have not produced a token yet."""
    reserved_tokens: int = 0
    """Prompt tokens that are sent to it at once."""
    weight_version: int | None = None
    wanted_version: int | None = None
    ejected: bool = False
    closed_until: float = 0.0
    back_since: float | None = None
    """When it came back from an ejection; it is loaded slowly from then on."""
    first_token_in_role_seconds: float | None = None
    on_lost: set[Callable[[], None]] = field(default_factory=set)
    """Called when the pod is gone or its address changed, so that no call waits for a dead peer."""


class Fleet:
    """All workers by pod UID; `clock` gives monotonic seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_eject: Callable[[Worker], None] | None = None,
        on_unready: Callable[[Worker], None] | None = None,
    ) -> None:
        self._clock = clock
        self._on_eject = on_eject
        self._on_unready = on_unready
        self._changed = asyncio.Event()
        self._bad_links: dict[tuple[str, str], tuple[float, float]] = {}
        self.workers: dict[str, Worker] = {}
        self.listeners: list[Callable[[], None]] = []
        """Called when anything changed."""
        self.lenders: dict[str, str] = {}
        """Of borrowers, by the URLs of their engines and agents."""
        self.elsewhere = NOWHERE
        """Load of the same workers by other processes of this gateway; counted in wherever loads are compared."""
        self.changes = 0
        """How often a worker changed its role: what a trajectory compares from turn to turn."""

    def replace(self, facts: Iterable[WorkerFacts]) -> None:
        """Take over a complete list: what is not in it is gone."""
        known = {fact.uid: fact for fact in facts}
        for uid in [uid for uid in self.workers if uid not in known]:
            self.remove(uid)
        for fact in known.values():
            self.upsert(fact)

    def upsert(self, facts: WorkerFacts) -> None:
        """Take over one worker's facts; routing follows at once."""
        worker = self.workers.get(facts.uid)
        self._note_lender(facts)
        if worker is None:
            self.workers[facts.uid] = Worker(facts=facts, role_seen_at=self._clock())
        elif worker.facts != facts:
            before, worker.facts = worker.facts, facts
            if (before.role, before.role_epoch) != (facts.role, facts.role_epoch):
                self.changes += 1
                worker.role_seen_at = self._clock()
                worker.first_token_in_role_seconds = None
            if before.url != facts.url:
                self._lose(worker)
            elif before.ready and not facts.ready and self._on_unready is not None:
                self._on_unready(worker)
        else:
            return
        self.notify()

    def _note_lender(self, facts: WorkerFacts) -> None:
        """Addresses are used again, also by workers that are nobody's borrowers."""
        for url in (facts.url, facts.agent_url):
            if url is not None and facts.lender is not None:
                self.lenders[url] = facts.lender
            elif url is not None:
                self.lenders.pop(url, None)

    def remove(self, uid: str) -> None:
        """The pod is gone: calls in flight on it end now and are resumed elsewhere."""
        worker = self.workers.pop(uid, None)
        if worker is not None:
            self._bad_links = {pair: until for pair, until in self._bad_links.items() if uid not in pair}
            self._lose(worker)
            self.notify()

    def notify(self) -> None:
        """Wake everybody who waits for a worker."""
        event, self._changed = self._changed, asyncio.Event()
        event.set()
        for listener in self.listeners:
            listener()

    async def wait_change(self, seconds: float) -> None:
        """Return when anything about the fleet changed, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def eject(self, worker: Worker) -> None:
        """Route nothing to it until it answered a probe."""
        if not worker.ejected and worker.facts.uid in self.workers:
            worker.ejected = True
            if self._on_eject is not None:
                self._on_eject(worker)

    def abandon(self, worker: Worker) -> None:
        """It does not answer: break the calls on it and route nothing there until it does."""
        self.eject(worker)
        self._lose(worker)

    def restore(self, worker: Worker) -> None:
        """It answers again: back in service, slowly."""
        worker.ejected = False
        worker.back_since = self._clock()
        self.notify()

    def close_for(self, worker: Worker, seconds: float) -> None:
        """Its guard refused work: ask others for a moment."""
        worker.closed_until = self._clock() + seconds

    def fail_link(self, prefill: Worker, decode: Worker) -> None:
        """KV did not get from one to the other in time: avoid the pair, longer each time."""
        pair = (prefill.facts.uid, decode.facts.uid)
        _, last = self._bad_links.get(pair, (0.0, _LINK_BACKOFF_SECONDS / 2))
        backoff = min(2 * last, _LINK_BACKOFF_LONGEST_SECONDS)
        self._bad_links[pair] = (self._clock() + backoff, backoff)

    def mend_link(self, prefill: Worker, decode: Worker) -> None:
        """KV got through: forget former failures of the pair."""
        self._bad_links.pop((prefill.facts.uid, decode.facts.uid), None)

    def bad_links(self) -> frozenset[tuple[str, str]]:
        """Pairs (prefill uid, decode uid) that are avoided now."""
        if not self._bad_links:
            return frozenset()
        now = self._clock()
        return frozenset(pair for pair, (until, _) in self._bad_links.items() if until > now)

    def candidates(self) -> list[Candidate]:
        """Every worker that may get a turn now, with its load."""
        now = self._clock()
        return [self._candidate(uid, one, now) for uid, one in self.workers.items() if self.usable(one, now)]

    def _candidate(self, uid: str, worker: Worker, now: float) -> Candidate:
        there = self.elsewhere.load(uid)
        turns = worker.in_flight + there.in_flight
        prefill_tokens = worker.prefill_tokens + there.prefill_tokens
        load = turns + prefill_tokens / _PREFILL_TOKENS_PER_REQUEST
        if worker.back_since is not None:
            share = (now - worker.back_since) / _SLOW_START_SECONDS
            load = load if share >= 1 else (load + 1) * (1 + _SLOW_START_FACTOR * (1 - share))
        return Candidate(
            uid=uid,
            role=worker.facts.role,
            load=load,
            prefill_tokens=prefill_tokens,
            version=worker.weight_version,
            taken=turns + worker.reserved,
            queued_tokens=prefill_tokens + worker.reserved_tokens,
        )

    def usable(self, worker: Worker, now: float) -> bool:
        """Active, ready, addressed, not ejected, and its gate is not known to be closed."""
        facts = worker.facts
        return (
            facts.ready
            and facts.activity is Activity.ACTIVE
            and facts.url is not None
            and not worker.ejected
            and worker.closed_until <= now
        )

    def talkable(self) -> list[Worker]:
        """Workers that can tokenise, least loaded first: that needs no place in a batch."""
        now = self._clock()
        found = [worker for worker in self.workers.values() if self.usable(worker, now)]
        return sorted(found, key=self.in_flight)

    def in_flight(self, worker: Worker) -> int:
        """Requests on it, those of other processes included."""
        return worker.in_flight + self.elsewhere.load(worker.facts.uid).in_flight

    @contextmanager
    def busy(self, worker: Worker, prefill_tokens: int, on_lost: Callable[[], None]) -> Iterator[Busy]:
        """Count one request on a worker while the block runs."""
        busy = Busy(worker, prefill_tokens, on_lost)
        try:
            yield busy
        finally:
            busy.end()

    def served(self, worker: Worker) -> None:
        """A token came from it."""
        if worker.first_token_in_role_seconds is None:
            worker.first_token_in_role_seconds = self._clock() - worker.role_seen_at

    def saw_version(self, worker: Worker, version: int | None) -> None:
        """An answer of the worker told its weights; what its agent told may be newer, an answer takes its time."""
        known = worker.weight_version
        if version is not None and (worker.facts.agent_url is None or known is None or version > known):
            worker.weight_version = version

    def loaded(self) -> list[Loaded]:
        """The weights of all workers that have an agent to tell them."""
        return [
            Loaded(worker.weight_version, self.in_flight(worker) > 0)
            for worker in self.workers.values()
            if worker.facts.agent_url is not None
        ]

    def published_version(self) -> int | None:
        """Newest version known to be published: read from the manifest by an agent, or loaded; None = nobody told."""
        wanted = self.wanted_version()
        if wanted is None:
            return None
        return max([wanted, *(one.version for one in self.loaded() if one.version is not None)])

    def versions(self) -> list[int]:
        """Loaded weight versions of all workers that told one."""
        return [worker.weight_version for worker in self.workers.values() if worker.weight_version is not None]

    def wanted_version(self) -> int | None:
        """Newest version that any agent read from the manifest."""
        known = [worker.wanted_version for worker in self.workers.values() if worker.wanted_version is not None]
        return max(known, default=None)

    @staticmethod
    def _lose(worker: Worker) -> None:
        for callback in list(worker.on_lost):
            callback()


class Busy:
    """One request on one worker, as the load sees it."""

    __slots__ = ("_on_lost", "_prefill_tokens", "worker")

    def __init__(self, worker: Worker, prefill_tokens: int, on_lost: Callable[[], None]) -> None:
        self.worker = worker
        self._prefill_tokens = prefill_tokens
        self._on_lost = on_lost
        worker.in_flight += 1
        worker.prefill_tokens += prefill_tokens
        worker.on_lost.add(on_lost)

    def prefilled(self) -> None:
        """The first token is there: no prompt tokens wait any more."""
        self.worker.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0

    def end(self) -> None:
        """The request is over."""
        self.prefilled()
        self.worker.in_flight -= 1
        self.worker.on_lost.discard(self._on_lost)

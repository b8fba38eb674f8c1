"""Looks at fleets and at the trainer's loan, beside the scenario, and fills the timeline."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

from examples.common.timeline import DecisionFact, FleetSample, LoanSample, Mark
from examples.common.trainer_pod import LOAN_PATH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.common.timeline import Timeline
    from pearl_dev.fleet import Fleet

PERIOD_SECONDS = 0.25
FLEETS_EVERY = 4
"""A loan's phases are short; fleets change slowly and cost more requests."""


class Sampler:
    """A thread that samples; `mark` notes what the scenario does."""

    def __init__(self, timeline: Timeline, fleets: Sequence[Fleet]) -> None:
        """Start at once; times in the timeline count from now."""
        self._timeline = timeline
        self._fleets = fleets
        self._started = time.monotonic()
        self._over = threading.Event()
        self._told: dict[str, tuple[str, str]] = {}
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def mark(self, text: str) -> None:
        """Something happens on purpose."""
        self._timeline.marks.append(Mark(self.now(), text))

    def close(self) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        for look in itertools.count():
            if self._over.wait(PERIOD_SECONDS):
                return
            try:
                self._sample_loan()
                for fleet in self._fleets if look % FLEETS_EVERY == 0 else ():
                    self._sample(fleet)
            except (httpx.HTTPError, RuntimeError):
                continue  # not there yet, or restarting: the next look sees it again

    def _sample_loan(self) -> None:
        loan = self._fleets[0].api.get(LOAN_PATH)
        if loan is not None:
            self._timeline.loans.append(LoanSample(self.now(), loan.get("status", {}).get("phase", "Idle")))

    def _sample(self, fleet: Fleet) -> None:
        status = fleet.status()
        counts: dict[str, int] = status.get("workers", {})
        generated, prefilled = _tokens(fleet)
        shown = {role: counts.get(role, 0) for role in ("prefill", "decode", "colocated", "borrowed", "ready")}
        self._timeline.samples.append(
            FleetSample(self.now(), fleet.name, **shown, generated_tokens=generated, prefilled_tokens=prefilled)
        )
        self._decision(fleet.name, status.get("lastDecision") or {})

    def _decision(self, rollout: str, decision: dict[str, Any]) -> None:
        told = (decision.get("reason", ""), decision.get("shape", ""))
        if told == self._told.get(rollout) or not told[0]:
            return
        self._told[rollout] = told
        self._timeline.decisions.append(DecisionFact(self.now(), rollout, *told, decision.get("message", "")))


def _tokens(fleet: Fleet) -> tuple[int | None, int | None]:
    """(generated, prefilled) tokens so far; None while the gateway does not answer."""
    try:
        counters = fleet.stats().counters
    except (httpx.HTTPError, RuntimeError):
        return None, None
    return counters.generated_tokens, counters.prefilled_tokens

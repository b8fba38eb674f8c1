"""What the loan service says of itself to Prometheus; label sets of a rollout go when it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pearl_api.loan import LoanPhase

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_operator.facts import LoanFact
    from pearl_operator.ports import RolloutKey

_ROLLOUT: Final = ("rollout_namespace", "rollout")
_FAST: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5)
_SLOW: Final = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


class LoanMetrics:
    """All series about loans, in a registry of their own that the operator's takes in."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._phase_seconds = Histogram(
            "pearl_loan_phase_seconds",
            "Time that a loan spent in a phase, by the phase that followed.",
            (*_ROLLOUT, "phase", "next"),
            registry=self.registry,
            buckets=_SLOW,
        )
        self._changes = Counter(
            "pearl_loan_phase_changes",
            "Changes of phase, those included whose beginning this process did not see.",
            (*_ROLLOUT, "phase", "next"),
            registry=self.registry,
        )
        self._loans = Gauge("pearl_loans", "GPULoans by phase.", (*_ROLLOUT, "phase"), registry=self.registry)
        self._gpus = Gauge(
            "pearl_loan_gpus", "GPUs of enrolled loans by phase.", (*_ROLLOUT, "phase"), registry=self.registry
        )
        self._lend_seconds = Histogram(
            "pearl_loan_answer_seconds",
            "From an offer's arrival to its answer, the agents' acceptance included.",
            (*_ROLLOUT, "granted"),
            registry=self.registry,
            buckets=_FAST,
        )
        self._answers = Counter(
            "pearl_loan_answers", "Answers to offers by reason.", (*_ROLLOUT, "reason"), registry=self.registry
        )
        self._reclaim_seconds = Histogram(
            "pearl_loan_reclaim_seconds",
            "Duration of reclaims as the trainers measured it.",
            (*_ROLLOUT, "killed"),
            registry=self.registry,
            buckets=_SLOW,
        )
        self._not_returned = Counter(
            "pearl_loan_not_returned",
            "Reclaims at whose deadline a GPU was not known to be free.",
            _ROLLOUT,
            registry=self.registry,
        )
        self._overlap_seconds = Histogram(
            "pearl_loan_overlap_seconds",
            "From the end of a trainer pod until its borrowers were seen to hold no GPU; under VisibleDevices somebody "
            "else may have got the GPU in between.",
            (*_ROLLOUT, "access"),
            registry=self.registry,
            buckets=_SLOW,
        )
        self._overlaps = Gauge(
            "pearl_loan_overlaps",
            "Loans whose trainer pod has ended and whose borrowers may still hold GPUs.",
            _ROLLOUT,
            registry=self.registry,
        )
        self._refused = Counter(
            "pearl_loan_calls_refused", "Calls of the loan API refused, by reason.", ("reason",), registry=self.registry
        )

    def changed(self, rollout: RolloutKey, before: LoanPhase, after: LoanPhase, seconds: float | None) -> None:
        """A loan changed its phase after `seconds`; None = since before this process."""
        labels = (rollout.namespace, rollout.name, before.value, after.value)
        self._changes.labels(*labels).inc()
        if seconds is not None:
            self._phase_seconds.labels(*labels).observe(seconds)

    def count(self, rollout: RolloutKey, loans: Iterable[LoanFact], overlaps: int) -> None:
        """All loans of a rollout as they are now."""
        numbers, gpus = dict.fromkeys(LoanPhase, 0), dict.fromkeys(LoanPhase, 0)
        for loan in loans:
            numbers[loan.status.phase] += 1
            gpus[loan.status.phase] += len(loan.spec.gpus)
        for phase in LoanPhase:
            self._loans.labels(rollout.namespace, rollout.name, phase.value).set(numbers[phase])
            self._gpus.labels(rollout.namespace, rollout.name, phase.value).set(gpus[phase])
        self._overlaps.labels(rollout.namespace, rollout.name).set(overlaps)
        self._not_returned.labels(rollout.namespace, rollout.name)  # from 0 on, else its first increase is not seen
        for killed in ("false", "true"):  # the same
            self._reclaim_seconds.labels(rollout.namespace, rollout.name, killed)

    def answered(self, rollout: RolloutKey, seconds: float, *, granted: bool, reason: str) -> None:
        """An offer was answered."""
        self._lend_seconds.labels(rollout.namespace, rollout.name, str(granted).lower()).observe(seconds)
        self._answers.labels(rollout.namespace, rollout.name, reason).inc()

    def reclaimed(self, rollout: RolloutKey, seconds: float, *, free: bool, killed: bool) -> None:
        """A reclaim ended."""
        self._reclaim_seconds.labels(rollout.namespace, rollout.name, str(killed).lower()).observe(seconds)
        if not free:
            self._not_returned.labels(rollout.namespace, rollout.name).inc()

    def overlapped(self, rollout: RolloutKey, access: str, seconds: float) -> None:
        """A trainer pod had ended, and now its borrowers hold nothing."""
        self._overlap_seconds.labels(rollout.namespace, rollout.name, access).observe(seconds)

    def refused(self, reason: str) -> None:
        """A call was refused."""
        self._refused.labels(reason).inc()

    def forget(self, rollout: RolloutKey) -> None:
        """Drops the series of a rollout that is gone."""
        matching = {"rollout_namespace": rollout.namespace, "rollout": rollout.name}
        for family in (
            self._phase_seconds,
            self._changes,
            self._loans,
            self._gpus,
            self._lend_seconds,
            self._answers,
            self._reclaim_seconds,
            self._not_returned,
            self._overlap_seconds,
            self._overlaps,
        ):
            family.remove_by_labels(matching)

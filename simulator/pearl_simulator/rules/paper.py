"""`pearl-paper`: the PEARL paper's policy as published (Equations 1–3 and 7, hysteresis, gated borrowing).

The parameters are refitted after each training step from what that step measured, and held until the next; the shape
is chosen anew on every elastic signal (another number of workers) and after each step, not while a batch thins out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.facts import sizes
from pearl_planner.fleet.shapes import allowed_shapes, carried_shape
from pearl_planner.numbers import clamp, median
from pearl_planner.paper_model import PaperModel, ranked, worth_borrowing
from pearl_planner.types import Mode, Reason, Role, Shape
from pearl_simulator.rules.base import decision, load_of, present_shape, serving, trajectories

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision
    from pearl_planner.prediction.mean_turn import Workload
    from pearl_planner.types import Loan, Policy, Snapshot

MIN_DECODING = 0.05
"""f below it is taken as this much: θ must stay finite."""


@dataclass(slots=True)
class PaperRule:
    """Mutable by design: it holds the fit of the last step. One instance per run."""

    ratio_threshold: float = 0.03
    """The paper does not publish its thresholds; the one for the mode is larger."""
    mode_threshold: float = 0.08
    overlap_factor: float = 1.0
    """On T_over, which the paper neither publishes nor lists among what it refits: measured as what the time between
    tokens of colocated workers has more than decode and prefill explain."""
    toggle_seconds: float = 9.44
    """T_toggle until one was measured (activation and deactivation of its Table 3)."""
    _model: PaperModel | None = None
    _appended: float = 0.0
    _step: int | None = None
    _workers: int = 0
    _slowest_turns: int = 0
    _decoding: list[float] = field(default_factory=list)
    _scales: list[float] = field(default_factory=list)
    """Measured over tabulated step time of decode workers, which nothing disturbs."""
    _excesses: list[tuple[float, float]] = field(default_factory=list)
    """Seconds per token of colocated workers beyond the tabulated step, and the neighbours that held them up."""
    _scale: float = 1.0
    _excess: float = 0.0

    def decide(self, snapshot: Snapshot, policy: Policy) -> Decision:
        """All GPUs there are, in the shape of the equations."""
        room = sizes(snapshot)
        count = room.fixed + room.elastic_high
        self._observe(snapshot, policy)
        step = None if snapshot.batch is None else snapshot.batch.step
        fitted = self._model is None or step != self._step
        if fitted:
            self._refit(snapshot, policy)
        signal = fitted or count != self._workers
        self._step, self._workers = step, count
        shape = carried_shape(present_shape(snapshot), count, policy)
        if self._model is not None and signal:
            shape = self._choose(present_shape(snapshot), shape, policy)
        return decision(snapshot, policy, room.elastic_high, shape, "Equations 1–3 of the paper")

    def answer_loan(self, snapshot: Snapshot, policy: Policy, loan: Loan, count: int, added: int) -> tuple[bool, str]:
        """Equation 7; taken while nothing was fitted."""
        del loan
        batch = snapshot.batch
        if self._model is None or batch is None:
            return True, Reason.NO_DATA.value
        wake = snapshot.memory.wake_cost_seconds
        worth = worth_borrowing(
            unfinished=batch.groups * batch.group_size - batch.finished,
            trajectories=batch.groups * batch.group_size,
            without_seconds=self._best(count, policy)[1],
            with_seconds=self._best(count + added, policy)[1],
            toggle_seconds=self.toggle_seconds if wake is None else 1.5 * wake,
        )
        return worth, (Reason.APPLIED if worth else Reason.BORROW_NOT_WORTHWHILE).value

    def _observe(self, snapshot: Snapshot, policy: Policy) -> None:
        """Turns of the slowest trajectory and the share that decodes, over the looks of this step."""
        alive = () if snapshot.batch is None else snapshot.batch.unfinished
        self._slowest_turns = max([self._slowest_turns, *(one.turns_done + 1 for one in alive)])
        engines = snapshot.measurements.engines
        decoders = serving(snapshot, Role.DECODE, Role.COLOCATED)
        running = [engines[w.uid].running for w in decoders if w.uid in engines]
        decoding = [value for value in running if value is not None]
        if decoding:
            share = sum(decoding) / trajectories(snapshot, policy)
        elif alive:
            share = sum(one.idle_seconds is None for one in alive) / len(alive)
        else:
            return
        self._decoding.append(clamp(share, MIN_DECODING, 1.0))
        self._observe_steps(snapshot, policy)

    def _observe_steps(self, snapshot: Snapshot, policy: Policy) -> None:
        """Times between tokens: of decode workers for A and b, of colocated ones for T_over."""
        load = load_of(snapshot, policy)
        if load is None:
            return
        for worker in serving(snapshot, Role.DECODE, Role.COLOCATED):
            metrics = snapshot.measurements.engines.get(worker.uid)
            running, between = (metrics.running, metrics.inter_token_seconds) if metrics else (None, None)
            if not running or not between:
                continue
            tabulated = decode_seconds(policy.table, running, load.context_tokens)
            if worker.role is Role.DECODE:
                self._scales.append(between / tabulated)
            else:
                self._excesses.append((between - self._scale * tabulated, max(running - 1.0, 0.0)))

    def _refit(self, snapshot: Snapshot, policy: Policy) -> None:
        """S, r, ΔL, θ, A, b and t_pre of the step that ended (or of what there is, the first time)."""
        load = load_of(snapshot, policy)
        if load is None or not self._decoding or not self._slowest_turns:
            return
        self._scale = clamp(median(self._scales) or self._scale, 0.2, 5.0)
        neighbours = sum(count for _, count in self._excesses)
        self._excess = self._excess if neighbours <= 0 else sum(one for one, _ in self._excesses) / neighbours
        table, batch = policy.table.scaled(self._scale), snapshot.batch
        size = trajectories(snapshot, policy) if batch is None else batch.groups * batch.group_size
        if policy.window is not None and policy.window > 0:
            size = min(size, policy.window)
        crowd = max(2.0, size / max(self._workers, 1))
        one, many = (decode_seconds(table, n, load.context_tokens) for n in (1.0, crowd))
        slope = (many - one) / (crowd - 1.0)
        route = "colocated" if present_shape(snapshot).mode is Mode.COLOCATED else "disaggregated"
        missed = max(load.missed(route), 0.0)
        self._appended = load.appended_tokens + missed
        new = self._appended + load.retained_share * load.generated_tokens
        per_token = prefill_seconds(table, new, max(load.context_tokens - new, 0.0)) / new
        decoding = sum(self._decoding) / len(self._decoding)
        turns = float(self._slowest_turns)
        self._model = PaperModel(
            trajectories=float(size),
            turns=turns,
            new_tokens=new,
            generated_tokens=load.generated_tokens,
            decode_fixed_seconds=one - slope,
            decode_per_sequence_seconds=slope,
            prefill_per_token_seconds=per_token,
            environment_seconds=turns * load.environment_seconds,
            overlap_seconds=self.overlap_factor * self._overlap(load, self._appended * per_token, crowd),
            bubble_ratio=(1.0 - decoding) / decoding,
            kv_bytes_per_token=table.kv_bytes_per_token or 0.0,
            transfer_bytes_per_second=table.transfer_bytes_per_second,
            sequence_tokens=load.context_tokens,
            worker_kv_tokens=table.kv_capacity_tokens,
        )
        self._slowest_turns, self._decoding, self._scales, self._excesses = 0, [], [], []

    def _overlap(self, load: Workload, prefill: float, crowd: float) -> float:
        """T_over: a turn's excess over decode, less the prefills of all sequences of its worker."""
        return crowd * max(0.0, self._excess * load.generated_tokens - prefill)

    def _seconds(self, shape: Shape) -> float:
        """Of a shape; a colocated worker saw what it generated, so retained tokens are not new to it."""
        model = self._model
        if model is None:
            return 0.0
        colocated = shape.mode is Mode.COLOCATED
        return (replace(model, new_tokens=self._appended) if colocated else model).seconds(shape)

    def _best(self, count: int, policy: Policy, mode: Mode | None = None) -> tuple[Shape, float]:
        """Fastest allowed shape of `count` workers, in one mode or in all; infinitely slow where none is feasible."""
        model = self._model
        shapes = [] if model is None else [shape for shape, _ in ranked(model, count)]
        allowed = [s for s in shapes if s in allowed_shapes(count, policy) and (mode is None or s.mode is mode)]
        return min(((s, self._seconds(s)) for s in allowed), key=lambda one: one[1], default=(Shape(), float("inf")))

    def _choose(self, before: Shape, carried: Shape, policy: Policy) -> Shape:
        """Hysteresis. New workers need roles anyway, so with another count the present mode may take any ratio."""
        count = carried.workers
        same_count = before.workers == count
        stay = (carried, self._seconds(carried)) if same_count else self._best(count, policy, carried.mode)
        best_here = self._best(count, policy, carried.mode)
        if best_here[1] < stay[1] * (1.0 - self.ratio_threshold):
            stay = best_here
        best = self._best(count, policy)
        leave = best[1] < stay[1] * (1.0 - self.mode_threshold)
        return best[0] if best[0].workers and (leave or not stay[0].workers) else stay[0]

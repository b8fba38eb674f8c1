"""What each rule to compare with decides, in situations that a person worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pearl_planner.engine.model import EngineTable
from pearl_planner.facts import clean
from pearl_planner.types import (
    Activity,
    Batch,
    Budget,
    Loan,
    Measurements,
    Memory,
    Policy,
    Reason,
    Role,
    Shape,
    Slot,
    Snapshot,
    Target,
    Trajectory,
    Worker,
    WorkerMetrics,
    WorkerState,
    Zone,
)
from pearl_planner.workload.profile import Profile, TrajectoryRecord, TurnRecord, update
from pearl_simulator.rules import RULES, Rule, make_rule, tunables
from pearl_simulator.rules.prorsa import ProrsaRule, returns_within

if TYPE_CHECKING:
    from pearl_planner.choice.decide import Decision

TABLE = EngineTable(
    name="test/gpu",
    decode_fixed_seconds=0.010,
    decode_per_sequence_seconds=0.001,
    decode_per_context_token_seconds=0.0,
    prefill_fixed_seconds=0.0,
    prefill_per_token_seconds=0.001,
    prefill_per_token_pair_seconds=0.0,
)
POLICY = Policy(generation=1, table=TABLE, window=64, window_automatic=False)
LOAN = Loan("trainer", "training", 1, "Offered", 4, ("b0", "b1"), requested=True)


def profile(appended: int, generated: int, *, wait: float = 1.0) -> Profile:
    """Twenty equal trajectories of eight turns without any misses, nothing of an answer retained."""
    records: list[TurnRecord | TrajectoryRecord] = []
    for number in range(20):
        for turn in range(1, 9):
            later = {"previous_generated_tokens": generated, "retained_tokens": 0, "environment_seconds": wait}
            records.append(
                TurnRecord(str(number), turn, appended, generated, 8 * appended, **(later if turn > 1 else {}))
            )
        records.append(TrajectoryRecord(str(number), 8))
    return update(None, records)


def worker(slot: int, role: Role, zone: Zone = Zone.ELASTIC, in_flight: int = 0) -> Worker:
    return Worker(
        uid=f"u{slot}",
        pod=f"w{slot}",
        slot=slot,
        incarnation=0,
        zone=zone,
        role=role,
        role_epoch=1,
        activity=Activity.ACTIVE,
        state=WorkerState.READY,
        gpus=2,
        in_flight=in_flight,
    )


def snapshot(shape: str, *, free: int = 0, now: float = 100.0, seen: Profile | None = None, live: int = 64) -> Snapshot:
    """`shape` in letters, two reserved workers first; `free` elastic GPUs beside those in use."""
    roles = {"C": Role.COLOCATED, "P": Role.PREFILL, "D": Role.DECODE}
    zones = [Zone.RESERVED, Zone.RESERVED, *([Zone.ELASTIC] * 20)]
    workers = tuple(worker(slot, roles[letter], zones[slot]) for slot, letter in enumerate(shape))
    return Snapshot(
        now=now,
        workers=workers,
        loans=(),
        budget=Budget(2, 4, 0, 12, 16, free),
        measurements=Measurements(gateway_age_seconds=1.0, live_trajectories=live),
        profile=seen,
        batch=None,
        target=Target(1, 1, tuple(Slot(w.slot, w.zone, w.role, 0) for w in workers), Reason.APPLIED, 0.0, 1e9),
    )


def decide(rule: Rule, facts: Snapshot, policy: Policy = POLICY) -> Decision:
    return rule.decide(clean(facts), policy)


def elastic_and_shape(rule: Rule, facts: Snapshot) -> tuple[int, str]:
    made = decide(rule, facts)
    assert sum(made.sizes.values()) == made.shape.workers
    return made.sizes[Zone.ELASTIC], str(made.shape).split(":")[1]


def with_load(facts: Snapshot, in_flight: dict[int, int], **metrics: float) -> Snapshot:
    workers = tuple(replace(w, in_flight=in_flight.get(w.slot, 0)) for w in facts.workers)
    engines = {w.uid: WorkerMetrics(**metrics) for w in workers if w.role is not Role.PREFILL} if metrics else {}
    return replace(facts, workers=workers, measurements=replace(facts.measurements, engines=engines))


def batch(step: int, finished: int, complete: int, *, elapsed: float = 100.0, alive: int = 0) -> Batch:
    unfinished = tuple(Trajectory(f"g{i % 4}", 9, 1000) for i in range(alive))
    return Batch(step, 4, 16, 4, complete, finished + alive, finished, elapsed, unfinished)


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("roll", {}, (0, "2")),
        ("roll-large", {"gpus": 10.0}, (3, "5")),
        ("roll-large", {"gpus": 99.0}, (4, "6")),  # no more than there are
        ("rlboost+", {}, (4, "6")),
        ("verl-lend", {}, (4, "6")),
        ("fixed:2P3D", {}, (3, "2P3D")),
        ("fixed:4P12D", {}, (4, "2P4D")),  # 6 · 4/16 = 1.5, rounded up
        ("ratio:1P2D", {}, (4, "2P4D")),
        ("colocated:3", {}, (1, "3")),
        ("schedule", {"share_0": 0.0, "start_0": 0.0, "share_1": 0.5, "start_1": 50.0}, (4, "3P3D")),
    ],
)
def test_fleets_without_a_model(name: str, parameters: dict[str, float], expected: tuple[int, str]) -> None:
    facts = snapshot("CCCC", free=4)  # two elastic workers there, room for two more
    assert elastic_and_shape(make_rule(name, parameters), facts) == expected


def test_only_rules_that_borrow_take_a_loan() -> None:
    answers = {
        name: make_rule(name, {}).answer_loan(snapshot("CC"), POLICY, LOAN, 2, 2)[0]
        for name in ("roll", "rlboost+", "dynamo-like", "prorsa-like", "fixed:1P1D", "verl-lend", "pearl-paper")
    }
    assert [name for name, taken in answers.items() if taken] == ["verl-lend", "pearl-paper"]  # nothing known: a probe
    assert make_rule("ratio:1P1D", {"borrow": 1.0}).answer_loan(snapshot("CC"), POLICY, LOAN, 2, 2)[0]


def test_verls_gate_credits_added_workers_linearly() -> None:
    rule = make_rule("verl-lend", {})
    memory = Memory(wake_cost_seconds=20.0)  # with giving back 30 s
    facts = replace(snapshot("CCCCCC", now=0.0), memory=memory, batch=batch(0, 0, 0))
    decide(rule, facts)
    decide(rule, replace(facts, now=100.0, batch=batch(0, 16, 1)))
    # 100 s per group, 3 groups to go, 6 → 8 workers: 3 · 100 · (1 − 6/8) = 75 s
    assert rule.answer_loan(replace(facts, now=100.0, batch=batch(0, 16, 1)), POLICY, LOAN, 6, 2)[0]
    # one group to go: 3 groups in 300 s, 1 · 100 · 1/4 = 25 s
    assert not rule.answer_loan(replace(facts, now=300.0, batch=batch(0, 48, 3)), POLICY, LOAN, 6, 2)[0]


def test_dynamo_sizes_both_stages_by_load_and_targets() -> None:
    # A step of one sequence takes 11 ms; 1.5 times that allows 6 sequences (10 + 6 = 16 ≤ 16.5 ms).
    rule = make_rule("dynamo-like", {"inter_token_factor": 1.5, "utilisation": 0.5})
    facts = snapshot("PDDDDD", seen=profile(500, 100))
    # 20 sequences decode: 4 workers. 5 workers make 36 tokens/s each: 1.8 turns/s of 0.5 s prefill at 50 %: 2.
    loaded = with_load(facts, {1: 4, 2: 4, 3: 4, 4: 4, 5: 4}, generation_tokens_per_second=36.0)
    made = decide(rule, loaded)
    assert str(made.shape) == "disaggregated:1P4D"  # the surplus decode worker goes first …
    after = snapshot("PDDDD", free=2, now=160.0, seen=profile(500, 100))
    assert elastic_and_shape(rule, after) == (4, "2P4D")  # … and comes back as a prefill worker


def test_dynamo_gives_back_what_no_target_needs_only_after_its_patience() -> None:
    rule = make_rule("dynamo-like", {"down_patience": 2.0, "inter_token_factor": 1.5, "utilisation": 0.5})
    busy = with_load(snapshot("PPDDDD", seen=profile(500, 100)), dict.fromkeys((2, 3, 4, 5), 6))
    assert elastic_and_shape(rule, busy) == (3, "1P4D")  # nothing measured to prefill: one; 24 sequences: 4
    quiet = replace(with_load(snapshot("PDDDD", free=2, seen=profile(500, 100)), {1: 3}), now=161.0)
    assert elastic_and_shape(rule, quiet) == (3, "1P4D")
    assert elastic_and_shape(rule, replace(quiet, now=222.0)) == (0, "1P1D")


def test_prorsa_splits_by_what_the_next_seconds_ask() -> None:
    rule = ProrsaRule(horizon_seconds=1000.0, patience_seconds=10.0)
    # All in their environment for ever longer than 1 s: 60 prompts of 1 s and 60 answers of 100 tokens are to come.
    alive = tuple(Trajectory(f"g{i % 4}", 1, 1000, idle_seconds=0.0) for i in range(60))
    facts = replace(
        snapshot("CCCCCC", seen=profile(1000, 100)), batch=replace(batch(0, 0, 0), started=60, unfinished=alive)
    )
    # 30 sequences on average. P: 60/P s; D workers with 30/D each: 6000/30 · (10 + 30/D) ms:
    # 4P: 15 and 2D: 200 · 25 ms = 5; 5P: 12 and 1D: 200 · 40 ms = 8.
    assert elastic_and_shape(rule, facts) == (4, "5P1D")


def test_prorsa_flips_only_when_the_other_split_stays_better() -> None:
    rule = ProrsaRule(horizon_seconds=1000.0, patience_seconds=10.0)
    alive = tuple(Trajectory(f"g{i % 4}", 1, 1000, idle_seconds=0.0) for i in range(60))
    facts = replace(
        snapshot("PPPDDD", seen=profile(1000, 100)), batch=replace(batch(0, 0, 0), started=60, unfinished=alive)
    )
    assert elastic_and_shape(rule, facts) == (4, "3P3D")
    assert elastic_and_shape(rule, replace(facts, now=105.0)) == (4, "3P3D")
    assert elastic_and_shape(rule, replace(facts, now=110.0)) == (4, "5P1D")


def test_the_chance_that_an_environment_answers_depends_on_how_long_it_took() -> None:
    waits = profile(10, 10, wait=10.0).environment  # always 10 s
    assert returns_within(5.0, 0.0, waits) == pytest.approx(0.0, abs=1e-6)
    assert returns_within(5.0, 8.0, waits) == pytest.approx(1.0, abs=1e-6)


def test_the_papers_policy_refits_after_a_step_and_then_keeps_its_shape() -> None:
    rule = make_rule("pearl-paper", {})
    # Long answers in a crowd, short prompts, nothing between decode and prefill: Equation 1 has no penalty, so
    # colocated stays although 6 workers could be split.
    facts = replace(snapshot("CCCCCC", seen=profile(10, 1000)), batch=batch(0, 0, 0, alive=64))
    loaded = with_load(facts, dict.fromkeys(range(6), 10), running=10.0, inter_token_seconds=0.020)
    assert elastic_and_shape(rule, loaded) == (4, "6")
    # A step later colocated tokens took 60 ms where the table says 20: T_over = 1000 · 0.04 − ten prefills of 10 ms.
    slow = with_load(
        replace(facts, batch=batch(0, 0, 0, alive=64)),
        dict.fromkeys(range(6), 10),
        running=10.0,
        inter_token_seconds=0.060,
    )
    assert elastic_and_shape(rule, slow) == (4, "6")  # within the step nothing is chosen
    made = decide(rule, replace(slow, batch=batch(1, 0, 0, alive=64)))
    assert str(made.shape) == "disaggregated:1P5D"  # hardly any prefill: one worker is enough


def test_the_papers_gate_is_equation_7() -> None:
    rule = make_rule("pearl-paper", {})
    facts = replace(snapshot("CCCCCC", seen=profile(10, 1000)), batch=batch(0, 0, 0, alive=64))
    loaded = with_load(facts, dict.fromkeys(range(6), 10), running=10.0, inter_token_seconds=0.020)
    decide(rule, loaded)
    # S = 10, r = 1000, B = 64: T(6) − T(8) = 10 · 1000 · 0.001 · (64/6 − 64/8) + 10 · 64 · 0.01 · (1/6 − 1/8) ≈ 26.9 s
    early = replace(loaded, batch=batch(0, 0, 0, alive=64))
    late = replace(loaded, batch=batch(0, 48, 0, alive=16))
    assert rule.answer_loan(early, POLICY, LOAN, 6, 2)[0]  # 64/64 · 26.9 > 9.44
    assert not rule.answer_loan(late, POLICY, LOAN, 6, 2)[0]  # 16/64 · 26.9 = 6.7


def test_shapes_that_the_spec_forbids_are_not_taken() -> None:
    colocated_only = replace(POLICY, modes=(POLICY.modes[0],))
    facts = snapshot("CCCC", seen=profile(100, 100))
    for name in ("ratio:1P1D", "dynamo-like", "prorsa-like"):
        assert decide(make_rule(name, {}), facts, colocated_only).shape == Shape(colocated=4)


def test_names_and_parameters_are_checked() -> None:
    for name in ("roll", "fixed:0P2D", "fixed:2P", "colocated:0", "nobody", "prorsa-like"):
        with pytest.raises(ValueError, match=name.split(":")[0]):
            make_rule(name, {"surprise": 1.0})
    with pytest.raises(ValueError, match="gpus"):
        make_rule("roll-large", {})
    for name in RULES:
        for parameter, values in tunables(name).items():
            assert all(make_rule(name, {parameter: value}) for value in values)

"""The experiments with made-up runs: what they compare, and which keys they answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pearl_simulator.experiments import ablate, endtoend, predictor, sensitivity
from pearl_simulator.experiments.cells import Cell, cells, mean_gpus, scenario
from pearl_simulator.experiments.common import Job, Row, flat, rows, simulate, simulate_all
from pearl_simulator.experiments.makespans import Answer, ranking_right
from pearl_simulator.experiments.policies import Policy, choice, tuned_file
from pearl_simulator.experiments.setting import REPORT_SEEDS, Setting
from pearl_simulator.reporting.parallel import Pool
from pearl_simulator.reporting.report import to_json

if TYPE_CHECKING:
    from pearl_simulator.experiments.makespans import Question

RATES = {"roll": 100.0, "rlboost+": 200.0, "pearl-paper": 210.0, "pearl": 240.0}
SCARCE = 180.0
BOUND_RATE = 250.0


def made_up(job: Job) -> Row:
    rate = SCARCE if job.label == "pearl" and " S2 " in f"{job.cell} " else RATES.get(job.label, 150.0)
    hours = 4.0 if job.label == "pearl" else 10.0
    return Row(
        cell=job.cell,
        label=job.label,
        seed=job.seed,
        tokens_per_second=0.0,
        trajectories_per_hour=rate * (1.0 + 0.01 * (job.seed % 3)),
        batches=3,
        gpu_hours=hours,
        borrowed_gpu_hours=1.0,
        trainer_waiting_share=0.5,
        prefilled_per_generated=2.0,
        recomputed_share=0.0,
        changes=4,
        disaggregated_share=0.25,
        mean_age=0.5,
        simulated_seconds=1800.0,
        wall_seconds=1.0,
        plan_seconds=0.1,
    )


def made_up_bound(job: Job) -> Row:
    return replace(made_up(job), label="strict bound", trajectories_per_hour=2 * BOUND_RATE)


def made_up_free(job: Job) -> Row:
    rate = BOUND_RATE * (1.0 + 0.01 * (job.seed % 3))
    return replace(made_up(job), label="free fleet", trajectories_per_hour=rate)


def made_up_answer(question: Question) -> Answer:
    slow = question.shape.colocated > 0
    return Answer(question.key, str(question.shape), 110.0 if slow else 95.0, 100.0, 0.01, (0.1, 0.5, 0.9), 10)


def test_the_summary_of_endtoend_has_its_documented_keys_and_the_worked_out_values() -> None:
    report = endtoend.run(Setting(quick=True, seeds=2), made_up, made_up_bound, made_up_free)
    assert report.summary == {
        "pearl_vs_roll_min": pytest.approx(1.8),  # 180 / 100 in S2
        "pearl_vs_roll_max": pytest.approx(2.4),
        "pearl_vs_roll_min_auto_window": pytest.approx(1.8),
        "pearl_vs_rlboost_min": pytest.approx(0.9),
        "pearl_vs_rlboost_scarce": pytest.approx(0.9),
        "pearl_vs_pearl_paper_mean": pytest.approx((4 * 240 + 2 * 180) / 6 / 210),
        "share_of_bound_min": pytest.approx(180 / 250),  # the free fleet is tighter everywhere
        "share_of_strict_bound_min": pytest.approx(180 / 500, rel=0.02),
        "share_of_free_fleet_min": pytest.approx(180 / 250),
        "share_of_clairvoyant_min": pytest.approx(180 / 210) if "static-best" in report_labels(report) else None,
        "paper_figures_reached": 4,  # 8B S1 and S3 by the figure, 30B S1 and S3 by the bound: 240 / 250 ≥ 0.95
        "gpu_hours_saved_bound_workloads": pytest.approx(0.6),
    }
    assert "8B S2, paper: rlboost+ is ahead by 11.1%." in report.findings
    assert json.loads(to_json(report, version="1", command="x"))["summary"]["paper_figures_reached"] == 4


def report_labels(report: object) -> set[str]:
    return {run["label"] for run in getattr(report, "runs", ())}


def test_every_policy_of_a_cell_meets_the_same_seeds_and_trajectories() -> None:
    jobs = endtoend.headline_jobs((1000, 1001), quick=False)
    mine = [job for job in jobs if job.cell == "8B S1 paper 64"]
    assert {job.seed for job in mine} == {1000, 1001}
    assert len({(job.scenario.workload, job.scenario.calibration, job.scenario.router) for job in mine}) == 1
    roll, large = (next(job for job in mine if job.label == label) for label in ("roll", "roll-large"))
    assert (roll.scenario.fleet.reserved_gpus, roll.scenario.fleet.elastic_max_gpus) == (4, 0)
    assert large.scenario.fleet.reserved_gpus == 14  # 13.6 rounded up to even


def test_the_fixed_fleets_have_the_segments_means_rounded_up_to_even() -> None:
    assert [mean_gpus(cell) for cell in cells("paper")[:3]] == [14, 10, 12]


def test_reported_seeds_are_not_those_of_the_tuning() -> None:
    assert max(tuned_file()["seeds"], default=0) < REPORT_SEEDS
    assert Setting().seed_list(10, 2) == tuple(range(1000, 1010))


def test_hindsight_that_never_looked_gives_no_policy() -> None:
    assert choice(Policy("static-best", "", ""), Cell("8B", "S1", "clean", None)) is None


def test_ablations_are_over_pearl_as_a_whole() -> None:
    report = ablate.run(Setting(quick=True), made_up)
    # every variant is made up as 150 against 240, in S2 against 180
    assert report.summary["no_disaggregation_mean"] == pytest.approx((2 * 150 / 240 + 150 / 180) / 3)
    assert set(report.summary) == {
        "no_disaggregation_mean",
        "no_borrowing_mean",
        "borrowing_without_gate_mean",
        "no_elastic_gpus_mean",
        "no_re_planning_inside_a_batch_mean",
        "no_local_append_mean",
        "no_cache_affinity_mean",
        "no_stragglers_first_mean",
        "automatic_window_mean",
    }


def test_each_point_of_the_sensitivity_changes_one_thing() -> None:
    report = sensitivity.run(Setting(quick=True), made_up)
    assert report.summary == {
        "pearl_vs_rlboost_min_paper": pytest.approx(1.2),
        "pearl_vs_rlboost_min_clean": pytest.approx(1.2),
    }
    names = [point.cell for point in sensitivity.points()]
    assert len(set(names)) == len(names)


def test_errors_and_ranking_of_predictions() -> None:
    report = predictor.run(Setting(quick=True, workloads=3), made_up, made_up_answer)
    # workers 2, 3 and 4: colocated 10 % off, one or two split shapes 5 % off
    assert report.summary["mean_error_median"] == pytest.approx(0.05)
    assert report.summary["mean_error_p95"] == pytest.approx(0.10)
    assert report.summary["ranking_right"] is None  # all simulated means are equal
    assert report.summary["regret_p95"] == pytest.approx(200 / 240 - 1)
    assert set(report.summary) == {
        "mean_error_median",
        "mean_error_p95",
        "ranking_right",
        "regret_mean_upper95",
        "regret_p95",
    }


def test_only_pairs_that_differ_count_for_the_ranking() -> None:
    def answer(shape: str, predicted: float, mean: float) -> Answer:
        return Answer("w", shape, predicted, mean, 0.0, (0.0, 0.0, 0.0), 1)

    answers = [answer("a", 90.0, 100.0), answer("b", 95.0, 101.0), answer("c", 92.0, 110.0)]
    # a-b differ by 1 %; a-c are in order; b-c are not: 95 > 92 but 101 < 110
    assert ranking_right(answers) == (1, 2)


def test_rows_are_paired_by_seed_in_whatever_order_they_come() -> None:
    one = made_up_row("pearl", 1, 20.0), made_up_row("pearl", 0, 10.0), made_up_row("roll", 0, 5.0)
    found = rows([*one, made_up_row("roll", 1, 10.0)])
    assert found.values("c", "pearl") == [10.0, 20.0]
    ratio = found.ratio("c", "pearl", "roll")
    assert (ratio.value, ratio.low) == (pytest.approx(2.0), pytest.approx(2.0))


def made_up_row(label: str, seed: int, rate: float) -> Row:

    job = Job("c", label, "roll", (), scenario(Cell("8B", "S1", "clean"), quick=True), seed)
    return replace(made_up(job), trajectories_per_hour=rate)


def test_runs_that_differ_in_their_names_only_are_made_once_and_reported_under_both() -> None:
    cell = Cell("8B", "S1", "paper")
    job = Job(cell.key, "one", "roll", (), scenario(cell, quick=True), 3)
    renamed = replace(job, cell="other", label="two", scenario=replace(job.scenario, name="other"))
    ran: list[Job] = []

    def counted(one: Job) -> Row:
        ran.append(one)
        return made_up(one)

    found = simulate_all([job, renamed, replace(job, seed=4)], Pool(), counted)
    assert [(one.cell, one.label, one.seed) for one in found] == [
        (cell.key, "one", 3),
        ("other", "two", 3),
        (cell.key, "one", 4),
    ]
    assert [one.seed for one in ran] == [3, 4]


def test_a_run_is_the_same_in_any_number_of_processes() -> None:
    base = replace(scenario(Cell("8B", "S1", "clean"), quick=True), horizon_seconds=240.0, warmup_seconds=60.0)
    jobs = [Job("c", rule, rule, (), base, 1000) for rule in ("rlboost+", "pearl")]
    alone, spread = Pool(1).map(simulate, jobs, "runs"), Pool(2).map(simulate, jobs, "runs")
    assert flat(alone) == flat(spread)
    assert all(one.trajectories_per_hour > 0 and one.gpu_hours > 0 for one in alone)

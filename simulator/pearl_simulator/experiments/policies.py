"""The compared policies, with the tuned parameters of the baselines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from pearl_simulator.experiments.cells import FULL, fixed, mean_gpus, scenario
from pearl_simulator.experiments.common import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pearl_simulator.experiments.cells import Cell
    from pearl_simulator.types import Scenario

TUNED = "tuned.json"
Parameters = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """One line of the comparison."""

    label: str
    rule: str
    """Of `pearl_simulator.rules.make_rule`; empty = found per cell with hindsight (`tune`)."""
    about: str
    fleet: str = "elastic"
    """`elastic`, `reserved` (4 fixed GPUs) or `mean` (the segment's mean, fixed)."""


POLICIES = (
    Policy("roll", "roll", "4 fixed GPUs, colocated", "reserved"),
    Policy("roll-large", "roll", "the segment's mean as fixed GPUs, colocated", "mean"),
    Policy("prorsa-like", "prorsa-like", "the same GPUs, roles switched by forecast", "mean"),
    Policy("rlboost+", "rlboost+", "elastic, colocated"),
    Policy("verl-lend", "verl-lend", "elastic and borrowed with verl's gate, colocated"),
    Policy("dynamo-like", "dynamo-like", "elastic, stages scaled by load and latency targets"),
    Policy("pearl-paper", "pearl-paper", "elastic and borrowed, Equations 1-7 as published"),
    Policy("static-best", "", "elastic, the best fixed proportion in hindsight, with or without loans"),
    Policy("schedule", "", "the best schedule that a search with hindsight found"),
    Policy("pearl", "pearl", "this project's planner"),
)


def named(labels: Iterable[str]) -> tuple[Policy, ...]:
    """Policies by label, in the order of `POLICIES`."""
    wanted = set(labels)
    return tuple(policy for policy in POLICIES if policy.label in wanted)


def tuned(rule: str, calibration: str) -> Parameters:
    """Parameters as tuned on the training seeds; the file says with which command."""
    return tuple(sorted(tuned_file()["rules"].get(rule, {}).get(calibration, {}).items()))


def choice(policy: Policy, cell: Cell) -> tuple[str, Parameters] | None:
    """Rule and parameters of a policy in a cell; None where hindsight never looked."""
    if policy.rule:
        return policy.rule, tuned(policy.rule, cell.calibration)
    found = tuned_file()["hindsight"].get(cell.key, {}).get(policy.label)
    return None if found is None else (found["rule"], tuple((name, value) for name, value in found["parameters"]))


def tuned_file() -> dict[str, Any]:
    """The whole file."""
    text = (resources.files("pearl_simulator.experiments") / TUNED).read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def fleet_of(policy: Policy, cell: Cell, base: Scenario) -> Scenario:
    """The scenario with the GPUs that the policy has."""
    if policy.fleet == "reserved":
        return fixed(base, base.fleet.reserved_gpus)
    return fixed(base, mean_gpus(cell)) if policy.fleet == "mean" else base


def jobs(
    cell: Cell, policies: Sequence[Policy], seeds: Sequence[int], *, quick: bool, length: tuple[float, float] = FULL
) -> list[Job]:
    """Every policy with every seed of a cell."""
    base = scenario(cell, quick=quick, length=length)
    chosen = [(policy, choice(policy, cell)) for policy in policies]
    return [
        Job(cell.key, policy.label, rule[0], rule[1], fleet_of(policy, cell, base), seed)
        for policy, rule in chosen
        if rule is not None
        for seed in seeds
    ]

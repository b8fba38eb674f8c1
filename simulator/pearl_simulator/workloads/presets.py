"""The named workloads, and random ones for the predictor's experiment.

Their parameters come from published descriptions of agentic RL (docs/workloads.md names them); they are choices, not
measurements of one system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pearl_simulator.workloads.distributions import (
    GeometricTurns,
    LogNormal,
    LogNormalTurns,
    Mixture,
    UniformTurns,
    always,
    simple,
)
from pearl_simulator.workloads.drawn import DrawnWorkload

if TYPE_CHECKING:
    from pearl_simulator.workloads.distributions import TurnCount


def presets() -> dict[str, DrawnWorkload]:
    """The named workloads, by name."""
    found = (*_coding(), *_other_domains(), *_classes())
    return {workload.name: workload for workload in found}


def _tool(usual: float, rare_share: float) -> Mixture:
    """A tool that answers quickly but for some calls of about 20 s."""
    return Mixture(LogNormal(usual, 0.8), LogNormal(20.0, 0.8), rare_share)


def _coding() -> tuple[DrawnWorkload, ...]:
    """Repairing software: without thinking and well cached; with stripped thinking; with a cache that serves badly."""
    return (
        DrawnWorkload(
            name="swe-cached",
            turns=LogNormalTurns(26, 0.45, 0.45, cap=60),
            first_prompt=always(4096),
            appended=LogNormal(350, 1.0),
            generated=LogNormal(150, 0.9),
            environment=_tool(0.4, 0.12),
            missed_share=0.03,
        ),
        DrawnWorkload(
            name="swe-pearl-1",
            turns=LogNormalTurns(10, 0.5, 0.9, cap=150),
            first_prompt=always(5120),
            appended=LogNormal(100, 1.0),
            generated=LogNormal(900, 1.0),
            environment=_tool(1.0, 0.10),
            retained_share=0.2,
            missed_share=0.66,
        ),
        DrawnWorkload(
            name="swe-pearl-2",
            turns=LogNormalTurns(20, 0.3, 0.7, cap=100),
            first_prompt=always(5120),
            appended=LogNormal(100, 1.0),
            generated=LogNormal(400, 1.0),
            environment=_tool(2.0, 0.02),
            retained_share=0.2,
            missed_share=1.0,
        ),
    )


def _other_domains() -> tuple[DrawnWorkload, ...]:
    return (
        DrawnWorkload(
            name="search",
            turns=GeometricTurns(6.0, cap=32),
            first_prompt=always(1024),
            appended=LogNormal(1500, 0.8),
            generated=LogNormal(150, 0.7),
            environment=simple(LogNormal(1.2, 0.8)),
            reset=simple(LogNormal(0.5, 0.8)),
            reward_seconds=1.0,
        ),
        DrawnWorkload(
            name="game",
            turns=UniformTurns(10, 20),
            first_prompt=always(600),
            appended=LogNormal(110, 0.3, cap=200),
            generated=LogNormal(90, 0.2, cap=128),
            environment=simple(LogNormal(0.01, 0.4)),
            groups=128,
            group_size=8,
            reset=simple(LogNormal(0.05, 0.5)),
            reward_seconds=0.01,
            context_tokens=8192,
        ),
        DrawnWorkload(
            name="terminal",
            turns=UniformTurns(16, 16),
            first_prompt=always(2048),
            appended=LogNormal(500, 1.0),
            generated=LogNormal(800, 0.7, cap=4096),
            environment=Mixture(LogNormal(0.3, 0.8), LogNormal(15.0, 0.8), 0.2),
            reset=Mixture(LogNormal(8.0, 0.8), always(150.0), 0.01),
        ),
        DrawnWorkload(
            name="math-tool",
            turns=UniformTurns(1, 4),
            first_prompt=always(300),
            appended=LogNormal(100, 0.5),
            generated=LogNormal(2000, 1.0),
            environment=simple(LogNormal(0.3, 0.8)),
            reset=simple(always(0.1)),
            reward_seconds=1.0,
        ),
    )


def _classes() -> tuple[DrawnWorkload, ...]:
    """One of each kind that bounds a rollout: for checks that the planner sees what is the matter."""
    even = LogNormalTurns(12, 0.3, 0.4, cap=40)
    return (
        DrawnWorkload(
            name="decode-heavy",
            turns=even,
            first_prompt=always(1024),
            appended=LogNormal(100, 0.7),
            generated=LogNormal(1500, 0.7),
            environment=simple(LogNormal(0.3, 0.5)),
            reset=simple(always(1.0)),
            reward_seconds=1.0,
        ),
        DrawnWorkload(
            name="prefill-heavy",
            turns=even,
            first_prompt=always(8192),
            appended=LogNormal(1500, 0.7),
            generated=LogNormal(60, 0.7),
            environment=simple(LogNormal(0.3, 0.5)),
            missed_share=0.8,
            reset=simple(always(1.0)),
            reward_seconds=1.0,
        ),
        DrawnWorkload(
            name="environment-bound",
            turns=even,
            first_prompt=always(2048),
            appended=LogNormal(300, 0.8),
            generated=LogNormal(100, 0.7),
            environment=Mixture(LogNormal(10.0, 0.8), LogNormal(60.0, 0.8), 0.1),
        ),
        DrawnWorkload(
            name="llm-bound",
            turns=even,
            first_prompt=always(6144),
            appended=LogNormal(800, 0.8),
            generated=LogNormal(700, 0.8),
            environment=simple(always(0.05)),
            missed_share=0.5,
            reset=simple(always(0.1)),
            reward_seconds=0.1,
        ),
    )


def random_workload(seed: int) -> DrawnWorkload:
    """A plausible workload; every parameter is drawn on its own from the ranges of docs/workloads.md."""
    draw = np.random.default_rng((seed, 0x70EA71))
    context = int(draw.choice([8192, 16384, 32768]))
    rare = float(draw.uniform(0.01, 0.15)) if _chance(draw, 0.6) else 0.0
    usual = LogNormal(_between(draw, 0.05, 10.0), float(draw.uniform(0.3, 1.0)))
    return DrawnWorkload(
        name=f"random-{seed}",
        turns=_random_turns(draw),
        first_prompt=always(round(_between(draw, 300, context / 3))),
        appended=LogNormal(_between(draw, 50, 3000), float(draw.uniform(0.3, 1.0))),
        generated=LogNormal(_between(draw, 50, 2000), float(draw.uniform(0.3, 1.0))),
        environment=Mixture(usual, LogNormal(_between(draw, 15.0, 60.0), 0.8), rare),
        groups=int(draw.choice([2, 4, 8])),
        group_size=int(draw.choice([8, 16])),
        retained_share=1.0 if _chance(draw, 0.6) else float(draw.uniform(0.1, 1.0)),
        missed_share=_random_misses(draw),
        reset=simple(LogNormal(_between(draw, 0.1, 10.0), 0.8)),
        reward_seconds=_between(draw, 0.1, 30.0),
        context_tokens=context,
    )


def _random_turns(draw: np.random.Generator) -> TurnCount:
    if _chance(draw, 0.6):
        sigmas = draw.uniform(0.1, 0.7, size=2)
        return LogNormalTurns(_between(draw, 3, 30), float(sigmas[0]), float(sigmas[1]), cap=100)
    if _chance(draw, 0.5):
        return GeometricTurns(_between(draw, 3, 12), cap=50)
    low = int(draw.integers(2, 12))
    return UniformTurns(low, low + int(draw.integers(0, 12)))


def _random_misses(draw: np.random.Generator) -> float:
    """Usually a cache that serves well."""
    if _chance(draw, 0.6):
        return float(draw.uniform(0.0, 0.05))
    return float(draw.uniform(0.05, 0.4) if _chance(draw, 0.6) else draw.uniform(0.4, 1.0))


def _chance(draw: np.random.Generator, share: float) -> bool:
    return bool(draw.random() < share)


def _between(draw: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(np.exp(draw.uniform(np.log(low), np.log(high))))

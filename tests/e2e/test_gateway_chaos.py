"""Nothing is lost behind the gateway, and the checks that say so would see it: see docs/gateway-chaos.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gateway_chaos import report
from gateway_chaos.events import WEIGHTS
from gateway_chaos.play import Pace
from gateway_chaos.reference import EmulatedReference
from gateway_chaos.run import ACTS, Act, Plan, play_act
from gateway_chaos.scene import Stage
from gateway_chaos.traffic import Shape

if TYPE_CHECKING:
    from pathlib import Path

    from gateway_chaos.run import Result

RECOMPUTE, _, KEEP_KV, _ = ACTS


async def played(  # noqa: PLR0913 - what a run is made of
    act: Act, folder: Path, *, events: int, seed: str, sabotage: str | None = None, processes: int = 1
) -> Result:
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if not sabotage or not kind.startswith("gateway")}
    plan = Plan(seed=seed, events=events, rate=24.0, together=6, shape=Shape(16), pace=Pace(), kinds=kinds)
    stage = Stage(folder, 10, act.on_update, 1.0, seed, sabotage=sabotage, processes=processes)
    return await play_act(act, stage, plan, EmulatedReference(), print)


@pytest.mark.parametrize(
    ("act", "processes"),
    [
        pytest.param(RECOMPUTE, 1, id="Recompute"),
        pytest.param(KEEP_KV, 1, id="KeepKV", marks=pytest.mark.slow),
        pytest.param(RECOMPUTE, 3, id="Recompute in 3 processes", marks=pytest.mark.slow),
    ],
)
async def test_nothing_is_lost_doubled_or_wrong(act: Act, processes: int, tmp_path: Path) -> None:
    result = await played(act, tmp_path, events=80, seed="test", processes=processes)
    assert report.problems([result]) == []
    assert result.found.checked_tokens > 1000
    assert result.found.seams > 0


@pytest.mark.parametrize(
    ("sabotage", "count"),
    [
        ("drop", "lost_tokens"),
        ("repeat", "duplicated_tokens"),
        ("label", "mismatched"),
        pytest.param("token", "mismatched", marks=pytest.mark.slow),
    ],
)
async def test_what_is_broken_on_purpose_is_found(sabotage: str, count: str, tmp_path: Path) -> None:
    result = await played(RECOMPUTE, tmp_path, events=8, seed="broken", sabotage=sabotage)
    assert report.summary([result])[count] > 0
    assert not result.good

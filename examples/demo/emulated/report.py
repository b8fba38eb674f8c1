"""The part of the report that act 1 fills."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from examples.common import page
from examples.common.plots import svg
from examples.demo.emulated import plots
from examples.demo.emulated.facts import use
from examples.demo.emulated.view import REAL

if TYPE_CHECKING:
    from examples.demo.emulated.facts import Record
    from pearl_simulator.types import Scenario


def parts(record: Record, scenario: Scenario) -> list[str]:
    """HTML, piece by piece."""
    return [
        "<h2>Act 1: borrowed GPUs and a spot trace, emulated</h2>",
        f"<p class=small>{escape(REAL)} {escape(_setting(scenario))}</p>",
        page.promises(record.checks),
        svg(plots.fleet(record)),
        f"<p>{escape(hours(record, scenario))}</p>",
        svg(plots.batches(record)),
        f"<p>{escape(verdict(record, scenario))}</p>",
        svg(plots.reclaims(record)),
        "<details><summary>Decisions of the operator and why</summary>",
        page.decisions(record.decisions),
        "</details>",
    ]


def _setting(scenario: Scenario) -> str:
    fleet, costs = scenario.fleet, scenario.costs
    return (
        f"{fleet.reserved_gpus} reserved H100 GPUs, up to {fleet.elastic_max_gpus} of a Bamboo spot trace, "
        f"{fleet.borrowed_max_gpus} of a trainer; engines and transitions take what was published for Qwen3-8B "
        f"(start {costs.start_seconds:.0f} s, wake {costs.wake_seconds:.1f} s, sleep {costs.sleep_seconds:.1f} s)."
    )


def hours(record: Record, scenario: Scenario) -> str:
    """What became of the GPUs."""
    found = use(record, scenario.fleet.borrowed_max_gpus)
    return (
        f"Of {found.spot:.1f} spot GPU-hours, {found.given_back:.1f} were held by nobody, because more workers would "
        f"not have helped or the GPUs were too few for a worker. Of {found.lent + found.idle:.1f} GPU-hours in which "
        f"the trainer waited, its GPUs were lent for {found.lent:.1f} and idle for {found.idle:.1f}; it trained for "
        f"{found.training:.1f}."
    )


def verdict(record: Record, scenario: Scenario) -> str:
    """Batches against those of the fixed fleet, as far as it got in the same time."""
    end = scenario.horizon_seconds
    mine, fixed = (sum(at <= end for at in found) for found in (record.batches, record.fixed_batches))
    return (
        f"In {end / 60:.0f} minutes the trainer consumed {mine} batches; the {scenario.fleet.reserved_gpus} reserved "
        f"GPUs alone, colocated, give it {fixed} in the same simulator. One trace, one seed: an illustration."
    )

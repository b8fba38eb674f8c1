"""From the user's spec to the planner's policy and budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pearl_api.rollout import ModePolicy
from pearl_operator.coverage import SCRAPES
from pearl_operator.stage_sizes import worker_sizes
from pearl_planner.engine.tables import TableError, find_table, load_table, split_table
from pearl_planner.types import Budget, IdleAction, Mode, Policy, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.rollout import PearlRolloutSpec
    from pearl_operator.facts import NodeFact, RolloutFact
    from pearl_planner.engine.model import EngineTable

_MODES: Final = {
    ModePolicy.AUTO: (Mode.COLOCATED, Mode.DISAGGREGATED),
    ModePolicy.COLOCATED: (Mode.COLOCATED,),
    ModePolicy.DISAGGREGATED: (Mode.DISAGGREGATED,),
}
_FALLBACK_TABLE: Final = "Qwen/Qwen3-8B"
_GPU_PRODUCT: Final = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine tables to plan with."""

    table: EngineTable
    """Of colocated workers."""
    problem: str | None = None
    """Why it is only a stand-in, and what to set."""
    split_table: EngineTable | None = None
    """Of decode workers, with that of prefill workers, where they are of other sizes; None = `table`."""


def engine_choice(spec: PearlRolloutSpec, products: Iterable[str] = ()) -> EngineChoice:
    """The named table, else the model's on these GPUs, else the model's on any, else a stand-in with the reason.

    Where stages have sizes of their own, their tables are those of the same model and hardware with that size.

    Args:
        spec: Of the rollout.
        products: GPU product names as node labels have them, for example `NVIDIA-H100-80GB-HBM3`.
    """
    whole = _choice(spec, products)
    sizes = worker_sizes(spec.engine)
    prefill, decode = sizes.gpus_of(Role.PREFILL), sizes.gpus_of(Role.DECODE)
    sized = split_table(whole.table, sizes.gpus_per_worker, prefill=prefill, decode=decode)
    return replace(whole, split_table=sized)


def _choice(spec: PearlRolloutSpec, products: Iterable[str]) -> EngineChoice:
    try:
        if spec.engine.table is not None:
            return EngineChoice(load_table(spec.engine.table))
    except TableError as error:
        return EngineChoice(_fallback(), f"spec.engine.table: {error}")
    machines = [f"{word}-TP{spec.engine.tensor_parallel}" for product in products for word in product.split("-")]
    for machine in (*machines, None):
        found = find_table(spec.model.name, machine)
        if found is not None:
            return EngineChoice(found)
    return EngineChoice(
        _fallback(),
        f"no engine table for model {spec.model.name!r}, so predictions start from {_FALLBACK_TABLE}'s: "
        "set spec.engine.table",
    )


def gpu_products(nodes: Iterable[NodeFact]) -> tuple[str, ...]:
    """The GPU products of the cluster, sorted; empty where nothing labels its nodes."""
    labels = (dict(node.labels).get(_GPU_PRODUCT) for node in nodes)
    return tuple(sorted({product for product in labels if product}))


def _fallback() -> EngineTable:
    found = find_table(_FALLBACK_TABLE)
    if found is None:
        raise TableError(f"the shipped tables lack {_FALLBACK_TABLE}: the installation is broken")
    return found


def policy_of(
    rollout: RolloutFact,
    spec: PearlRolloutSpec,
    engine: EngineChoice,
    *,
    hold: bool,
    scrape_seconds: float | None = None,
) -> Policy:
    """The planner's policy.

    Args:
        rollout: Its generation and the user's annotation.
        spec: The spec.
        engine: The engine table.
        hold: Freezes optional changes beside the user's annotation.
        scrape_seconds: Time between two scrapes of the engines; None = not known.
    """
    policy = spec.policy
    return Policy(
        generation=rollout.generation,
        table=engine.table,
        split_table=engine.split_table,
        modes=_MODES[spec.mode],
        ratio=(spec.ratio.prefill, spec.ratio.decode) if spec.ratio is not None else None,
        objective=policy.objective,
        window=policy.in_flight if isinstance(policy.in_flight, int) else None,
        window_automatic=policy.in_flight == "Auto",
        max_staleness=spec.weights.max_staleness,
        prior_groups=spec.workload.groups,
        prior_group_size=spec.workload.group_size,
        ratio_threshold=policy.hysteresis.ratio_percent / 100,
        mode_threshold=policy.hysteresis.mode_percent / 100,
        min_dwell_seconds=policy.hysteresis.min_dwell_seconds,
        coalesce_seconds=policy.coalesce_seconds,
        drain_seconds=policy.deadlines.drain_seconds,
        start_seconds=policy.deadlines.start_seconds,
        stale_after_seconds=spec.metrics.stale_after_seconds,
        engines_stale_after_seconds=max(spec.metrics.stale_after_seconds, SCRAPES * (scrape_seconds or 0.0)),
        advisory=policy.advisory,
        hold=rollout.hold or hold,
        suspend=spec.suspend,
        idle_action=IdleAction(spec.idle.action),
        idle_after_seconds=spec.idle.after_seconds,
    )


def budget_of(spec: PearlRolloutSpec, *, loans_enabled: bool) -> Budget:
    """GPUs by zone; free elastic GPUs are unknown, because only their own namespaces' pods are visible."""
    capacity, sizes = spec.capacity, worker_sizes(spec.engine)
    return Budget(
        gpus_per_worker=sizes.gpus_per_worker,
        reserved_gpus=capacity.reserved.gpus,
        elastic_min_gpus=capacity.elastic.min_gpus,
        elastic_max_gpus=capacity.elastic.max_gpus,
        borrowed_max_gpus=capacity.borrowed.max_gpus if loans_enabled else 0,
        prefill_gpus=sizes.prefill_gpus,
        decode_gpus=sizes.decode_gpus,
    )

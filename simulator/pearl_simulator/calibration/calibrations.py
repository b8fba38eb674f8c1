"""How fast the simulated engines are: `clean` as tabulated, `paper` as fitted to published points.

Under `clean` a prefill rides along in decode steps and costs what the engine model says. The published results need
more: decode waits for a prefill, and each prefill costs an extra that no engine model explains. `paper` has both and is
fitted by `python -m pearl_simulator.calibration.fit_paper`; docs/results/calibration.md says how well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from pearl_planner.engine.tables import TableError, load_table, shipped_tables
from pearl_simulator.errors import InputError
from pearl_simulator.types import Calibration, Costs, PrefillStyle
from pearl_simulator.workloads.distributions import LogNormal, LogNormalTurns, Mixture, always
from pearl_simulator.workloads.drawn import DrawnWorkload

GPUS = ("H100", "H200", "A100")


def clean(model: str, gpu: str = "H100", tp: int = 2) -> Calibration:
    """Engines as the shipped table of `model` on `tp` GPUs of kind `gpu` says.

    Raises:
        InputError: there is no such table; the message lists those there are.
    """
    try:
        table = load_table(f"{model}/{gpu.upper()}-TP{tp}")
    except TableError:
        raise InputError(
            f"no engine table for model {model!r}, gpu {gpu!r}, tensorParallel {tp}; choose one of: {_choices()}"
        ) from None
    return Calibration(name="clean", table=table)


def update_seconds(training_gpus: int) -> float:
    """One training update of Qwen3-8B: 163.8 s on 8 GPUs (PEARL paper, section 1), in inverse proportion on others."""
    return 163.8 * 8 / training_gpus


@dataclass(frozen=True, slots=True)
class PaperFit:
    """What was fitted for one model; the rest of the workload is fixed in `workload_of`."""

    interference_seconds: float
    """Per prefill on a worker that also decodes."""
    handoff_seconds: float
    """Per hand-off of KV, beside its bytes."""
    turn_median: float
    turn_group_sigma: float
    turn_member_sigma: float
    turn_cap: int
    first_prompt_tokens: float
    generated_median: float
    appended_median: float
    tool_median_seconds: float
    retained_share: float
    missed_share: float


@cache
def _fits() -> dict[str, PaperFit]:
    text = (resources.files("pearl_simulator") / "data/paper_fit.json").read_text()
    return {model: PaperFit(**values) for model, values in json.loads(text).items()}


def paper_fit(model: str) -> PaperFit:
    """The constants in `data/paper_fit.json`.

    Raises:
        InputError: the model was not in the paper.
    """
    for name, found in _fits().items():
        if name.lower().endswith(model.lower()):
            return found
    raise InputError(f"no paper calibration for model {model!r}; choose one of: {', '.join(_fits())}")


def paper(model: str) -> Calibration:
    """Engines that behave as in the PEARL paper, on two H100 GPUs (which stand for its H800).

    Raises:
        InputError: the model was not in the paper.
    """
    return calibration_of(model, paper_fit(model))


def paper_workload(model: str) -> DrawnWorkload:
    """The workload that was fitted together with `paper`: 4 groups of 16.

    Raises:
        InputError: the model was not in the paper.
    """
    return workload_of(paper_fit(model))


def calibration_of(model: str, fit: PaperFit) -> Calibration:
    """The tabulated engine with the paper's way of prefilling: decode waits, and every prefill costs an extra."""
    return Calibration(
        name="paper",
        table=replace(clean(model).table, transfer_fixed_seconds=fit.handoff_seconds),
        style=PrefillStyle.EXCLUSIVE,
        interference_seconds=fit.interference_seconds,
    )


def workload_of(fit: PaperFit) -> DrawnWorkload:
    """Software repair with stripped thinking and a cache that serves badly; see docs/results/calibration.md."""
    return DrawnWorkload(
        name="swe-paper",
        turns=LogNormalTurns(fit.turn_median, fit.turn_group_sigma, fit.turn_member_sigma, fit.turn_cap),
        first_prompt=always(fit.first_prompt_tokens),
        appended=LogNormal(fit.appended_median, 1.0),
        generated=LogNormal(fit.generated_median, 1.0),
        environment=Mixture(LogNormal(fit.tool_median_seconds, 0.8), LogNormal(20.0, 0.8), 0.02),
        retained_share=fit.retained_share,
        missed_share=fit.missed_share,
    )


def _choices() -> str:
    """Every model, GPU and tensor parallelism with a table."""
    names = (name.rpartition("/") for name in shipped_tables() if name.rpartition("/")[2].split("-")[0] in GPUS)
    kinds: dict[str, list[str]] = {}
    for model, _, hardware in names:
        kinds.setdefault(model, []).append(hardware)
    return "; ".join(f"{model} on {', '.join(sorted(hardware))}" for model, hardware in sorted(kinds.items()))


def costs(model: str) -> Costs:
    """Seconds of transitions of Qwen3-8B or Qwen3-30B-A3B (PEARL paper, Table 3); of other models those of the 8B."""
    if "30B-A3B" in model:
        return Costs(start_seconds=67.06 + 17.89, wake_seconds=6.09, sleep_seconds=4.38, weights_seconds=7.0)
    return Costs(start_seconds=56.29 + 11.05, wake_seconds=6.26, sleep_seconds=3.18, weights_seconds=5.5)

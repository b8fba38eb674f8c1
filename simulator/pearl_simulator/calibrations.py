"""How fast the simulated engines are: `clean` as tabulated, `paper` as fitted to published points.

Under `clean` a prefill rides along in decode steps and costs what the engine model says. The published results need
more: decode waits for a prefill, and each prefill costs an extra that no engine model explains. `paper` has both and is
fitted by `python -m pearl_simulator.fit_paper`; docs/results/calibration.md says how well.
"""

from __future__ import annotations

from pearl_planner.tables import TableError, load_table, shipped_tables
from pearl_simulator.errors import InputError
from pearl_simulator.types import Calibration, Costs

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

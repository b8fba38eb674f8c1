from __future__ import annotations

import statistics

import pytest

from pearl_planner.engine.model import decode_seconds, prefill_seconds
from pearl_planner.engine.tables import load_table
from pearl_simulator.calibration.fit_tables import fit, grid, relative_error

NAMES = [
    f"Qwen/{model}/{gpu}-TP{tp}"
    for model in ("Qwen3-8B", "Qwen3-30B-A3B")
    for gpu in ("H100", "H200", "A100")
    for tp in (1, 2, 4)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_near_the_grid_of_step_times(name: str) -> None:
    table = load_table(name)
    for phase in ("decode", "prefill"):
        errors = [abs(relative_error(table, p)) for p in grid() if p.table == name and p.phase == phase]
        assert len(errors) >= 4
        assert statistics.median(errors) <= 0.10
        assert max(errors) <= 0.16
    assert table.kv_capacity_tokens is not None


def test_tables_give_step_times_read_off_the_grid() -> None:
    table = load_table("Qwen/Qwen3-8B/H100-TP4")
    assert decode_seconds(table, 64, 8192) == pytest.approx(9.85e-3, rel=0.05)
    assert prefill_seconds(table, 8192, 0) == pytest.approx(82.09e-3, rel=0.05)


def test_the_fit_gives_the_tables_that_ship() -> None:
    found = fit("Qwen/Qwen3-30B-A3B/H200-TP4", grid())
    table = load_table("Qwen/Qwen3-30B-A3B/H200-TP4")
    assert found["decode"]["fixed_seconds"] == pytest.approx(table.decode_fixed_seconds)
    assert found["decode"]["per_root_sequence_seconds"] == pytest.approx(table.decode_per_root_sequence_seconds)
    assert found["prefill"]["per_token_seconds"] == pytest.approx(table.prefill_per_token_seconds)

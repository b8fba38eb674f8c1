"""TRL trained for real: GRPO on a CPU whose completions come from published weights while the GPUs are lent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Frameworks

pytestmark = pytest.mark.integration

STEPS = 10


def test_grpo_learns_from_completions_of_lent_gpus(frameworks: Frameworks, tiny_model: Path, tmp_path: Path) -> None:
    weights, scratch = folders(tmp_path)
    found = frameworks.run("trl_train.py", str(tiny_model), str(weights), str(STEPS), str(scratch))
    assert found["events"] == [
        "register mine",
        *STEPS * ["lend lent", "reclaim mine", "update mine"],
        "deregister mine",
    ]
    assert found["versions"] == list(range(1, STEPS + 1))  # each batch by the weights of the step before
    begun = found["batches"][0]["step"]  # above the steps of any earlier run
    assert found["batches"] == [
        {"step": begun + at, "groups": 2, "groupSize": 8, "minVersion": 0} for at in range(STEPS)
    ]
    assert found["finished"] == 16 * STEPS
    first, last = found["rewards"][0], sum(found["rewards"][-3:]) / 3
    assert first < 0.3
    assert last > first + 0.3  # measured: 0.12 → 0.97
    later = found["asynchronous"]
    assert later["events"] == [
        "register mine",
        "lend lent",
        *("reclaim mine", "update mine", f"sync {STEPS + 1} mine", "lend lent"),
        *("reclaim mine", "update mine", f"sync {STEPS + 2} mine", "lend lent"),
        *("reclaim mine", "deregister mine"),
    ]
    assert (later["lacks"], later["equal"]) == ([], True)


@pytest.mark.slow
def test_no_process_updates_while_the_gpus_of_both_are_lent(
    frameworks: Frameworks, tiny_model: Path, tmp_path: Path
) -> None:
    weights, scratch = folders(tmp_path)
    found = frameworks.run_ranks(2, "trl_train.py", str(tiny_model), str(weights), "3", str(scratch))
    assert found["events"] == [
        "register mine",
        *3 * ["lend lent", "reclaim mine", "update mine", "update mine"],
        "deregister mine",
    ]
    assert found["versions"] == [1, 2, 3]
    begun = found["batches"][0]["step"]
    assert [(one["step"] - begun, one["groups"]) for one in found["batches"]] == [(0, 4), (1, 4), (2, 4)]
    assert found["finished"] == 3 * 2 * 16


def folders(root: Path) -> tuple[Path, Path]:
    (root / "weights").mkdir()
    (root / "scratch").mkdir()
    return root / "weights", root / "scratch"

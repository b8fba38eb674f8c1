"""Ranks started by torchrun, with torch's own barrier: none has the GPU while it is lent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pearl_double import PearlDouble

if TYPE_CHECKING:
    from conftest import Frameworks

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("kind", "registrations"), [("pod", 1), ("group", 3)])
def test_no_rank_trains_while_the_gpus_are_lent(
    frameworks: Frameworks, tmp_path: Path, kind: str, registrations: int
) -> None:
    (tmp_path / "token").write_text("projected")
    script = str(Path(__file__).with_name("torchrun_ranks.py"))
    with PearlDouble(tmp_path) as pearl:
        launch = [str(frameworks.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launch, script, pearl.url, str(tmp_path / "token"), kind]
        done = subprocess.run(command, env=frameworks.variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    both = ["reclaim mine", "onload mine", "onload mine", "update mine", "update mine", "offload mine", "offload mine"]
    events = [event for event in pearl.events if not event.startswith(("register", "deregister"))]
    # Ranks run side by side between two barriers, so what they tell there is compared without its order.
    assert sorted(events[:3]) == sorted(["offload mine", "offload mine", "lend lent"])
    for start in (3, 11):
        assert sorted(events[start : start + 8]) == sorted([*both, "lend lent"])
        assert (events[start], events[start + 7]) == ("reclaim mine", "lend lent")
    assert events[19:] == ["reclaim mine"]
    assert sum(event.startswith("register") for event in pearl.events) == registrations
    assert not pearl.lent

"""verl 0.9.1's own classes: when its trainers have the GPUs, and when they are lent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Frameworks

pytestmark = pytest.mark.integration


def test_its_trainers_lend_while_they_wait_for_samples(frameworks: Frameworks, tmp_path: Path) -> None:
    found = frameworks.run("verl_hooks.py", str(tmp_path))
    step = ["sample lent", "reclaim mine", "update mine", "sample mine", "update mine"]
    assert found["v1"] == [
        "register mine",
        "lend lent",
        *(*step, "sync 1 mine", "save 1 mine", "lend lent"),
        *(*step, "sync 2 mine", "save 2 mine", "lend lent"),
        *(*step, "sync 3 mine", "save 3 mine", "deregister mine"),
    ]
    # The second run counts its steps from 1 again; its versions go on above the published ones.
    assert found["fully_async"] == [
        "register mine",
        *("update mine", "save 4 mine", "lend lent", "reclaim mine"),
        *("update mine", "save 5 mine", "lend lent", "reclaim mine"),
        *("update mine", "save 6 mine", "lend lent", "reclaim mine"),
        "deregister mine",
    ]
    assert found["controller"] == {"waits": [8, 8], "counts": [3, 2]}
    assert found["group"]["members"] == 1
    assert json.loads((tmp_path / "manifest.json").read_text())["version"] == 6

"""A cluster of trainers for each test; `begin` starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loan_cluster import LoanCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LoanCluster]:
    made = LoanCluster(tmp_path)
    yield made
    await made.close()

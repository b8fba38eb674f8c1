"""Makes the bench importable for these tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from loans_bench import bench

__all__ = ["bench"]

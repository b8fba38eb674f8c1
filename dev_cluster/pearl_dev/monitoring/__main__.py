"""Writes the files that are made from the metrics, or checks that they are up to date."""

import sys
from pathlib import PurePosixPath

from pearl_dev import generated
from pearl_dev.monitoring import dashboard
from pearl_dev.monitoring.reference import page


def files() -> dict[PurePosixPath, str]:
    """Path in the repository → present text."""
    return {
        PurePosixPath("docs/reference/metrics.md"): page(),
        PurePosixPath("charts/pearl/files/dashboard.json"): dashboard.text(),
    }


if __name__ == "__main__":
    sys.exit(generated.run("pearl_dev.monitoring", __doc__, files))

"""Writes the files that are made from the metrics, or checks that they are up to date."""

import argparse
import sys
from pathlib import Path, PurePosixPath

from pearl_api.cli import check, write
from pearl_dev.monitoring import dashboard
from pearl_dev.monitoring.reference import page


def files() -> dict[PurePosixPath, str]:
    """Path in the repository → present text."""
    return {
        PurePosixPath("docs/reference/metrics.md"): page(),
        PurePosixPath("charts/pearl/files/dashboard.json"): dashboard.text(),
    }


def main() -> int:
    """Exit code 0 = done or up to date, 1 = `--check` found differences."""
    parser = argparse.ArgumentParser(prog="python -m pearl_dev.monitoring", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="fail where a file differs")
    options = parser.parse_args()
    if options.write:
        return write(options.root, files())
    return check(options.root, files(), "python -m pearl_dev.monitoring --write")


if __name__ == "__main__":
    sys.exit(main())

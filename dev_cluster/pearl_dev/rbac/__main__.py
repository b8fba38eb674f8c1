"""Writes the page that is made from the chart's Roles, or checks that it is up to date."""

import argparse
import sys
from pathlib import Path, PurePosixPath

from pearl_api.cli import check, write
from pearl_dev import binaries
from pearl_dev.chart import render
from pearl_dev.progress import Progress
from pearl_dev.rbac.reference import page
from pearl_dev.settings import from_environment


def main() -> int:
    """Exit code 0 = done or up to date, 1 = `--check` found differences."""
    parser = argparse.ArgumentParser(prog="python -m pearl_dev.rbac", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the page")
    action.add_argument("--check", action="store_true", help="fail where it differs")
    options = parser.parse_args()
    helm = binaries.ensure(from_environment(), Progress(quiet=True))["helm"]
    files = {PurePosixPath("docs/reference/rbac.md"): page(lambda **values: render(helm, values))}
    if options.write:
        return write(options.root, files)
    return check(options.root, files, "python -m pearl_dev.rbac --write")


if __name__ == "__main__":
    sys.exit(main())

"""Writes the page that is made from the chart's Roles, or checks that it is up to date."""

import sys
from pathlib import PurePosixPath

from pearl_dev import binaries, generated
from pearl_dev.chart import render
from pearl_dev.progress import Progress
from pearl_dev.rbac.reference import page
from pearl_dev.settings import from_environment


def files() -> dict[PurePosixPath, str]:
    """Path in the repository → present text."""
    helm = binaries.ensure(from_environment(), Progress(quiet=True))["helm"]
    return {PurePosixPath("docs/reference/rbac.md"): page(lambda **values: render(helm, values))}


if __name__ == "__main__":
    sys.exit(generated.run("pearl_dev.rbac", __doc__, files))

"""Writes the page of rights, or checks that it is up to date."""

import sys
from pathlib import PurePosixPath

from pearl_dev import generated
from pearl_dev.rbac.reference import page


def files() -> dict[PurePosixPath, str]:
    """Path in the repository → present text."""
    return {PurePosixPath("docs/reference/rbac.md"): page()}


if __name__ == "__main__":
    sys.exit(generated.run("pearl_dev.rbac", __doc__, files))

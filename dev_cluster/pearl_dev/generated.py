"""The command line of files that are made from code: write them, or check that they are up to date."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_api.cli import check, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import PurePosixPath


def run(module: str, about: str | None, files: Callable[[], dict[PurePosixPath, str]]) -> int:
    """Exit code 0 = done or up to date, 1 = `--check` found differences.

    Args:
        module: Whose command line it is, as `python -m` takes it.
        about: What it makes, for `--help`.
        files: Path in the repository → present text.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="root of the repository")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="fail where a file differs")
    options = parser.parse_args()
    if options.write:
        return write(options.root, files())
    return check(options.root, files(), f"python -m {module} --write")

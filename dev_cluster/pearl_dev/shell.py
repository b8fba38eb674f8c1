"""Runs other programs and turns their failures into errors that can be read."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError, CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    Raises:
        CommandError: it exited with another status than 0.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        input=stdin,
        capture_output=True,
        text=True,
        env=None if environment is None else dict(environment),
        cwd=cwd,
        timeout=timeout_seconds,
        check=False,
    )
    if done.returncode != 0:
        raise CommandError(words, done.returncode, done.stdout + done.stderr)
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether the program exits with status 0; its output is dropped."""
    try:
        run(argv)
    except CommandError:
        return False
    return True


def wait_until(
    check: Callable[[], bool],
    *,
    what: str,
    timeout_seconds: float,
    every_seconds: float = 0.1,
) -> None:
    """Ask again and again until the answer is yes.

    Raises:
        ClusterError: it was not within the time.
    """
    deadline = time.monotonic() + timeout_seconds
    while not check():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s")
        time.sleep(every_seconds)

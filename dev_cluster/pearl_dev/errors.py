"""Errors of the development cluster: each says what to do about it."""

from __future__ import annotations


class ClusterError(Exception):
    """Something a person can put right; the message says how."""


class CommandError(ClusterError):
    """A program that was run failed; carries the end of what it printed."""

    def __init__(self, argv: list[str], status: int, output: str) -> None:
        self.argv = argv
        self.status = status
        self.output = output
        tail = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"{' '.join(argv[:6])} exited with status {status}:\n{tail}")

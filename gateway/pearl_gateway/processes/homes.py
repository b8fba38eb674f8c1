"""Which process a trajectory lives in, and what is a process's share of the bounds; pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl_gateway.settings import Limits

OWNER = 0
"""The process that keeps what there is once."""


def home_of(trajectory: str, processes: int) -> int:
    """The process (from 0) that a trajectory of that name always lives in."""
    digest = hashlib.blake2b(trajectory.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % processes


def share_of(limits: Limits, processes: int) -> Limits:
    """The bounds of one process: what counts its own trajectories is divided, rounded up."""

    def part(whole: int) -> int:
        return -(-whole // processes)

    return replace(
        limits,
        max_turns=part(limits.max_turns),
        max_eval_turns=part(limits.max_eval_turns),
        max_kept_tokens=part(limits.max_kept_tokens),
        max_client_connections=part(limits.max_client_connections),
    )

"""Traffic for the tests of this folder: trajectories of the token-id path on threads, answers kept."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from pearl_dev.fleet import Fleet, Turn

BYTES = 250
"""Token ids of the tiny model that are plain bytes."""


def prompt(seed: int, length: int) -> list[int]:
    """Random token ids."""
    rng = random.Random(seed)
    return [rng.randrange(BYTES) for _ in range(length)]


def identity(trajectory: str, turn: int = 0, group: str | None = None) -> dict[str, str]:
    """Headers that name a turn."""
    return {"X-Pearl-Trajectory": trajectory, "X-Pearl-Turn": str(turn), "X-Pearl-Group": group or trajectory}


def undisturbed(fleet: Fleet, tokens: list[int], max_tokens: int) -> list[int]:
    """The greedy answer of one engine that does everything itself: the reference."""
    return fleet.generate_on(fleet.workers()[0], tokens, max_tokens).token_ids


class Traffic:
    """Trajectories under way."""

    def __init__(self, fleet: Fleet, workers: int = 16) -> None:
        self.fleet = fleet
        self._pool = ThreadPoolExecutor(workers)

    def start(self, trajectory: str, tokens: list[int], max_tokens: int) -> Future[Turn]:
        """One turn on a thread."""
        return self._pool.submit(self.fleet.generate, tokens, max_tokens, identity(trajectory))

    def close(self) -> None:
        """Wait for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def steady(  # noqa: PLR0913 - by name
    fleet: Fleet, name: str, *, prompt_tokens: int, max_tokens: int, streams: int = 3, sessions: bool = False
) -> Iterator[list[Turn]]:
    """Keeps `streams` requests in flight while the block runs; yields the answers so far.

    A request that fails makes the block fail at its end: nothing may be lost. `sessions`: those of a stream are turns
    of one trajectory, each with a context of its own; else each is a trajectory, and none of them is ever ended.
    """
    answers: list[Turn] = []
    over = threading.Event()

    def stream(number: int) -> None:
        count = 0
        while not over.is_set():
            seed = 1000 * number + count
            key = identity(f"{name}-{number}", count) if sessions else identity(f"{name}-{number}-{count}")
            answers.append(fleet.generate(prompt(seed, prompt_tokens), max_tokens, key))
            count += 1

    with ThreadPoolExecutor(streams) as pool:
        running = [pool.submit(stream, number) for number in range(streams)]
        try:
            yield answers
        finally:
            over.set()
        for each in running:
            each.result(timeout=120)

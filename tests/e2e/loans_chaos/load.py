"""Light open-loop load through the gateway, by a client that does what the gateway asks of clients: a turn that got no
answer is asked for again with the same key.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from traffic import identity, prompt

from pearl_dev.fleet import generate_body

if TYPE_CHECKING:
    from pearl_dev.fleet import Fleet

PATIENCE_SECONDS = 240.0
"""How long a turn is asked for."""
PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of one turn."""

    trajectory: str
    tries: int
    seconds: float
    problem: str
    """Empty where all tokens came."""


class Load:
    """Turns at random times, `per_second` of them on average."""

    def __init__(self, fleet: Fleet, per_second: float, seed: int, max_tokens: tuple[int, int] = (100, 700)) -> None:
        # Address and token are taken once: the API server may be dead later.
        self._url = f"{fleet.gateway_url()}/inference/v1/generate"
        self._token = fleet.client_token()
        self._draw = random.Random(seed)
        self._name = f"chaos-{seed}-{int(time.time())}"
        self._per_second, self._max_tokens = per_second, max_tokens
        self._numbers = itertools.count()
        self._pool = ThreadPoolExecutor(64)
        self._http = httpx.Client(timeout=httpx.Timeout(60, connect=3), trust_env=False)
        self._turns: list[Future[Asked]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._draw.expovariate(self._per_second)):
            self.submit(self._draw.randrange(20, 200), self._draw.randrange(*self._max_tokens))

    def submit(self, prompt_tokens: int, max_tokens: int) -> None:
        """One more turn, now."""
        number = next(self._numbers)
        tokens = prompt(number, prompt_tokens)
        self._turns.append(self._pool.submit(self._ask, f"{self._name}-{number}", tokens, max_tokens))

    def _ask(self, trajectory: str, tokens: list[int], length: int) -> Asked:
        began, tries, problem = time.monotonic(), 0, ""
        headers = {"Authorization": f"Bearer {self._token}", **identity(trajectory)}
        while time.monotonic() - began < PATIENCE_SECONDS:
            tries += 1
            try:
                answer = self._http.post(self._url, json=generate_body(tokens, length), headers=headers)
            except httpx.HTTPError as error:
                problem = repr(error)
            else:
                problem = _problem(answer, length)
                if not problem or answer.status_code in (400, 409):
                    break
            time.sleep(PAUSE_SECONDS)
        return Asked(trajectory, tries, time.monotonic() - began, problem)

    @property
    def answered(self) -> int:
        """Turns that got all their tokens."""
        return sum(turn.done() and not turn.result().problem for turn in self._turns)

    def stop(self) -> None:
        """Ask for no more."""
        self._over.set()
        self._thread.join()

    def close(self) -> list[Asked]:
        """Ask for no more; what became of all."""
        self.stop()
        answers = [turn.result(timeout=PATIENCE_SECONDS + 120) for turn in self._turns]
        self._pool.shutdown()
        self._http.close()
        return answers


def _problem(answer: httpx.Response, length: int) -> str:
    if answer.is_error:
        return f"{answer.status_code} {answer.text[:300]}"
    got = len(answer.json()["choices"][0]["token_ids"])
    return "" if got == length else f"{got} tokens instead of {length}"

"""The gateway's batch API and token-id generation, as flows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_trainer.errors import ConfigurationError, ProtocolError, Unavailable
from pearl_trainer.messages import (
    AbortTrajectory,
    BatchProgress,
    FinishTrajectory,
    Message,
    OpenBatch,
    PermitAnswer,
    PermitRequest,
    Trajectory,
)
from pearl_trainer.sansio import Flow, Request, Sleep, call, field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CALL_SECONDS = 30.0
CONSUME_SECONDS = 300.0
"""A batch of long trajectories takes its time."""
GENERATE_SECONDS = 3600.0
"""A turn is never refused once admitted, only queued; the caller's own deadline is the one that counts."""
PATIENCE_SECONDS = 600.0
"""How long a turn is asked for again while the gateway cannot serve it."""
_POLL_SECONDS = 30.0
_POLL_MARGIN_SECONDS = 10.0


@dataclass(frozen=True)
class Turn:
    """Identity of a turn; (trajectory, turn, attempt) is an idempotency key."""

    trajectory: str
    turn: int
    group: str | None = None
    attempt: int = 0
    step: int | None = None
    class_: str = "train"

    def headers(self) -> tuple[tuple[str, str], ...]:
        """As the gateway reads it."""
        pairs = {
            "X-Pearl-Trajectory": self.trajectory,
            "X-Pearl-Turn": str(self.turn),
            "X-Pearl-Attempt": str(self.attempt),
            "X-Pearl-Class": self.class_,
            "X-Pearl-Group": self.group,
            "X-Pearl-Step": None if self.step is None else str(self.step),
        }
        return tuple((name, value) for name, value in pairs.items() if value is not None)


@dataclass(frozen=True)
class Generated:
    """One generated turn; `raw` is the whole answer."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str | None
    raw: Mapping[str, Any]


class GatewayApi:
    """Builds and reads the calls.

    Args:
        where: Base URL and bearer token (None = no authentication) of the gateway, asked for at each call.
        clock: Seconds that never go back.
        new_id: A fresh unique string at each call.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, str | None]],
        clock: Callable[[], float],
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._where = where
        self._clock = clock
        self._new_id = new_id

    def open(
        self, step: int, groups: int, group_size: int, need_groups: int | None, min_version: int
    ) -> Flow[BatchProgress]:
        """Declares a batch."""
        message = OpenBatch(step, groups, group_size, need_groups, min_version)
        return self._progress("POST", "/v1/batches", message)

    def progress(self, step: int) -> Flow[BatchProgress]:
        """How far a batch is."""
        return self._progress("GET", f"/v1/batches/{step}", None)

    def finish(self, step: int, trajectory: str, group: str | None, reward: float | None) -> Flow[BatchProgress]:
        """A trajectory reached its end."""
        return self._progress("POST", f"/v1/batches/{step}/finish", FinishTrajectory(trajectory, group, reward))

    def abort(self, step: int, trajectory: str, group: str | None, cause: str) -> Flow[BatchProgress]:
        """A trajectory ended early."""
        return self._progress("POST", f"/v1/batches/{step}/abort", AbortTrajectory(trajectory, group, cause))

    def close(self, step: int) -> Flow[BatchProgress]:
        """Nothing more comes."""
        return self._progress("POST", f"/v1/batches/{step}/close", None)

    def consume(self, step: int) -> Flow[tuple[Trajectory, ...]]:
        """The complete trajectories of a batch, for training; counts them as consumed.

        An answer that is lost on its way is asked for again by its key: the gateway hands each trajectory out once.
        """
        url, token = self._where()
        key = (("Idempotency-Key", self._new_id()),)
        request = Request(
            "POST", f"{url}/v1/batches/{step}/consume", token, None, CONSUME_SECONDS, headers=key, bulk=True
        )
        body = yield from self._patiently(request)
        if not isinstance(body, list):
            raise ProtocolError("the gateway's answer to `consume` is no list: are SDK and gateway of one release?")
        return tuple(Trajectory.from_wire(item) for item in body)

    def permit(self, group: str, size: int, step: int | None, wait_seconds: float | None) -> Flow[PermitAnswer]:
        """Waits until the whole group is admitted, at most `wait_seconds`; None = as long as it takes."""
        end = None if wait_seconds is None else self._clock() + wait_seconds
        while True:
            left = _POLL_SECONDS if end is None else min(max(end - self._clock(), 0.0), _POLL_SECONDS)
            message = PermitRequest(group, size, step, left)
            try:
                body = yield from self._call("POST", "/v1/permits", message, left + _POLL_MARGIN_SECONDS)
                answer = PermitAnswer.from_wire(body)
                if answer.granted or (end is not None and self._clock() >= end):
                    return answer
            except Unavailable as error:
                if end is not None and self._clock() >= end:
                    raise
                yield Sleep(error.retry_after_seconds or 1.0)

    def trajectory(self, name: str) -> Flow[Trajectory]:
        """One trajectory as a trainer consumes it."""
        return Trajectory.from_wire((yield from self._call("GET", f"/v1/trajectories/{name}", None)))

    def window(self) -> Flow[int | None]:
        """Trajectories that should be in flight now; None = no limit."""
        window: int | None = field_of((yield from self._call("GET", "/v1/stats", None)), "window")
        return window

    def idle_fractions(self) -> Flow[dict[str, float]]:
        """Share of each pool's ready workers that have no request now, by role; pools without one are left out."""
        workers = field_of((yield from self._call("GET", "/v1/stats", None)), "workers")
        ready = [worker for worker in workers if worker["ready"] and worker["activity"] == "active"]
        pools: dict[str, list[bool]] = {}
        for worker in ready:
            pools.setdefault(worker["role"], []).append(worker["inFlight"] == 0)
        return {role: sum(idle) / len(idle) for role, idle in sorted(pools.items())}

    def generate(self, token_ids: Sequence[int], turn: Turn, sampling: Mapping[str, Any]) -> Flow[Generated]:
        """Generates from token ids; `sampling` holds vLLM's sampling parameters, such as `max_tokens`.

        The turn's identity makes it safe to ask again: what was generated already stays in the gateway's log. So
        an unreachable or unable gateway is asked again for `PATIENCE_SECONDS`.
        """
        body = {"token_ids": list(token_ids), "sampling_params": {"logprobs": 0, **sampling}}
        url, token = self._where()
        request = Request(
            "POST", f"{url}/inference/v1/generate", token, body, GENERATE_SECONDS, headers=turn.headers(), bulk=True
        )
        answer = yield from self._patiently(request)
        choice = field_of(answer, "choices")[0]
        content = (choice.get("logprobs") or {}).get("content")
        logprobs = tuple(item["logprob"] for item in content) if content else None
        return Generated(tuple(field_of(choice, "token_ids")), logprobs, choice.get("finish_reason"), answer)

    def _patiently(self, request: Request) -> Flow[Any]:
        end = self._clock() + PATIENCE_SECONDS
        while True:
            try:
                return (yield from call(request))
            except Unavailable as error:  # noqa: PERF203 - waiting is what the loop is for
                if self._clock() >= end:
                    raise
                yield Sleep(error.retry_after_seconds or 1.0)

    def _progress(self, method: str, path: str, message: Message | None) -> Flow[BatchProgress]:
        return BatchProgress.from_wire((yield from self._call(method, path, message)))

    def _call(self, method: str, path: str, message: Message | None, timeout: float = CALL_SECONDS) -> Flow[Any]:
        url, token = self._where()
        body = message.to_wire() if message else None
        return (yield from call(Request(method, url + path, token, body, timeout, bulk=True)))


def no_gateway() -> ConfigurationError:
    """The error where nobody said where the gateway is."""
    return ConfigurationError(
        "the gateway is not known: set PEARL_GATEWAY_URL (and PEARL_GATEWAY_TOKEN_FILE), or register() first"
    )

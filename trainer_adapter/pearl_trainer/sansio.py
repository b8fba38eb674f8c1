"""The core does no I/O: it is made of generators that yield what shall happen and receive the outcome.

A *flow* yields `Send` (one HTTP request; receives an `Outcome`), `Together` (flows at the same time; receives the
list of their results), `Spawn` (a flow that nobody waits for), `Invoke` (a function of the user's) or `Sleep`.
`blocking.py` and `aio.py` hold the two drivers; both run the same flows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from pearl_trainer.errors import ProtocolError, Rejected, Unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One HTTP request with a JSON body."""

    method: str
    url: str
    token: str | None = None
    body: dict[str, Any] | None = None
    timeout_seconds: float = 10.0
    connect_seconds: float = 2.0
    headers: tuple[tuple[str, str], ...] = ()
    bulk: bool = False
    """Comes in great numbers and may take long, as turns do: it never holds up the calls of a loan."""


@dataclass(frozen=True)
class Reply:
    """The other side answered; `body` is the decoded JSON, or None where it was none."""

    status: int
    body: Any


@dataclass(frozen=True)
class NoReply:
    """Refused, unreachable, cut or too late; `error` says which."""

    error: str


Outcome = Union[Reply, NoReply]


@dataclass(frozen=True)
class Send:
    """Do one request."""

    request: Request


@dataclass(frozen=True)
class Together:
    """Run flows at the same time and wait for all of them."""

    flows: tuple[Flow[Any], ...]


@dataclass(frozen=True)
class Spawn:
    """Start a flow and go on at once; it must not raise."""

    flow: Flow[Any]


@dataclass(frozen=True)
class Invoke:
    """Call a function of the user's; the asynchronous driver awaits what it returns, if it can be awaited."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Sleep:
    """Let time pass; a flow that is stopped ends here."""

    seconds: float


Step = Union[Send, Together, Spawn, Invoke, Sleep]
Flow = Generator[Step, Any, T]


def send(request: Request) -> Flow[Outcome]:
    """A flow of one request."""
    outcome: Outcome = yield Send(request)
    return outcome


def call(request: Request) -> Flow[Any]:
    """One request whose answer must be a success; returns its JSON body.

    Raises:
        Unavailable: no answer, 429 or 5xx.
        Rejected: any other status that is no success.
    """
    outcome: Outcome = yield Send(request)
    return body_of(outcome, f"{request.method} {request.url}")


def body_of(outcome: Outcome, what: str) -> Any:
    """The body of a success; raises as `call` does, with `what` in the message."""
    if isinstance(outcome, NoReply):
        raise Unavailable(f"{what}: {outcome.error}")
    if 200 <= outcome.status < 300:  # noqa: PLR2004 - HTTP
        return outcome.body
    problem = outcome.body if isinstance(outcome.body, dict) else {}
    error = problem.get("error", "")
    if isinstance(error, dict):  # the inference paths answer as OpenAI clients expect
        problem, error = error, error.get("type", "")
    message = str(problem.get("message") or f"{what} was answered with HTTP status {outcome.status}")
    if outcome.status == 429 or outcome.status >= 500:  # noqa: PLR2004 - HTTP
        raise Unavailable(message, retry_after_seconds=problem.get("retryAfterSeconds"), reason=str(error))
    raise Rejected(message, status=outcome.status, reason=str(error))


def field_of(body: Any, key: str) -> Any:
    """`body[key]`; raises ProtocolError where the answer has no such field."""
    if not isinstance(body, dict) or key not in body:
        raise ProtocolError(f"the answer has no field `{key}`: are the SDK and PEARL of the same release?")
    return body[key]

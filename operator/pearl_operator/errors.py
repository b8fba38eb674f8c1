"""What can go wrong outside, as one small tree; everything else is a bug.

OperatorError
├── RetryAfter          try again after `seconds`
│   ├── Conflict        the object changed meanwhile (409): read it again
│   └── Unavailable     no answer, 429 or 5xx
└── Permanent           repeating the same call cannot help
    ├── AlreadyExists   another object has that name
    ├── NotFound        the object to change is gone
    └── Refused         the receiver says what is wrong with the request (400, 401, 403, 422)

The adapters raise them; the loop of a rollout waits and looks again.
"""

from __future__ import annotations


def described(error: BaseException) -> str:
    """Kind and text of an error; some have no text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class OperatorError(Exception):
    """Base of every error that a port raises."""


class RetryAfter(OperatorError):  # noqa: N818 - named for what the caller does
    """A later try may succeed.

    Args:
        message: What happened.
        seconds: Shortest wait before the next try.
    """

    def __init__(self, message: str, seconds: float = 1.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class Conflict(RetryAfter):
    """The object changed meanwhile, or a precondition (uid, resourceVersion) does not hold."""


class Unavailable(RetryAfter):
    """The other side does not answer, or asks to be left alone for a moment."""


class Permanent(OperatorError):  # noqa: N818 - as above
    """The same call can never succeed."""


class AlreadyExists(Permanent):
    """An object of that name exists."""


class NotFound(Permanent):
    """The object does not exist."""


class Refused(Permanent):
    """The request is not acceptable; the message is the receiver's own sentence."""

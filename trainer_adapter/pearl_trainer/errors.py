"""What can go wrong, as one small tree. Every message names the field and what to change.

PearlError
├── ConfigurationError   an argument, an environment variable or the PearlRollout must be changed
│   └── VersionError     a weight version that does not grow
├── Rejected             the other side refuses the call for good (`status`, `reason`)
├── Unavailable          no answer, or "not now"; the same call may succeed later
├── ProtocolError        an answer that this version of the SDK does not understand
└── NotReturned          the hard deadline of a reclaim passed and a GPU is not known to be free

`lend()` raises none of them: a loan that cannot be made is an answer with a reason. `reclaim()` raises only
`NotReturned`.
"""

from __future__ import annotations


class PearlError(Exception):
    """Base of every error that this package raises."""


class ConfigurationError(PearlError, ValueError):
    """Something that the user wrote must be changed; the message says what."""


class VersionError(ConfigurationError):
    """The version to publish is not above the published one."""


class Rejected(PearlError):  # noqa: N818 - named for what happened
    """The receiver refuses the call.

    Args:
        message: The receiver's sentence.
        status: HTTP status.
        reason: Closed CamelCase reason of the receiver, empty where it gave none.
    """

    def __init__(self, message: str, *, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Unavailable(PearlError):  # noqa: N818 - named for what happened
    """The other side does not answer, or says "not now".

    Args:
        message: What was tried.
        retry_after_seconds: When a new try makes sense; None = unknown.
        reason: Closed reason of the receiver, empty where there was no answer.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.reason = reason


class ProtocolError(PearlError):
    """An answer lacks a field that the protocol promises."""


class NotReturned(PearlError):  # noqa: N818 - named for what happened
    """A GPU is not known to be free; never start training now. `reclaim()` may be called again.

    Args:
        message: Which agents, and what each said.
        epoch: The loan epoch that is fenced.
        agents: Pod name → why its GPU does not count as free.
        lease_over_seconds: How long the lease of the last of them has been over on this machine's monotonic
            clock; negative while it still runs.
    """

    def __init__(self, message: str, *, epoch: int, agents: dict[str, str], lease_over_seconds: float) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.agents = agents
        self.lease_over_seconds = lease_over_seconds

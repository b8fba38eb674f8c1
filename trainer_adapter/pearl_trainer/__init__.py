"""Lends the GPUs of an RL trainer to its rollout between updates, and takes them back on time.

Start at `PearlClient`. Layers, each importing only those below it: `client`, `async_client` → the drivers `blocking`,
`aio` → `session`, `ranks` → `core`, `gateway` → `reclaim` → `lease`, `endpoints`, `weights` → `sansio`, `messages`,
`errors`.
"""

from pearl_trainer.async_client import AsyncLoan, AsyncPearlClient
from pearl_trainer.client import Loan, PearlClient
from pearl_trainer.core import LendResult
from pearl_trainer.errors import (
    ConfigurationError,
    NotReturned,
    PearlError,
    ProtocolError,
    Rejected,
    Unavailable,
    VersionError,
)
from pearl_trainer.gateway import Generated, Turn
from pearl_trainer.messages import BatchProgress, PermitAnswer, Segment, Trajectory
from pearl_trainer.reclaim import Free
from pearl_trainer.settings import Settings
from pearl_trainer.weights import Published, publish

__all__ = [
    "AsyncLoan",
    "AsyncPearlClient",
    "BatchProgress",
    "ConfigurationError",
    "Free",
    "Generated",
    "LendResult",
    "Loan",
    "NotReturned",
    "PearlClient",
    "PearlError",
    "PermitAnswer",
    "ProtocolError",
    "Published",
    "Rejected",
    "Segment",
    "Settings",
    "Trajectory",
    "Turn",
    "Unavailable",
    "VersionError",
    "publish",
]

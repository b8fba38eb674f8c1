"""The fence: which loan epoch may run an engine here. Pure; times are seconds of the caller's monotonic clock.

A grant is a lease. It ends by `reclaim`, or by itself when no heartbeat renews it; either way its epoch is fenced
for ever, and only a higher epoch opens the fence again. That holds over restarts of the agent, because the last
epoch is kept on disk and a new process starts fenced.
"""

from dataclasses import dataclass, replace


class FencedError(Exception):
    """The message carries an epoch that may no longer do anything here."""


@dataclass(frozen=True, slots=True)
class Fence:
    """`epoch` is the highest seen (0 = none); `expires_at` None = no live grant."""

    epoch: int = 0
    ttl_seconds: float | None = None
    expires_at: float | None = None

    @property
    def granted(self) -> bool:
        """Whether an engine may run."""
        return self.expires_at is not None

    def remaining_seconds(self, now: float) -> float | None:
        """Remaining life of the grant; None = no grant."""
        return None if self.expires_at is None else max(0.0, self.expires_at - now)

    def grant(self, epoch: int, ttl_seconds: float, now: float) -> "Fence":
        """Open the fence for `epoch`; repeating a live grant renews it.

        Raises:
            FencedError: `epoch` is not higher than the last fenced one.
        """
        if epoch < self.epoch or (epoch == self.epoch and not self.granted):
            raise FencedError(f"epoch {epoch} is fenced: the last one seen is {self.epoch}; lend again for a new epoch")
        return Fence(epoch=epoch, ttl_seconds=ttl_seconds, expires_at=now + ttl_seconds)

    def renew(self, epoch: int, now: float) -> "Fence":
        """A heartbeat of the trainer.

        Raises:
            FencedError: there is no live grant of this epoch.
        """
        if epoch != self.epoch or self.ttl_seconds is None or not self.granted:
            raise FencedError(f"no live grant of epoch {epoch}: the last one seen is {self.epoch}")
        return replace(self, expires_at=now + self.ttl_seconds)

    def reclaim(self, epoch: int) -> "Fence":
        """Close the fence for `epoch` and everything before it.

        Raises:
            FencedError: a newer epoch was granted since.
        """
        if epoch < self.epoch:
            raise FencedError(f"epoch {epoch} is over: epoch {self.epoch} followed it")
        return Fence(epoch=epoch)

    def expire(self, now: float) -> "Fence":
        """The fence as it is at `now`: closed if the grant ran out."""
        if self.expires_at is not None and now >= self.expires_at:
            return Fence(epoch=self.epoch)
        return self

"""The borrower's side of a loan: the fence, kept on disk, and the device it is about."""

import json
import logging
from pathlib import Path

from pearl_api.wire.worker import LoanState, ReclaimAnswer
from pearl_worker.engine import VacateReport
from pearl_worker.fence import Fence
from pearl_worker.ports import MemoryDevice

_log = logging.getLogger(__name__)


class DeviceBusyError(Exception):
    """The device cannot be lent now: somebody still uses it, or it cannot be read."""


class Loan:
    """Decides whether an engine may run here, and whether the device is back as it was."""

    def __init__(self, device: MemoryDevice, file: Path, allowance_bytes: int) -> None:
        """Starts fenced; `file` keeps the highest epoch over restarts of the container."""
        self._device = device
        self._file = file
        self._allowance_bytes = allowance_bytes
        self._fence = Fence(epoch=_read_epoch(file))
        self._baseline_bytes: int | None = None
        # Nothing was ever granted here, so there is nothing to give back.
        self._answer = _nothing_lent(0) if self._fence.epoch == 0 else None
        self.vacate_by = 0.0
        """Loop time by which the device must be free, once the fence is closed."""

    @property
    def granted(self) -> bool:
        """Whether an engine may run."""
        return self._fence.granted

    def grant(self, epoch: int, ttl_seconds: float, now: float, *, engine_absent: bool) -> None:
        """Open the fence.

        Raises:
            FencedError: the epoch is not higher than the last fenced one.
            DeviceBusyError: the trainer has not left the device.
        """
        fence = self._fence.grant(epoch, ttl_seconds, now)
        if not self._fence.granted:
            self._measure(engine_absent)
        self._keep(fence)
        self._answer = None

    def _measure(self, engine_absent: bool) -> None:
        used = self._device.used_bytes()
        if used is None:
            raise DeviceBusyError("device memory cannot be read, so it could not be proven to be given back")
        if self._baseline_bytes is not None and used > self._baseline_bytes + self._allowance_bytes:
            raise DeviceBusyError(f"{used} bytes of the device are in use, {self._baseline_bytes} at the first grant")
        if engine_absent:
            self._baseline_bytes = used

    def renew(self, epoch: int, now: float) -> None:
        """A heartbeat. Raises FencedError without a live grant of `epoch`."""
        self._keep(self._fence.renew(epoch, now))

    def reclaim(self, epoch: int, vacate_by: float) -> None:
        """Close the fence. Raises FencedError if a newer epoch was granted."""
        fence = self._fence.reclaim(epoch)
        self.vacate_by = vacate_by if self.granted else min(self.vacate_by or vacate_by, vacate_by)
        self._keep(fence)

    def expire(self, now: float, vacate_by: float) -> None:
        """Close the fence if no heartbeat came in time."""
        fence = self._fence.expire(now)
        if fence is not self._fence:
            _log.warning("loan epoch %d ended without a heartbeat", fence.epoch)
            self.vacate_by = vacate_by
            self._keep(fence)

    def memory_free(self) -> bool:
        """Whether the device was read and holds no more than at the grant (and what a sleeper may keep)."""
        used = self._device.used_bytes()
        return used is not None and (
            self._baseline_bytes is None or used <= self._baseline_bytes + self._allowance_bytes
        )

    def state(self, now: float, *, memory_free: bool) -> LoanState:
        """For readers outside."""
        return LoanState(
            epoch=self._fence.epoch,
            fenced=not self.granted,
            granted=self.granted,
            ttl_seconds=self._fence.remaining_seconds(now),
            memory_free=None if self._device.used_bytes() is None else memory_free,
        )

    def answered(self, epoch: int) -> ReclaimAnswer | None:
        """The answer to a reclaim where nothing was granted since the last one that was free; fences `epoch`.

        The device is not read again: what is on it by now is the trainer's own, be it back to work already, or not
        able to empty its device before an offer that was therefore refused.
        """
        if self._answer is None or self._answer.epoch > epoch:
            return None
        if self._answer.epoch < epoch:
            self._keep(self._fence.reclaim(epoch))
            self._answer = _nothing_lent(epoch)
        return self._answer

    def answer(self, epoch: int, report: VacateReport, free: bool, total_seconds: float) -> ReclaimAnswer:
        """Put the result of a reclaim into words."""
        answer = ReclaimAnswer(
            epoch=epoch,
            free=free,
            killed=report.killed,
            aborted_requests=report.aborted_requests,
            drain_seconds=report.drain_seconds,
            sleep_seconds=report.sleep_seconds,
            total_seconds=total_seconds,
            message="" if free else self._why_not_free(),
        )
        self._answer = answer if free else None
        return answer

    def _why_not_free(self) -> str:
        used = self._device.used_bytes()
        if used is None:
            return "device memory cannot be read"
        return f"{used} bytes of the device are in use, {self._baseline_bytes} at the grant"

    def _keep(self, fence: Fence) -> None:
        if fence.epoch != self._fence.epoch or not self._file.exists():
            draft = self._file.with_suffix(".new")
            draft.write_text(json.dumps({"epoch": fence.epoch}))
            draft.rename(self._file)
        self._fence = fence


def _nothing_lent(epoch: int) -> ReclaimAnswer:
    return ReclaimAnswer(
        epoch=epoch, free=True, killed=False, aborted_requests=0, drain_seconds=0, sleep_seconds=0, total_seconds=0
    )


def _read_epoch(file: Path) -> int:
    try:
        return int(json.loads(file.read_text())["epoch"])
    except FileNotFoundError:
        return 0

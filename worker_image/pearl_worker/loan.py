"""The borrower's side of a loan: the fence, what the GPUs held at the grant, and whether they were given back."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pearl_api.wire.worker import LoanState, ReclaimAnswer
from pearl_worker.engine import VacateReport
from pearl_worker.fence import Fence
from pearl_worker.footprint import Footprint
from pearl_worker.ports import MemoryDevice

_log = logging.getLogger(__name__)


_NOTHING = Footprint()


@dataclass(frozen=True, slots=True)
class _Record:
    """What outlives the agent's process."""

    epoch: int = 0
    footprint: Footprint = _NOTHING
    returned: bool = True
    """Nothing was granted since the device was last seen free."""


class DeviceBusyError(Exception):
    """The device cannot be lent now: somebody still uses it, or it cannot be read."""


class Loan:
    """Decides whether an engine may run here, and whether the device is back as it was."""

    def __init__(
        self, device: MemoryDevice, file: Path, allowance_bytes: int, total_bytes: tuple[int, ...] | None = None
    ) -> None:
        """Starts fenced; `file` outlives the container. `allowance_bytes` is per GPU, `total_bytes` of each.

        Raises:
            ValueError: the file is damaged, so that it is not known what may run here.
        """
        self._device = device
        self._file = file
        self._allowance_bytes = allowance_bytes
        self._total_bytes = total_bytes
        self._record = _read(file)
        self._fence = Fence(epoch=self._record.epoch)
        self._answer = _nothing_lent(self._fence.epoch) if self._record.returned else None
        self.vacate_by = 0.0
        """Loop time by which the device must be free, once the fence is closed."""

    @property
    def granted(self) -> bool:
        """Whether an engine may run."""
        return self._fence.granted

    def ttl_seconds(self, now: float) -> float | None:
        """Remaining life of the grant; None = no grant."""
        return self._fence.remaining_seconds(now)

    def grant(self, epoch: int, ttl_seconds: float, now: float, *, engine_absent: bool) -> None:
        """Open the fence.

        Raises:
            FencedError: the epoch is not higher than the last fenced one.
            DeviceBusyError: the trainer has not left the device.
        """
        fence = self._fence.grant(epoch, ttl_seconds, now)
        footprint = self._record.footprint if self._fence.granted else self._measured(engine_absent)
        self._keep(fence, footprint=footprint, returned=False)
        self._answer = None

    def _measured(self, engine_absent: bool) -> Footprint:
        used, known = self._device.used_bytes(), self._record.footprint
        if used is None:
            why = f"device memory cannot be read, so it could not be proven to be given back: {self._device.problem}"
            raise DeviceBusyError(why.removesuffix(": "))
        obstacle = known.obstacle(used, self._total_bytes, self._allowance_bytes, engine_absent=engine_absent)
        if obstacle:
            raise DeviceBusyError(f"{obstacle}: offload the model before lending")
        return known.at_grant(used, engine_absent=engine_absent)

    def awake(self) -> None:
        """The engine serves: what it takes is known now."""
        used = self._device.used_bytes()
        if used is not None:
            self._keep(self._fence, footprint=self._record.footprint.when_awake(used))

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
        return used is not None and not self._excess(used)

    def _excess(self, used: tuple[int, ...]) -> str:
        return self._record.footprint.excess(used, self._allowance_bytes)

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
            self._keep(self._fence.reclaim(epoch), returned=True)
            self._answer = _nothing_lent(epoch)
        return self._answer

    def given_back(self, report: VacateReport, *, asleep: bool = False) -> None:
        """The device was vacated and seen free, reclaimed or not: whoever uses it from now on is not us."""
        used = self._device.used_bytes()
        if asleep and used is not None:
            self._keep(self._fence, footprint=self._record.footprint.when_asleep(used))
        seconds = report.drain_seconds + report.sleep_seconds
        self.answer(self._fence.epoch, report, free=True, ended=True, total_seconds=seconds)

    def answer(
        self, epoch: int, report: VacateReport, *, free: bool, ended: bool, total_seconds: float
    ) -> ReclaimAnswer:
        """Put the result of a reclaim into words; `ended`: the engine sleeps, or no process of it is left."""
        answer = ReclaimAnswer(
            epoch=epoch,
            free=free,
            killed=report.killed,
            aborted_requests=report.aborted_requests,
            drain_seconds=report.drain_seconds,
            sleep_seconds=report.sleep_seconds,
            total_seconds=total_seconds,
            message="" if free else self._why_not_free(ended=ended),
        )
        if free:
            self._keep(self._fence, returned=True)
            self._answer = answer
        return answer

    def _why_not_free(self, *, ended: bool) -> str:
        used = self._device.used_bytes()
        if used is None:
            return f"device memory cannot be read: {self._device.problem}".removesuffix(": ")
        excess = self._excess(used)
        if ended:
            return excess or "the device was still in use when the time was over"
        return "; ".join(filter(None, ["the engine has not ended yet", excess]))

    def _keep(self, fence: Fence, *, footprint: Footprint | None = None, returned: bool | None = None) -> None:
        record = replace(self._record, epoch=fence.epoch)
        if footprint is not None:
            record = replace(record, footprint=footprint)
        if returned is not None:
            record = replace(record, returned=returned)
        if record != self._record or not self._file.exists():
            draft = self._file.with_suffix(".new")
            draft.write_text(json.dumps(asdict(record)))
            draft.rename(self._file)
        self._record = record
        self._fence = fence


def _nothing_lent(epoch: int) -> ReclaimAnswer:
    return ReclaimAnswer(
        epoch=epoch, free=True, killed=False, aborted_requests=0, drain_seconds=0, sleep_seconds=0, total_seconds=0
    )


def _read(file: Path) -> _Record:
    try:
        content = json.loads(file.read_text())
        footprint = {name: value and tuple(map(int, value)) for name, value in content["footprint"].items()}
        return _Record(int(content["epoch"]), Footprint(**footprint), bool(content["returned"]))
    except FileNotFoundError:
        return _Record()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged, so no engine may start here: delete the pod ({error!r})") from error

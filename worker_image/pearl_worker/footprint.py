"""What the GPUs of a loan hold, and what of it is the engine's; pure. Bytes, one number per GPU, in the device's order.

A trainer that has offloaded its model still holds something: contexts, workspaces, communication buffers, more of it
after its first step than before. So what must come back is what was there at *this* grant, less what a sleeping engine
had of it; and whether the trainer has left is judged by whether the engine fits, once it is known how much it takes.
"""

from dataclasses import dataclass, replace

Bytes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Footprint:
    """None = not known yet."""

    baseline: Bytes | None = None
    """In use at the grant, without an engine."""
    asleep: Bytes | None = None
    """What the engine adds while it sleeps."""
    awake: Bytes | None = None
    """What it adds while it serves."""

    def at_grant(self, used: Bytes, *, engine_absent: bool) -> "Footprint":
        """The baseline as it is now."""
        resting = None if engine_absent else self.asleep
        return replace(self, baseline=_less(used, resting))

    def when_awake(self, used: Bytes) -> "Footprint":
        """The engine serves."""
        return replace(self, awake=_less(used, self.baseline))

    def when_asleep(self, used: Bytes) -> "Footprint":
        """The engine sleeps, and nobody else has come back."""
        return replace(self, asleep=_less(used, self.baseline))

    def excess(self, used: Bytes, allowance: int) -> str:
        """Which GPU holds more than at the grant and `allowance`; empty = none."""
        if self.baseline is None:
            return ""
        if len(used) != len(self.baseline):
            return f"{len(used)} GPUs can be read, {len(self.baseline)} at the grant"
        for number, (now, before) in enumerate(zip(used, self.baseline, strict=True)):
            if now > before + allowance:
                return f"{now} bytes of {_name(number, used)} are in use, {before} at the grant"
        return ""

    def obstacle(self, used: Bytes, total: Bytes | None, allowance: int, *, engine_absent: bool) -> str:
        """Why the engine would not fit; empty = it would, or nobody knows better."""
        if total is None or self.awake is None or len(total) != len(used):
            return self.excess(used, allowance)
        more = _less(self.awake, None if engine_absent else self.asleep)
        for number, (now, wanted, there) in enumerate(zip(used, more, total, strict=True)):
            if now + wanted > there:
                return f"{now} bytes of {_name(number, used)} are in use, and the engine needs {wanted} of {there}"
        return ""


def _less(used: Bytes, part: Bytes | None) -> Bytes:
    if part is None or len(part) != len(used):
        return used
    return tuple(max(0, one - other) for one, other in zip(used, part, strict=True))


def _name(number: int, used: Bytes) -> str:
    return f"GPU {number}" if len(used) > 1 else "the device"

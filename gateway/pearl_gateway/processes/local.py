"""What the owner asks of the process that a trajectory lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pearl_gateway.batches import Ended

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_api.wire.gateway import TrajectoryExport
    from pearl_gateway.gateway import Gateway
    from pearl_gateway.processes.messages import End


def end_here(gateway: Gateway, message: End) -> Ended | None:
    """End the log of a trajectory of this process; None if it never sent a turn.

    One that was ended before, when the answer did not reach the owner, is found in the export.
    """
    ended = gateway.end_trajectory(message.trajectory, reward=message.reward, cause=message.cause)
    export = gateway.export(message.trajectory) if ended is None else None
    return ended if export is None else Ended(export.group, _first(export))


def exports_here(gateway: Gateway, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Exports of this process's trajectories by name; one that nobody has is left out."""
    found = {name: gateway.export(name) for name in names}
    return {name: one.model_dump(mode="json", by_alias=True) for name, one in found.items() if one is not None}


def _first(export: TrajectoryExport) -> int | None:
    return next((version for version in export.versions if version is not None), None)

"""Where the fleet's facts come from: the port, and its form for a laptop and for tests. In a cluster: `cluster`.

Addresses come only from here and are used only through `fleet`: a pod that comes back has a new one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

from pearl_api.names import Activity, Role
from pearl_gateway.fleet import Fleet, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_LOG = logging.getLogger(__name__)
_FILE_SECONDS = 0.25


class Membership(Protocol):
    """Keeps a fleet up to date until it is cancelled."""

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """Feed `fleet`; call `known` whenever a complete list was taken over."""


class FileMembership:
    """Workers from a JSON file, looked at again whenever it changes.

    The file is a list of objects with `url` and optionally `pod`, `uid`, `agentUrl`, `role`, `roleEpoch`, `activity`,
    `ready` and `borrowed`; what is missing means a colocated, active, ready worker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, fleet: Fleet, known: Callable[[], None]) -> None:
        """See `Membership`; a file that cannot be read changes nothing and is reported once per change."""
        seen: int | None = None
        while True:
            stamp = self._path.stat().st_mtime_ns if self._path.exists() else None
            if stamp != seen:
                seen = stamp
                try:
                    fleet.replace(read_workers(self._path.read_text()))
                    known()
                except (OSError, ValueError) as error:
                    _LOG.warning("%s: %s", self._path, error)
            await asyncio.sleep(_FILE_SECONDS)


def read_workers(text: str) -> list[WorkerFacts]:
    """Workers of a static file.

    Raises:
        ValueError: not a list of objects with `url`, or a field cannot be meant.
    """
    entries = json.loads(text)
    if not isinstance(entries, list) or not all(isinstance(one, dict) and one.get("url") for one in entries):
        raise ValueError('write a list of objects with `url`, for example [{"url": "http://127.0.0.1:8000"}]')
    return [_from_entry(index, entry) for index, entry in enumerate(entries)]


def _from_entry(index: int, entry: Mapping[str, Any]) -> WorkerFacts:
    url, pod = str(entry["url"]).rstrip("/"), str(entry.get("pod") or f"worker-{index}")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url {url!r} must begin with http:// or https://, for example http://127.0.0.1:8000")
    return WorkerFacts(
        uid=str(entry.get("uid") or pod),
        pod=pod,
        url=url,
        agent_url=entry.get("agentUrl"),
        role=Role(entry.get("role", Role.COLOCATED)),
        role_epoch=int(entry.get("roleEpoch", 0)),
        activity=Activity(entry.get("activity", Activity.ACTIVE)),
        ready=bool(entry.get("ready", True)),
        borrowed=bool(entry.get("borrowed", False)),
    )

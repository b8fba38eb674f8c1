"""Weight updates of loops that push them to their engine: here workers pull what the manifest names.

A push of tensors cannot reach workers that come and go, so it is refused with what to do instead. An update "from
disk" is taken as the question whether that version is served: it is answered once every worker has loaded it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pearl_gateway.gateway import Gateway

PATIENCE_SECONDS = 120.0
"""Longest wait for the workers to load a version that is published."""
NOTICE_SECONDS = 5.0
"""Longest wait for a version to appear in the manifest: agents read it every second, and this gateway asks them."""
_LOOK_SECONDS = 0.1
PULLED = (
    "workers of a PearlRollout come and go, so they pull weights: publish files with pearl_trainer's publish_weights "
    "(docs/integrations/slime.md), and use no broadcast and no tensor update for them"
)


async def from_disk(body: dict[str, Any], gateway: Gateway) -> tuple[bool, str]:
    """Whether the version that `body` names is what workers serve, and the sentence that says so."""
    version = _version(body.get("weight_version"))
    if version is None:
        return False, f"name the published version as a whole number in `weight_version`: {PULLED}"
    started = gateway.clock()
    while not _served(gateway, version):
        waited, wanted = gateway.clock() - started, gateway.fleet.wanted_version() or 0
        if wanted < version and waited > NOTICE_SECONDS:
            return False, f"version {version} is not published, the newest manifest names {wanted}: {PULLED}"
        if waited > PATIENCE_SECONDS:
            return False, f"version {version} is published, but after {waited:.0f} s not every worker has loaded it"
        await asyncio.sleep(_LOOK_SECONDS)
    return True, f"every worker serves version {version} or a newer one"


def newest_served(gateway: Gateway) -> str:
    """Newest loaded version as SGLang writes it; 0 is `model.uri`."""
    return str(max(gateway.fleet.versions(), default=0))


def _version(value: Any) -> int | None:
    try:
        version = int(value)
    except (TypeError, ValueError):
        return None
    return version if version >= 0 else None


def _served(gateway: Gateway, version: int) -> bool:
    now = gateway.clock()
    loaded = [one.weight_version for one in gateway.fleet.workers.values() if gateway.fleet.usable(one, now)]
    return bool(loaded) and all(one is not None and one >= version for one in loaded)

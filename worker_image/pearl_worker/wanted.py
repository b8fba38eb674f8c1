"""Which weights this worker should serve: follows the manifest, and remembers which versions would not load.

Versions only grow, and the files of a version never change: a manifest that says otherwise is refused, because two
workers could then serve different weights under one number.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from pearl_api.wire.weights import MANIFEST, WeightsManifest
from pearl_worker.ports import WeightsError, WeightSource
from pearl_worker.waiting import now

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_RETRY_SECONDS = (2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before files that failed their check are looked at again; checking reads them all."""
_LOAD_TRIES = 2
"""A version that breaks the engine is tried again once; then it is out until a newer one is published."""


class WantedWeights:
    """The wanted version; `changed` is called when it, or what may be done about it, changed."""

    def __init__(self, source: WeightSource, changed: Callable[[], None]) -> None:
        self._source = source
        self._changed = changed
        self._poke = asyncio.Event()
        self._manifest: WeightsManifest | None = None
        self._known = False
        self._checks_failed = 0
        self._loads_failed = 0
        self.try_after = 0.0
        """Loop time before which nothing is fetched."""
        self.problem = ""
        """What is wrong with the manifest; for people."""

    @property
    def version(self) -> int | None:
        """Version to serve; 0 = the model itself; None = the manifest could not be read yet."""
        if not self._known:
            return None
        return self._manifest.version if self._manifest else 0

    @property
    def given_up(self) -> bool:
        """The version broke the engine too often."""
        return self._loads_failed >= _LOAD_TRIES

    @property
    def loadable(self) -> bool:
        """Loading it may be tried now."""
        return not self.given_up and now() >= self.try_after

    def poke(self) -> None:
        """Look at the manifest now."""
        self._poke.set()

    async def files(self) -> tuple[Sequence[Path], int]:
        """Checked files and the version they are: the manifest may change while they are fetched.

        Raises:
            WeightsError: they are not there, or not what the manifest says.
        """
        manifest = self._manifest
        if manifest is None:
            return await self._source.base(), 0
        return await self._source.fetch(manifest), manifest.version

    def check_failed(self) -> None:
        """The files were no good: wait before they are read again."""
        self.try_after = now() + _RETRY_SECONDS[min(self._checks_failed, len(_RETRY_SECONDS) - 1)]
        self._checks_failed += 1

    def load_failed(self) -> None:
        """They broke the engine."""
        self._loads_failed += 1

    async def follow(self) -> None:
        """Read the manifest every second until cancelled."""
        while True:
            try:
                self._take(await self._source.manifest())
            except WeightsError as error:
                self._complain(str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._poke.wait()
            self._poke.clear()

    def _take(self, found: WeightsManifest | None) -> None:
        problem = refusal(self._manifest, found)
        self._complain(problem)
        if problem or (self._known and found == self._manifest):
            return
        self._manifest, self._known = found, True
        self._checks_failed, self._loads_failed, self.try_after = 0, 0, 0.0
        self._changed()

    def _complain(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("weights: %s", problem)
        self.problem = problem


def refusal(known: WeightsManifest | None, found: WeightsManifest | None) -> str:
    """Why the manifest `found` cannot follow `known`; empty = it can."""
    if known is None or found == known:
        return ""
    if found is None:
        return f"{MANIFEST} is gone; version {known.version} stays in service"
    if found.version < known.version:
        return (
            f"{MANIFEST} went back from version {known.version} to {found.version}: publish {known.version + 1} or "
            "more; for a new run use another spec.weights.source, or delete the worker pods"
        )
    if found.version == known.version:
        return f"{MANIFEST} names other files for version {found.version}: publish them as {found.version + 1}"
    return ""

"""One loop per PearlRollout: starts it when the rollout appears, clears up when it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_operator.index import Index
    from pearl_operator.loop import RolloutLoop
    from pearl_operator.ports import RolloutKey


@dataclass(slots=True)
class Supervisor:
    """The loops of one process.

    Args:
        index: Which rollouts there are.
        new_loop: Makes the loop of a rollout.
        gone: Called when a rollout is gone.
    """

    index: Index
    new_loop: Callable[[RolloutKey], RolloutLoop]
    gone: Callable[[RolloutKey], None]
    loops: dict[RolloutKey, RolloutLoop] = field(default_factory=dict, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: dict[RolloutKey, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def wake(self, key: RolloutKey) -> None:
        """Something about this rollout changed."""
        loop = self.loops.get(key)
        if loop is not None:
            loop.wake()
        self._woken.set()

    async def run(self) -> None:
        """Starts and ends loops for ever.

        Raises:
            BaseException: What ended a loop that should not end.
        """
        try:
            while True:
                self._woken.clear()
                self._reap()
                self._start()
                await self._woken.wait()
        finally:
            await self._stop()

    def _start(self) -> None:
        for key in self.index.rollouts.keys() - self._tasks.keys():
            loop = self.loops[key] = self.new_loop(key)
            task = self._tasks[key] = asyncio.create_task(loop.run(), name=f"loop {key}")
            task.add_done_callback(lambda _: self._woken.set())

    def _reap(self) -> None:
        for key, task in list(self._tasks.items()):
            if not task.done():
                continue
            del self._tasks[key], self.loops[key]
            self.gone(key)
            task.result()

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

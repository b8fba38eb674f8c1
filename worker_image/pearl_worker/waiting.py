"""Waits on the loop's clock that engine, loans and worker share."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pearl_worker.ports import EngineFaultError, WeightsError

POLL_SECONDS = 0.05
_RESOLUTION_SECONDS = 1e-4
"""A shorter rest of a deadline is none: a clock that cannot tell it would be asked for ever."""
_Result = TypeVar("_Result")


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool | Awaitable[bool]], pause_seconds: float = POLL_SECONDS) -> None:
    """Ask until it holds; engine and device send no events."""
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(pause_seconds)


async def before(deadline: Callable[[], float], work: Awaitable[_Result]) -> _Result:
    """Like `asyncio.timeout_at`, for a deadline that may move closer while the work runs.

    Raises:
        TimeoutError: the deadline passed; the work was cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            remaining = deadline() - now()
            if remaining < _RESOLUTION_SECONDS:
                raise TimeoutError
            await asyncio.wait([task], timeout=min(remaining, POLL_SECONDS))
        return task.result()
    finally:
        task.cancel()


async def never() -> int:
    """No exit code, ever."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    return await future


async def cancel(future: "asyncio.Future[Any]") -> None:
    """Cancel and wait for the end. What failed meanwhile is of no interest; a bug is raised."""
    # Not by awaiting it: that would also swallow a cancellation of the caller.
    future.cancel()
    await asyncio.wait([future])
    error = None if future.cancelled() else future.exception()
    if error and not isinstance(error, EngineFaultError | WeightsError):
        raise error

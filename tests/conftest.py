"""For all tests."""

from __future__ import annotations

import asyncio


def pytest_configure() -> None:
    """Says that the main thread has no event loop.

    Otherwise pytest-asyncio asks for it, which makes one that nobody closes, and its warning fails the run.
    """
    asyncio.set_event_loop(None)

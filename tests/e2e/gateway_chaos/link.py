"""The network between the gateway and one worker: a TCP proxy that can hold bytes, delay hand-offs and be cut."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from pearl_simulator.emulator.serving import accept_no_more

PREFILL, DECODE = b'"do_remote_decode": true', b'"do_remote_prefill": true'
"""What a request of either half of a hand-off has in its body."""
_READ_BYTES = 1 << 16


@dataclass
class Late:
    """The next `count` hand-offs are late: of a prefill the answer, of a decode the request."""

    mark: bytes
    seconds: float
    count: int


class Link:
    """Listens on a port of its own for good, whatever engine is behind it at the moment."""

    def __init__(self) -> None:
        self.target: int | None = None
        """Port on loopback; None = nobody listens there."""
        self.late: Late | None = None
        self.lately = 0
        """Hand-offs that were late."""
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def start(self) -> Link:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def close(self) -> None:
        if self._server is not None:
            await accept_no_more([self._server])
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        """A partition: whatever is sent arrives when it is over, in both directions."""
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            await self._open.wait()
            if self.target is not None:
                await self._join(reader, writer, self.target)
        except OSError:
            pass  # the engine is gone: so is the connection
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", target)
        delays: list[float] = []
        there = asyncio.ensure_future(self._pump(reader, back_writer, delays, forth=True))
        back = asyncio.ensure_future(self._pump(back_reader, writer, delays, forth=False))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (there, back):
                one.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            back_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delays: list[float], *, forth: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if forth:
                    await asyncio.sleep(self._delay(data, delays))
                elif delays:
                    await asyncio.sleep(delays.pop())
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        await self._open.wait()  # nobody hears through a partition that the other side has left

    def _delay(self, data: bytes, delays: list[float]) -> float:
        late = self.late
        if late is None or not late.count or late.mark not in data:
            return 0.0
        late.count -= 1
        self.lately += 1
        if late.mark is DECODE:
            return late.seconds
        delays.append(late.seconds)
        return 0.0

"""How an engine gets KV from another one: within a process by a registry, between processes over a side channel.

The wire between two emulators is theirs alone; what clients see (`kv_transfer_params`) has the fields that vLLM's NIXL
connector answers with.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_CALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Offer:
    """KV that an engine holds for another."""

    tokens: int
    hashing: int
    """State of the token function after the prompt it was computed for."""
    version: str
    """Of the weights it was computed with."""


class KvHolder(Protocol):
    """The side that computed the prompt."""

    engine_id: str

    def claim(self, request_id: str) -> Offer | None:
        """Stop the lease's clock and say what is held; None if nothing is (any more)."""
        ...

    def let_go(self, request_id: str) -> None:
        """The reader has it, or does not want it."""
        ...


class Peers(Protocol):
    """Ways to the engines that `kv_transfer_params` name."""

    async def claim(self, params: dict[str, Any]) -> Offer | None:
        """Ask the holder to keep the KV until it was read; None if it does not hold it or cannot be reached."""
        ...

    async def let_go(self, params: dict[str, Any]) -> None:
        """Tell the holder that it may free the KV."""
        ...


class LocalPeers:
    """Engines of one process, by engine id."""

    def __init__(self) -> None:
        self.engines: dict[str, KvHolder] = {}

    async def claim(self, params: dict[str, Any]) -> Offer | None:
        """See `Peers`."""
        holder = self.engines.get(str(params.get("remote_engine_id")))
        return holder.claim(str(params.get("remote_request_id"))) if holder else None

    async def let_go(self, params: dict[str, Any]) -> None:
        """See `Peers`."""
        holder = self.engines.get(str(params.get("remote_engine_id")))
        if holder:
            holder.let_go(str(params.get("remote_request_id")))


class TcpPeers:
    """Engines elsewhere, by `remote_host` and `remote_port`."""

    async def claim(self, params: dict[str, Any]) -> Offer | None:
        """See `Peers`."""
        answer = await self._call("claim", params)
        return Offer(**answer) if answer else None

    async def let_go(self, params: dict[str, Any]) -> None:
        """See `Peers`."""
        await self._call("let_go", params)

    @staticmethod
    async def _call(verb: str, params: dict[str, Any]) -> dict[str, Any] | None:
        question = {"verb": verb, **{name: params.get(name) for name in ("remote_engine_id", "remote_request_id")}}
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                reader, writer = await asyncio.open_connection(params.get("remote_host"), params.get("remote_port"))
                writer.write(json.dumps(question).encode() + b"\n")
                line = await reader.readline()
                writer.close()
            found: dict[str, Any] | None = json.loads(line)
        except (OSError, TimeoutError, ValueError):
            return None
        return found


async def serve_side_channel(holder: Callable[[], KvHolder], host: str, port: int) -> asyncio.Server:
    """Answer `TcpPeers` of other processes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            question = json.loads(await reader.readline())
            writer.write(json.dumps(_answer(holder(), question)).encode() + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host, port)


def _answer(holder: KvHolder, question: dict[str, Any]) -> dict[str, Any] | None:
    if question["remote_engine_id"] != holder.engine_id:
        return None
    if question["verb"] == "let_go":
        holder.let_go(question["remote_request_id"])
        return None
    offer = holder.claim(question["remote_request_id"])
    return asdict(offer) if offer else None

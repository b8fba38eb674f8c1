"""Calls to the other processes of the gateway, over their Unix sockets."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from pearl_gateway.errors import GatewayError, try_later
from pearl_gateway.processes.status import socket_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pydantic import BaseModel

    M = TypeVar("M", bound=BaseModel)

CALL_SECONDS = 5.0
"""Longest wait for an answer that takes a process no time."""
_AGAIN_SECONDS = 1.0
_HOST = "http://process"
"""Any name will do: the socket says who is meant."""


class Peers:
    """The processes 0 … `count` - 1; this one is `number`."""

    def __init__(self, folder: Path, number: int, count: int) -> None:
        self.number = number
        self.count = count
        self._sessions = [_session(folder, at) for at in range(count)]

    @property
    def others(self) -> Sequence[int]:
        """All but this one."""
        return [at for at in range(self.count) if at != self.number]

    def session(self, process: int) -> aiohttp.ClientSession:
        """Connections to one of them; every URL's host is ignored."""
        return self._sessions[process]

    async def ask(self, process: int, method: str, path: str, answer: type[M], body: BaseModel | None = None) -> M:
        """One call, answered by a message.

        Raises:
            GatewayError: what the process answered instead; 503 `ProcessAway` where it did not.
        """
        return answer.model_validate_json(await self.call(process, method, path, body))

    async def call(
        self, process: int, method: str, path: str, body: BaseModel | None = None, seconds: float = CALL_SECONDS
    ) -> bytes:
        """One call.

        Raises:
            GatewayError: see `ask`.
        """
        content = None if body is None else body.model_dump_json(by_alias=True).encode()
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._sessions[process].request(method, _HOST + path, data=content, timeout=timeout) as response:
                found = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise away(process) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise _refusal(response.status, found)
        return found

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions:
            await session.close()


def away(process: int) -> GatewayError:
    """A process of the gateway does not answer; it is being started again."""
    message = f"process {process} of the gateway is being started again; repeat the request with the same key"
    return try_later("ProcessAway", message, _AGAIN_SECONDS)


def _session(folder: Path, process: int) -> aiohttp.ClientSession:
    connector = aiohttp.UnixConnector(str(socket_of(folder, process)), limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)


def _refusal(status: int, content: bytes) -> GatewayError:
    try:
        said: dict[str, Any] = json.loads(content)["error"]
        seconds = said.get("retryAfterSeconds")
        return GatewayError(status, said["type"], said["message"], retry_after_seconds=seconds, param=said["param"])
    except (ValueError, KeyError, TypeError):
        return GatewayError(status, "ProcessFailed", f"a process of the gateway answered {status}: see its log")

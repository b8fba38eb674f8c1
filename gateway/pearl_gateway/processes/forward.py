"""Passes a client's request on to another process of the gateway, and its answer back as it comes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from pearl_gateway.asgi import error_response, until_client_leaves
from pearl_gateway.processes.peers import away

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Receive, Scope, Send

    from pearl_gateway.processes.peers import Peers

_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect")
)
_REQUEST_OWN = _HOP_BY_HOP | {b"content-length"}
_ANSWER_OWN = _HOP_BY_HOP | {b"date", b"server"}
"""Written by the server that answers the client."""
_SKIPPED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that the HTTP client would add on its own."""
_LOG = logging.getLogger(__name__)


async def forward(  # noqa: PLR0913, PLR0917 - an ASGI call, and where it goes
    peers: Peers, process: int, scope: Scope, body: bytes, receive: Receive, send: Send
) -> None:
    """Answer one request by what `process` answers; when the client leaves, that request ends too.

    A process that dies before its answer begins is told as 503; one that dies later breaks the client's connection, as
    the death of a gateway of one process does.
    """
    await until_client_leaves(_exchange(peers, process, scope, body, receive, send), receive)


async def _exchange(  # noqa: PLR0913, PLR0917 - as `forward`
    peers: Peers, process: int, scope: Scope, body: bytes, receive: Receive, send: Send
) -> None:
    begun = False
    try:
        async with peers.session(process).request(
            scope["method"],
            _url(scope),
            data=body or None,
            headers=_text(scope["headers"], _REQUEST_OWN),
            skip_auto_headers=_SKIPPED,
            allow_redirects=False,
        ) as response:
            headers = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in _ANSWER_OWN]
            begun = True
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if not begun:
            await error_response(away(process))(scope, receive, send)
            return
        # Without the end of the body the server closes the connection.
        _LOG.warning("process %d was lost in the middle of an answer: %r", process, error)


def _url(scope: Scope) -> URL:
    query = scope["query_string"]
    path = scope["raw_path"] + (b"?" + query if query else b"")
    return URL("http://process" + path.decode("latin-1"), encoded=True)


def _text(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in without]

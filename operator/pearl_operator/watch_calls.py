"""kopf's requests are told as ours are: it is given an aiohttp session that traces them, its own way for sessions.

What a watch brings is counted where kopf reads the answer's body; nothing is taken from it or added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
import kopf

from pearl_operator.calls import Receiver
from pearl_operator.errors import described

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import SimpleNamespace

    from yarl import URL

    from pearl_operator.calls import Calls, Sent

_OK: Final = 200


@dataclass(frozen=True, kw_only=True)
class TracedSession(kopf.AiohttpSession):
    """Equal where the credentials are: kopf takes none again that the API server has refused."""

    aiohttp_session: aiohttp.ClientSession = field(compare=False)
    credentials: kopf.ConnectionInfo


def session_of(found: kopf.ConnectionInfo, calls: Calls) -> TracedSession:
    """A session as kopf makes one of these credentials, with a trace; kopf closes it."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
        headers=found.as_http_headers(),
        proxy=found.proxy_url,
        trust_env=found.trust_env,
        trace_configs=[trace_of(calls)],
    )
    return TracedSession(
        server=found.server,
        priority=found.priority,
        default_namespace=found.default_namespace,
        expiration=found.expiration,
        aiohttp_session=session,
        credentials=found,
    )


def trace_of(calls: Calls) -> aiohttp.TraceConfig:
    """Tells `calls` of each request: of a watch when it begins and ends, of others when their answer begins."""

    async def started(_: Any, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams) -> None:
        context.sent = calls.sent(Receiver.API_SERVER, params.method, params.url.path)

    async def answered(_: Any, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        response = params.response
        if _is_watch(params.url) and response.status == _OK:
            calls.watch_began(context.sent)
            stream = _Stream(response.content, calls, context.sent)
            response.content = cast("aiohttp.StreamReader", stream)
        else:
            calls.tell(context.sent, str(response.status))

    async def failed(_: Any, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams) -> None:
        calls.tell(context.sent, "none", described(params.exception))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(started)
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace


def _is_watch(url: URL) -> bool:
    return url.query.get("watch") == "true"


class _Stream:
    """The body of a watch's answer; one event is one line."""

    def __init__(self, content: aiohttp.StreamReader, calls: Calls, sent: Sent) -> None:
        self._content = content
        self._calls = calls
        self._sent = sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As kopf reads it."""
        resource = self._sent.url.rpartition("/")[2]
        events, failure = 0, None
        try:
            async for chunk in self._content.iter_chunked(size):
                brought = chunk.count(b"\n")
                events += brought
                self._calls.watch_brought(resource, brought, len(chunk))
                yield chunk
        except Exception as error:
            failure = described(error)
            raise
        finally:
            self._calls.watch_ended(self._sent, resource, events, failure)

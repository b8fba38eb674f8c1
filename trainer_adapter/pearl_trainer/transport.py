"""Between the core's requests and httpx2, for both drivers."""

from __future__ import annotations

from typing import Any

import httpx2

from pearl_trainer.sansio import NoReply, Reply, Request

# Everything that PEARL talks to is inside the cluster; a proxy of the environment is never on the way there.
LOANS: dict[str, Any] = {
    "limits": httpx2.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=30.0),
    "trust_env": False,
}
"""Options of the client for offers, heartbeats and reclaims."""
BULK: dict[str, Any] = {
    "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0),
    "trust_env": False,
}
"""Options of the client for turns and batches: the caller decides how many there are at once."""
NO_REPLY = (httpx2.HTTPError, httpx2.InvalidURL, OSError, OverflowError)
"""What means that there was no answer: network, timeout, or an address or port that is none."""


def arguments(request: Request) -> dict[str, Any]:
    """Keyword arguments of `client.request`."""
    headers = dict(request.headers)
    if request.token is not None:
        headers["Authorization"] = f"Bearer {request.token}"
    connect = min(request.connect_seconds, request.timeout_seconds)
    return {
        "method": request.method,
        "url": request.url,
        "json": request.body,
        "headers": headers,
        "timeout": httpx2.Timeout(request.timeout_seconds, connect=connect),
    }


def reply(response: httpx2.Response) -> Reply:
    """The answer, with its JSON decoded where it is JSON."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return Reply(response.status_code, body)


def no_reply(error: Exception) -> NoReply:
    """Why there was no answer."""
    return NoReply(f"{type(error).__name__} {error}".strip())

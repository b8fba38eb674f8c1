"""The `Gateway` port over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api import tokens
from pearl_api.wire.gateway import GatewayStats
from pearl_operator.http_json import HttpJson, parse

if TYPE_CHECKING:
    from pearl_operator.ports import Keys, Resolver, RolloutKey


class GatewayClient:
    """See `ports.Gateway`."""

    def __init__(self, http: HttpJson, keys: Keys, resolver: Resolver) -> None:
        self._http = http
        self._keys = keys
        self._resolver = resolver

    async def stats(self, rollout: RolloutKey) -> GatewayStats:
        """One merged read of all gateway processes."""
        token = tokens.derive(await self._keys.root_key(rollout), "gateway")
        url = f"{self._resolver.gateway(rollout)}/v1/stats"
        return parse(GatewayStats, await self._http.call("GET", url, token=token), f"statistics of {rollout}")

"""The `Gateway` port over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_api import tokens
from pearl_api.wire.gateway import GatewayStats
from pearl_operator.calls import Receiver
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
        raw = await self._http.call(Receiver.GATEWAY, "GET", url, token=token)
        return parse(GatewayStats, raw, f"statistics of {rollout}")

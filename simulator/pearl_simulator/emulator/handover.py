"""KV that an emulated engine holds for other engines, each under a lease."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pearl_simulator.emulator import tokens
from pearl_simulator.emulator.peers import Offer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_simulator.emulator.blocks import BlockPool
    from pearl_simulator.emulator.clock import Clock
    from pearl_simulator.emulator.config import EngineConfig
    from pearl_simulator.emulator.metrics import EngineMetrics
    from pearl_simulator.emulator.sequence import Sequence


@dataclass(slots=True)
class _Held:
    blocks: list[int]
    offer: Offer
    lease: asyncio.Task[None] | None
    """None once a reader came: then it is kept until the reader is done."""


class Handover:
    """Blocks of finished prompts that wait to be read."""

    def __init__(
        self, config: EngineConfig, engine_id: str, pool: BlockPool, clock: Clock, metrics: EngineMetrics
    ) -> None:
        self._config = config
        self._engine_id = engine_id
        self._pool = pool
        self._clock = clock
        self._metrics = metrics
        self._held: dict[str, _Held] = {}
        self._expired: dict[str, Offer] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when blocks became free."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, sequence: Sequence, blocks: list[int], version: str) -> dict[str, Any]:
        """Keep these blocks for whoever brings the returned `kv_transfer_params`; fields as NIXL's."""
        name, prompt = sequence.internal_id, sequence.prompt
        offer = Offer(len(prompt), tokens.prompt_state(prompt), version)
        self._held[name] = _Held(blocks, offer, asyncio.ensure_future(self._lease(name)))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks[: -(-sequence.computed // self._pool.size)]],
            "remote_engine_id": self._engine_id,
            "remote_request_id": name,
            "remote_host": self._config.host,
            "remote_port": self._config.side_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": sequence.computed,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": sequence.cached or 0,
        }

    async def _lease(self, name: str) -> None:
        await self._clock.sleep(self._config.lease_seconds)
        self._expired[name] = self._held[name].offer
        self._free(name)
        self._metrics.lease_expired()

    def _free(self, name: str) -> None:
        self._pool.release(self._held.pop(name).blocks)
        self.on_change()

    def claim(self, name: str) -> Offer | None:
        """A reader came; see `peers.KvHolder`."""
        held = self._held.get(name)
        if held is not None:
            if held.lease is not None:
                held.lease.cancel()
                held.lease = None
            return held.offer
        late = self._expired.get(name)
        if late is None:
            return None
        self._metrics.late_notification()
        # What another sequence left in the blocks: some other state than the prompt's.
        return Offer(late.tokens, late.hashing ^ 2, late.version) if self._config.expired_kv_corrupts else None

    def let_go(self, name: str) -> None:
        """The reader is done."""
        held = self._held.get(name)
        if held is not None:
            if held.lease is not None:
                held.lease.cancel()
            self._free(name)

    def close(self) -> None:
        """Forget everything."""
        for held in self._held.values():
            if held.lease is not None:
                held.lease.cancel()
        self._held.clear()

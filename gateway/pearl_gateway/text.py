"""Text from token ids and back, by whichever engine answers: the gateway has no tokenizer of its own."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from pearl_gateway.errors import (
    EngineClosedError,
    EngineFaultError,
    EngineStalledError,
    EngineUnreachableError,
    try_later,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pearl_gateway.engine import EngineClient
    from pearl_gateway.fleet import Fleet

_LOG = logging.getLogger(__name__)

PROMPT_TAIL = 16
"""Prompt tokens that are enough to seed the decoding of what follows them."""
_REMEMBERED = 512
_WAIT_SECONDS = 0.25
_MOST_FAULTS = 2
"""Engines that may answer 5xx to one text request before it is given back."""


class TextService:
    """Calls render and derender on any worker; remembers small answers that depend on nothing but the request."""

    def __init__(
        self,
        fleet: Fleet,
        engine: EngineClient,
        clock: Callable[[], float],
        patience_seconds: float,
    ) -> None:
        self._fleet = fleet
        self._engine = engine
        self._clock = clock
        self._patience = patience_seconds
        self._memory: OrderedDict[str, Any] = OrderedDict()

    async def call(self, path: str, body: Any) -> Any:
        """POST to an engine that answers; waits for one.

        Raises:
            EngineRefusedError: the request itself is wrong.
            GatewayError: no worker answered in time (retryable).
        """
        deadline = self._clock() + self._patience
        faults = 0
        while True:
            for worker in self._fleet.talkable():
                if worker.facts.url is None:
                    continue
                try:
                    return await self._engine.post(worker.facts.url, path, body)
                except EngineFaultError as error:
                    # It may be the request that is odd: one client must not take the fleet out of service.
                    faults += 1
                    if faults == _MOST_FAULTS:
                        raise try_later("EngineFault", f"engines fail on this request: {error}", 5.0) from None
                except EngineUnreachableError as error:
                    _LOG.warning("%s failed on %s, ejected until it answers: %s", worker.facts.pod, path, error)
                    self._fleet.eject(worker)
                except EngineClosedError:
                    self._fleet.close_for(worker, _WAIT_SECONDS)
                except EngineStalledError:
                    continue
            left = deadline - self._clock()
            if left <= 0:
                raise try_later("NoWorker", f"no worker became ready within {self._patience:.0f} s", 5.0)
            await self._fleet.wait_change(min(left, _WAIT_SECONDS))

    async def remembered(self, key: str, path: str, body: Any) -> Any:
        """`call`, or its former answer under `key`."""
        answer = self.recall(key)
        if answer is None:
            answer = await self.call(path, body)
            self.remember(key, answer)
        return answer

    def recall(self, key: str) -> Any:
        """What is remembered under `key`, None if nothing is."""
        if key in self._memory:
            self._memory.move_to_end(key)
        return self._memory.get(key)

    def remember(self, key: str, value: Any) -> None:
        """Keep a small value; the least used one is forgotten when there are many."""
        self._memory[key] = value
        if len(self._memory) > _REMEMBERED:
            self._memory.popitem(last=False)

    async def decode(self, prompt_tail: list[int], token_ids: list[int]) -> str:
        """Text of generated tokens that follow `prompt_tail`, special tokens left out."""
        if not token_ids:
            return ""
        body = {
            "generate_responses": [{"choices": [{"index": 0, "token_ids": token_ids}]}],
            "prompt_token_ids": [prompt_tail],
        }
        answer = await self.call("/v1/completions/derender", body)
        return str(answer["choices"][0]["text"])

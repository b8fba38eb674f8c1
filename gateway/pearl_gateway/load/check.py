"""Compares every played turn with the answer of an undisturbed engine to the same token ids."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp

from pearl_gateway.load.client import LoadError

if TYPE_CHECKING:
    from pearl_gateway.load.replay import Played, Progress

_AT_ONCE = 8
_SECONDS = 300.0


class Reference:
    """An engine (or gateway) that nothing is done to."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str | None) -> None:
        self._session = session
        self._url = url.rstrip("/") + "/inference/v1/generate"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def answer(self, prompt: list[int], tokens: int) -> list[int]:
        """Its greedy answer of `tokens` tokens.

        Raises:
            LoadError: it does not answer.
        """
        sampling = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        body = {"token_ids": prompt, "sampling_params": sampling}
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        try:
            async with self._session.post(self._url, json=body, headers=self._headers, timeout=timeout) as response:
                text = await response.text()
                response.raise_for_status()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LoadError(f"the reference {self._url} does not answer: {error}") from error
        found: list[int] = json.loads(text)["choices"][0]["token_ids"]
        return found


async def check_all(reference: Reference, progress: Progress) -> None:
    """Check all turns; `progress.wrong` names those that differ and where."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(played: Played) -> None:
        prompt = played.prompt or progress.prompts.get((played.trajectory, played.turn))
        if prompt is None:
            return  # its log was wrong, which is already told
        async with slots:
            expected = await reference.answer(prompt, len(played.token_ids))
        progress.checked += 1
        if expected != played.token_ids:
            pairs = zip(expected, played.token_ids, strict=False)
            at = next((at for at, (left, right) in enumerate(pairs) if left != right), len(expected))
            progress.wrong.append(f"{played.trajectory} turn {played.turn}: differs from token {at} of its answer")

    try:
        async with asyncio.TaskGroup() as tasks:
            for played in progress.played:
                tasks.create_task(one(played))
    except* LoadError as group:
        raise group.exceptions[0] from None

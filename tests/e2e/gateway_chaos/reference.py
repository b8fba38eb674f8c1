"""Engines that nothing is done to: for emulated ones their function, for real ones a vLLM per set of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp

from pearl_simulator.emulator import tokens

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 300.0


class EmulatedReference:
    """The token function."""

    async def continues(self, prompt: list[int], version: int, count: int) -> tuple[list[int], list[float]]:
        return _continued(tokens.prompt_state(prompt), version, count)

    def text(self, token_ids: list[int]) -> str | None:
        """One character per generated token."""
        return "".join(chr(33 + token) for token in token_ids)

    async def explain(self, prompt: list[int], got: list[int], newest: int) -> str:
        """Other weights, KV of other weights, or KV whose lease had ended: the emulator marks them."""
        state = tokens.prompt_state(prompt)
        for mark, what in ((0, ""), (1, " on KV of other weights"), (2, " on KV whose lease had ended")):
            for version in range(newest + 1):
                if _continued(state ^ mark, version, len(got))[0] == got:
                    return f": they are version {version}'s{what}"
        return ""


def _continued(state: int, version: int, count: int) -> tuple[list[int], list[float]]:
    salt, found, logprobs = tokens.weights_salt(str(version)), list[int](), list[float]()
    for _ in range(count):
        token = tokens.next_token(state, salt)
        found.append(token)
        logprobs.append(tokens.top_logprob(state, salt))
        state = tokens.push(state, token)
    return found, logprobs


class RealReference:
    """Engines with the weights of every version; `of` gives a version's engine."""

    def __init__(self, session: aiohttp.ClientSession, of: Callable[[int], str], token: str) -> None:
        self._session = session
        self._of = of
        self._headers = {"Authorization": f"Bearer {token}"}

    async def continues(self, prompt: list[int], version: int, count: int) -> tuple[list[int], list[float]]:
        sampling = {"max_tokens": count, "temperature": 0.0, "ignore_eos": True, "logprobs": 0}
        body = {"token_ids": prompt, "sampling_params": sampling}
        url, timeout = self._of(version) + "/inference/v1/generate", aiohttp.ClientTimeout(total=_SECONDS)
        async with self._session.post(url, json=body, headers=self._headers, timeout=timeout) as response:
            response.raise_for_status()
            choice: dict[str, Any] = (await response.json())["choices"][0]
        return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]

    def text(self, token_ids: list[int]) -> str | None:
        """No stop strings are sent to real engines."""
        del token_ids
        return None

    async def explain(self, prompt: list[int], got: list[int], newest: int) -> str:
        """Whether other weights give them."""
        for version in range(max(0, newest - 1), newest + 1):
            if (await self.continues(prompt, version, len(got)))[0] == got:
                return f": they are version {version}'s, or those of another one with its weights"
        return ""

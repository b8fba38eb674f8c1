"""The engine's HTTP interface, spoken with the admin token; `ports.EngineClient` says what each call means."""

import contextlib
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from pearl_worker.ports import CanaryError, EngineFaultError, GateState

_CALL_SECONDS = 10.0
_HEALTH_SECONDS = 5.0
_CANARY_SECONDS = 120.0
_WEIGHTS_SECONDS = 600.0
_CANARY_TOKENS = 4
_LEAST_LOGPROB = -25.0
"""The likeliest token of a vocabulary of N cannot be less likely than 1/N. vLLM writes NaN as -9999."""


class HttpEngineClient:
    """Talks to the engine on `base_url`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, model: str, admin_token: str) -> None:
        self._session = session
        self._base_url = base_url
        self._model = model
        self._headers = {"Authorization": f"Bearer {admin_token}"}

    async def healthy(self) -> bool:
        """Whether `/health` answers 200."""
        with contextlib.suppress(EngineFaultError):
            await self._call("GET", "/health", seconds=_HEALTH_SECONDS)
            return True
        return False

    async def canary(self) -> str:
        """Generate a few tokens, check that they are all there and likely, and return the version they carry."""
        sampling = {"max_tokens": _CANARY_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        body = {"model": self._model, "token_ids": [1], "sampling_params": sampling}
        answer = await self._call("POST", "/inference/v1/generate", json=body, seconds=_CANARY_SECONDS)
        return _checked_version(answer)

    async def gate(self, *, open_: bool | None = None, version: int | None = None) -> GateState:
        """Read the gate, or move it and read it."""
        if open_ is None:
            answer = await self._call("GET", "/pearl/gate")
        else:
            served = "" if version is None else f"&version={version}"
            answer = await self._call("POST", f"/pearl/gate?open={str(open_).lower()}{served}")
        return GateState(answer["open"], answer["in_flight"], answer["pinned_seconds"], answer.get("pinning", 0))

    async def abort_all(self) -> int:
        """Abort everything inside."""
        return int((await self._call("POST", "/abort_requests", json={})).get("aborted", 0))

    async def reset_prefix_cache(self) -> bool:
        """Forget cached KV, if none of it is held."""
        return bool((await self._call("POST", "/reset_prefix_cache"))["success"])

    async def pause(self, mode: str) -> None:
        """Stop scheduling."""
        # By default vLLM takes the KV of what it freezes, and would compute it again under the new weights.
        kept = "&clear_cache=false" if mode == "keep" else ""
        await self._call("POST", f"/pause?mode={mode}{kept}")

    async def resume(self) -> None:
        """Schedule again."""
        await self._call("POST", "/resume")

    async def prepare_weight_updates(self) -> None:
        """Initialise the weight-transfer backend."""
        await self._call("POST", "/init_weight_transfer_engine", json={"init_info": {}})

    async def start_weight_update(self) -> None:
        """Take the layers apart."""
        await self._call("POST", "/start_weight_update", seconds=_WEIGHTS_SECONDS)

    async def load_weight_files(self, paths: Sequence[Path]) -> None:
        """Load files."""
        body = {"update_info": {"paths": [str(path) for path in paths]}}
        await self._call("POST", "/update_weights", json=body, seconds=_WEIGHTS_SECONDS)

    async def finish_weight_update(self, version: int) -> None:
        """Put the layers together."""
        body = {"weight_version": str(version)}
        await self._call("POST", "/finish_weight_update", json=body, seconds=_WEIGHTS_SECONDS)

    async def label_weights(self, version: int) -> None:
        """Name what is loaded."""
        await self._call("POST", "/update_weight_version", json={"new_version": str(version)})

    async def sleep(self, level: int) -> None:
        """Free device memory."""
        await self._call("POST", f"/sleep?level={level}&mode=abort", seconds=_WEIGHTS_SECONDS)

    async def wake(self, tags: str | None = None) -> None:
        """Take device memory back."""
        await self._call("POST", f"/wake_up?tags={tags}" if tags else "/wake_up", seconds=_WEIGHTS_SECONDS)

    async def _call(self, method: str, path: str, *, json: Any = None, seconds: float = _CALL_SECONDS) -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds)
        url = self._base_url + path
        try:
            async with self._session.request(method, url, json=json, headers=self._headers, timeout=timeout) as answer:
                text = await answer.text()
                if answer.status != HTTPStatus.OK:
                    raise EngineFaultError(f"{method} {path} answered {answer.status}: {text[:500]}")
                is_json = answer.content_type == "application/json" and text
                return await answer.json() if is_json else text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineFaultError(f"{method} {path} failed: {error or 'timed out'}") from error


def _checked_version(answer: Any) -> str:
    """The version of a canary's answer. Raises CanaryError where tokens are missing or not even numbers came out."""
    try:
        choice = answer["choices"][0]
        tokens, entries = choice["token_ids"], choice["logprobs"]["content"]
        logprobs = [entry["logprob"] for entry in entries]
        (version,) = {str(span["version"]) for span in choice["weight_versions"]}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CanaryError(f"the canary's answer is not whole: {str(answer)[:500]}") from error
    if len(tokens) != _CANARY_TOKENS:
        raise CanaryError(f"the canary asked for {_CANARY_TOKENS} tokens and got {tokens}")
    # Broken weights make the engine compute NaN, from which it samples without a complaint.
    if not all(isinstance(one, int | float) and one >= _LEAST_LOGPROB for one in logprobs):
        raise CanaryError(f"the canary's logprobs are {logprobs}: the weights are damaged")
    return version

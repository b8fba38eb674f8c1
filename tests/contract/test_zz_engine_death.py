"""Last of all: a generation while the weights are in pieces ends an engine, vLLM's as the emulated one's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import RealEngine

pytestmark = pytest.mark.timeout(600)


def test_generation_during_a_weight_update_is_the_engines_end(engines: list[RealEngine]) -> None:
    engine = engines[0]  # the other one may be dead already
    engine.call("POST", "/start_weight_update")
    answer = engine.call("POST", "/v1/completions", {"model": "tiny", "prompt": [1], "max_tokens": 4})
    assert (answer.status_code, answer.json()["error"]) == (
        500,
        {
            "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        },
    )
    assert engine.process is not None
    end = time.monotonic() + 30
    while engine.process.poll() is None:
        assert time.monotonic() < end, "it did not end"
        time.sleep(0.05)
    with pytest.raises(httpx.TransportError):
        engine.call("GET", "/health")

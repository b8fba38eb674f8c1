"""Whatever is sent to any path: no 500, no hang, nothing left behind, and errors that OpenAI clients can read.

Requests are made from the gateway's OpenAPI document, then spoilt: fields of another kind, missing, out of bounds.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pearl_api.gateway_openapi import gateway_api
from pearl_api.names import Activity, Role
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.settings import Limits
from pearl_simulator.emulator import EngineConfig, emulated_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import httpx

    from conftest import Bench

    Benches = Callable[..., AbstractAsyncContextManager[Bench]]

DOCUMENT = gateway_api()
SCHEMAS = DOCUMENT["components"]["schemas"]
BATCH = 3
SECONDS = 10.0
"""No request of the fuzzer may take longer: engines answer at once."""
LIMITS = Limits(queue_seconds=0.2, stall_seconds=5.0, max_model_len=128, max_turns=64, idle_seconds=0.0)


def junk() -> st.SearchStrategy[Any]:
    """Any JSON, with what programs get wrong most."""
    numbers = st.sampled_from([-1, 0, 2, 10**9, 10**30, -(10**30), 1e308, 0.5, True, False])
    texts = st.sampled_from(["", "x", "1.5", "\x00", "\ud800", "é" * 50, "../..", "t1", "NaN"])
    leaves = st.none() | numbers | texts
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


def by_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one per kind
    """Values that a JSON schema allows, small ones."""
    if "$ref" in schema:
        return by_schema(SCHEMAS[schema["$ref"].rsplit("/", 1)[-1]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([by_schema(one) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object":
            fields = {name: by_schema(one) for name, one in schema.get("properties", {}).items()}
            needed = schema.get("required", [])
            return st.fixed_dictionaries(
                {name: fields[name] for name in needed},
                optional={name: one for name, one in fields.items() if name not in needed},
            )
        case "array":
            return st.lists(by_schema(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
        case "integer":
            least = schema.get("minimum", 0)
            return st.integers(int(least), min(int(least) + 6, int(schema.get("maximum", 10**9))))
        case "number":
            return st.sampled_from([one for one in (0.0, 0.5, 1.0) if one > schema.get("exclusiveMinimum", -1)])
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            named = "pattern" in schema
            return st.sampled_from(["t1", "t2", "g1"]) if named else st.sampled_from(["hello", "a b", "é"])


@st.composite
def spoilt(draw: st.DrawFn, body: Any) -> Any:
    """`body`, often with a field replaced, dropped or added, at any depth."""
    if not isinstance(body, dict) or not draw(st.booleans()):
        return body
    name = draw(st.sampled_from([*body, "sampling_params", "stop", "n", "tools", "stream", "pearl", "logprobs"]))
    how = draw(st.sampled_from(["inside", "replace", "drop"]))
    rest = {key: value for key, value in body.items() if key != name}
    if how == "drop":
        return rest
    return {**rest, name: draw(spoilt(body.get(name))) if how == "inside" else draw(junk())}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """One HTTP request to any documented path."""
    path = draw(st.sampled_from(sorted(DOCUMENT["paths"])))
    method, operation = draw(st.sampled_from(sorted(DOCUMENT["paths"][path].items(), key=lambda item: item[0])))
    step = draw(st.sampled_from([str(BATCH), "7", "x", "9" * 5000, "-1", "%00"]))
    path = path.replace("{step}", step).replace("{id}", draw(st.sampled_from(["t1", "no/such", "%ff"])))
    numbers = st.sampled_from(["0", "1", "2", "-1", "x", "9" * 40])
    identity = {
        "X-Pearl-Trajectory": st.sampled_from(["t1", "t2", "bad name"]),
        "X-Pearl-Turn": numbers,
        "X-Pearl-Attempt": numbers,
        "X-Pearl-Parent-Turn": numbers,
        "X-Pearl-Group": st.sampled_from(["g1", "g2"]),
        "X-Pearl-Class": st.sampled_from(["train", "eval", "Train"]),
    }
    content = b""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = draw(spoilt(draw(by_schema(schema))))
        if isinstance(body, dict) and "waitSeconds" in body:
            body["waitSeconds"] = 0
        content = json.dumps(body).encode()
        content = draw(st.sampled_from([content] * 12 + [b"", content[:-1], b"[" * 3000, b"\xff", b"null"]))
    return {
        "method": method.upper(),
        "url": path,
        "content": content,
        "headers": draw(st.fixed_dictionaries({}, optional=identity)),
    }


@asynccontextmanager
async def fuzzed(benches: Benches) -> AsyncIterator[Bench]:
    """A gateway before two emulated engines, one request to which takes milliseconds."""
    async with emulated_fleet(EngineConfig(), 2) as engines, benches(LIMITS) as bench:
        for name, engine in zip("ab", engines, strict=True):
            facts = WorkerFacts(name, name, engine.url, None, Role.COLOCATED, 0, Activity.ACTIVE, ready=True)
            bench.gateway.fleet.upsert(facts)
        opened = {"step": BATCH, "groups": 2, "groupSize": 2}
        assert (await bench.client.post("/v1/batches", json=opened)).status_code == 200
        yield bench


def check_answer(answer: httpx.Response) -> None:
    """It is a success, or an error that says what is wrong."""
    if answer.status_code < 400:
        return
    error = answer.json()["error"]
    assert answer.status_code != 500, error
    assert error["code"] == answer.status_code
    assert len(error["message"]) > 8, error
    assert error["type"]
    if answer.status_code == 503:
        assert "retry-after" in answer.headers


async def ask(bench: Bench, request: dict[str, Any]) -> None:
    """One request, and what must hold after it."""
    async with asyncio.timeout(SECONDS):
        answer = await bench.client.request(**request)
    check_answer(answer)
    gateway = bench.gateway
    assert gateway.tally.turns_in_flight == 0
    assert [worker.in_flight for worker in gateway.fleet.workers.values()] == [0, 0]
    assert not [one.id for one in gateway.sessions.live.values() if one.ephemeral or (not one.turns and not one.ids)]
    assert not [worker.facts.pod for worker in gateway.fleet.workers.values() if worker.ejected]


def run_fuzz(benches: Benches, examples: int) -> None:
    loop = asyncio.new_event_loop()
    frame = fuzzed(benches)
    bench = loop.run_until_complete(frame.__aenter__())
    tasks = len(asyncio.all_tasks(loop))

    @settings(
        max_examples=examples,
        derandomize="PEARL_FUZZ_RANDOM" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(requests())
    def fuzz(request: dict[str, Any]) -> None:
        loop.run_until_complete(ask(bench, request))

    async def left_over() -> None:
        await bench.until(lambda: len(asyncio.all_tasks(loop)) <= tasks + 1)
        bench.gateway.expire()
        assert bench.gateway.sessions.live == {}
        assert bench.gateway.permits.in_flight() == 0
        assert bench.gateway.tally.lost_turns == 0

    try:
        fuzz()
        loop.run_until_complete(left_over())
    finally:
        loop.run_until_complete(frame.__aexit__(None, None, None))
        loop.close()


def test_no_request_breaks_the_gateway_or_leaves_anything_behind(benches: Benches) -> None:
    run_fuzz(benches, 150)


@pytest.mark.slow
def test_no_request_of_many_breaks_the_gateway_or_leaves_anything_behind(benches: Benches) -> None:
    run_fuzz(benches, 3_000)

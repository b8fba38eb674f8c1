"""Requests to any path of the gateway, made from its OpenAPI document and then spoilt; a gateway to send them to."""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from pearl_api.gateway_openapi import gateway_api
from pearl_api.names import Activity, Role
from pearl_gateway.fleet import WorkerFacts
from pearl_gateway.settings import Limits
from pearl_simulator.emulator import EngineConfig, emulated_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pearl_simulator.emulator import EmulatedEngine

DOCUMENT = gateway_api()
SCHEMAS = DOCUMENT["components"]["schemas"]
BATCH = 3
SECONDS = 10.0
"""No request of the fuzzer may take longer: engines answer at once."""
LIMITS = Limits(queue_seconds=0.2, stall_seconds=5.0, max_model_len=128, max_turns=64, idle_seconds=0.0)


def fuzzing(examples: int, *, shrink: bool) -> settings:
    """So many examples, the same ones each time unless PEARL_FUZZ_RANDOM is set."""
    return settings(
        max_examples=examples,
        derandomize="PEARL_FUZZ_RANDOM" not in os.environ,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )


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
async def fuzzed(benches: Any, config: EngineConfig | None = None) -> AsyncIterator[tuple[Any, list[EmulatedEngine]]]:
    """A gateway before two emulated engines, one request to which takes milliseconds."""
    async with emulated_fleet(config or EngineConfig(), 2) as engines, benches(LIMITS) as bench:
        for name, engine in zip("ab", engines, strict=True):
            facts = WorkerFacts(name, name, engine.url, None, Role.COLOCATED, 0, Activity.ACTIVE, ready=True)
            bench.gateway.fleet.upsert(facts)
        opened = {"step": BATCH, "groups": 2, "groupSize": 2}
        assert (await bench.client.post("/v1/batches", json=opened)).status_code == 200
        yield bench, engines

"""Answers of an engine and of the gateway before it, held against each other field by field.

EXCEPTIONS are the known differences; docs/gateway.md shows them as a table.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

ABSENT = "absent"
GROWING = ("text", "content", "reasoning", "arguments")
Json = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One field of one answer that is not the same."""

    field: str
    """Its path without indices; of a stream: of the joined answer."""
    engine: Any
    gateway: Any


@dataclass(frozen=True)
class Row:
    """One documented exception."""

    what: str
    engine: str
    gateway: str
    why: str
    fields: str
    """Regular expression of the paths."""
    holds: Callable[[Difference], bool]
    shown_by: str
    """A call where it is to be seen."""
    only: tuple[str, ...] = ()
    """The calls that it is for; none = all."""
    parsers: bool = False
    """To be seen only where the engine has parsers."""


def always(_found: Difference) -> bool:
    return True


NOT_BEGUN = ("stream out of vocabulary", "ids stream of too many logprobs")
OWN_CHECKS = ("BadRequest", "ContextLength", "ModelUnknown")
CARRIED_OVER_NOT = ("echo", "suffix", "prompt logprobs", "ids prompt logprobs", "beam search", "ids as text")
EXCEPTIONS = (
    Row(
        "`id`, `request_id`",
        "the engine's",
        "`trajectory/turn/attempt`",
        "they name the turn; a retry of the key gets the same",
        r"body\.(id|request_id)",
        lambda found: str(found.gateway).count("/") == 2,
        "text",
    ),
    Row(
        "`created`",
        "when it was asked",
        "when it answered; in a stream, when it began",
        "an engine may be asked several times for one answer",
        r"body\.created",
        lambda found: 0 <= found.gateway - found.engine <= 60,
        "chat default length",
    ),
    Row(
        "fields that are null",
        "null",
        "left out",
        "clients read both alike",
        r"body\..*",
        lambda found: found.engine is None and found.gateway is ABSENT,
        "chat",
    ),
    Row(
        "`system_fingerprint`",
        "the engine's",
        "left out",
        "an answer may come from several engines: the export's segments name them",
        r"body\.system_fingerprint",
        lambda found: found.gateway is ABSENT,
        "text",
    ),
    Row(
        "`weight_versions[].version`",
        "label, `default` at first",
        "number of the manifest, 0 at first",
        "trainers compute with it",
        r"body\.choices\.weight_versions\.version",
        lambda found: (found.engine, found.gateway) == ("default", 0),
        "ids",
    ),
    Row(
        "`error.message`, `.type`, `.param` of what the gateway checks itself",
        "vLLM's words",
        "one sentence that names the field, a reason in CamelCase",
        "status and `code` are the same; what the engine finds is passed on as it is",
        r"body\.error\.(message|type|param)",
        always,
        "no samples",
    ),
    Row(
        "`echo`, `suffix`, `best_of`, `prompt_logprobs`, `use_beam_search`, `prompt_embeds`, `output_mode: text`",
        "served",
        "400",
        "they do not fit a turn of token ids that may be resumed elsewhere",
        r"status|type|body.*",
        lambda found: found.field != "status" or found.gateway == 400,
        "echo",
        CARRIED_OVER_NOT,
    ),
    Row(
        "a stream that the engine refuses before its first token",
        "200, an error event",
        "400",
        "it is known before the answer begins",
        r"status|type|body\.(usages|end|choices)",
        lambda found: found.field != "status" or (found.engine, found.gateway) == (200, 400),
        "stream out of vocabulary",
        NOT_BEGUN,
    ),
    Row(
        "`n` above 1 with temperature 0",
        "400",
        "n equal answers",
        "each sample is a turn of its own",
        r"status|body.*",
        lambda found: found.field != "status" or (found.engine, found.gateway) == (400, 200),
        "text greedy samples",
        ("text greedy samples",),
    ),
    Row(
        "`sampling_params` left out",
        "400",
        "the engine's defaults",
        "every one of them has a default",
        r"status|body.*",
        lambda found: found.field != "status" or (found.engine, found.gateway) == (400, 200),
        "ids no parameters",
        ("ids no parameters",),
    ),
    Row(
        "`tool_calls[].id`",
        "drawn at random",
        "made from the turn's name",
        "a retry of the key gets the same",
        r"body\.choices\.(message|delta)\.tool_calls\.id",
        lambda found: all(re.fullmatch(r"chatcmpl-tool-\w{16}", one) for one in (found.engine, found.gateway)),
        "call",
        parsers=True,
    ),
    Row(
        "`usage.completion_tokens_details`",
        "reasoning tokens, with a reasoning parser",
        "left out",
        "engines count them in their own answers only",
        r"body\.usage\.completion_tokens_details\.reasoning_tokens",
        lambda found: found.engine is not ABSENT and found.gateway is ABSENT,
        "call",
        parsers=True,
    ),
)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path with indices, value) of everything that is no container, and of empty ones."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from leaves(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        for at, one in enumerate(value):
            yield from leaves(one, f"{path}[{at}]")
    else:
        yield path, value


def joined(events: list[Json]) -> Json:
    """A stream as one answer: how tokens are divided into events is no matter, the rest is."""
    whole: Json = {"choices": {}, "usages": 0}
    for event in events:
        whole |= {name: value for name, value in event.items() if name != "choices" and value is not None}
        whole["usages"] += event.get("usage") is not None
        for choice in event.get("choices", ()):
            add(whole["choices"].setdefault(str(choice["index"]), {}), choice)
    # With every event, at the end, or never.
    whole["usages"] = min(whole["usages"], 2)
    return whole


def add(whole: Json, choice: Json) -> None:
    for name, value in choice.items():
        if name in ("delta", "logprobs") and value is not None:
            add(whole.setdefault(name, {}), value)
        elif name == "tool_calls":
            calls = whole.setdefault(name, {})
            for call in value or ():
                named = {name: call.get(name) for name in ("id", "type")}
                add(calls.setdefault(str(call["index"]), {}), {**named, **(call.get("function") or {})})
        elif isinstance(value, list) or name in GROWING:
            whole[name] = whole[name] + value if whole.get(name) and value else value or whole.get(name)
        elif value is not None:
            whole[name] = value


def read(response: httpx.Response) -> dict[str, Any]:
    body: Any = response.text
    if body.startswith("data: "):
        *events, end = [one.removeprefix("data: ") for one in body.strip().split("\n\n")]
        body = {**joined([json.loads(one) for one in events]), "end": end}
    elif "json" in response.headers.get("content-type", ""):
        body = response.json()
    found = {"status": response.status_code, "type": response.headers.get("content-type"), "body": body}
    return dict(leaves(found, ""))


def differences(engine: httpx.Response, gateway: httpx.Response) -> list[Difference]:
    """Fields that are not the same in both answers."""
    mine, other = read(engine), read(gateway)
    return [
        Difference(re.sub(r"\[\d+\]|(?<=choices)\.\d+|(?<=tool_calls)\.\d+", "", field), one, two)
        for field in dict.fromkeys([*mine, *other])
        if (one := mine.get(field, ABSENT)) != (two := other.get(field, ABSENT))
    ]


def explained(found: Difference, name: str) -> Row | None:
    for row in sorted(EXCEPTIONS, key=lambda row: not row.only):
        if (not row.only or name in row.only) and re.fullmatch(row.fields, found.field) and row.holds(found):
            return row
    return None

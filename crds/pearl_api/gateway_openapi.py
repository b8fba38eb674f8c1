"""The gateway's interface as an OpenAPI 3.1 document.

Its own calls are written from the wire models. Of the inference paths it names what the gateway itself reads; any
other field goes to the engine, which judges it. The gateway serves it, `docs/reference` keeps it, and a test holds the
routes to it.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pearl_api.names import VERSION
from pearl_api.openapi import Document
from pearl_api.wire import gateway

_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": 1000}
_IDENTITY: Final = {
    "type": "object",
    "description": "The identity headers, for clients that cannot set headers.",
    "properties": {
        "trajectory": {"type": "string", "pattern": gateway.NAME_PATTERN},
        "turn": _WHOLE,
        "attempt": _WHOLE,
        "group": {"type": "string", "pattern": gateway.NAME_PATTERN},
        "class": {"enum": ["train", "eval", "other"]},
        "parentTurn": _WHOLE,
        "step": _WHOLE,
    },
}
_SAMPLING: Final = {
    "max_tokens": {"type": "integer", "minimum": 1},
    "min_tokens": _WHOLE,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "stop": _TEXTS,
    "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "ignore_eos": {"type": "boolean"},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
}
_STREAM: Final = {
    "stream": {"type": "boolean"},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "model": {"type": "string"},
    "pearl": _IDENTITY,
}
_MESSAGE: Final = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string"}},
}
_BODIES: Final[dict[str, Document]] = {
    "GenerateRequest": {
        "description": "Token ids in, token ids out.",
        "required": ["token_ids"],
        "properties": {
            "token_ids": _IDS,
            "sampling_params": {
                "type": "object",
                "properties": {**_SAMPLING, "logprobs": {"type": "integer", "minimum": 0, "maximum": 20}},
            },
            **_STREAM,
        },
    },
    "CompletionRequest": {
        "description": "As OpenAI; `echo`, `suffix`, `best_of` and `prompt_logprobs` are refused.",
        "required": ["prompt"],
        "properties": {
            "prompt": {"anyOf": [{"type": "string"}, _IDS, {"type": "array", "items": {"type": "string"}}]},
            "n": {"type": "integer", "minimum": 1},
            "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
            "return_token_ids": {"type": "boolean"},
            **_SAMPLING,
            **_STREAM,
        },
    },
    "ChatCompletionRequest": {
        "description": "As OpenAI; tools, response formats and reasoning are the engine's.",
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
            "n": {"type": "integer", "minimum": 1},
            "logprobs": {"type": "boolean"},
            "return_token_ids": {"type": "boolean"},
            **_SAMPLING,
            **_STREAM,
        },
    },
    "SglangGenerateRequest": {
        "description": "As of an external SGLang engine, see docs/integrations/slime.md.",
        "properties": {
            "input_ids": _IDS,
            "text": {"type": "string"},
            "rid": {"type": "string"},
            "return_logprob": {"type": "boolean"},
            "sampling_params": {
                "type": "object",
                "properties": {
                    "temperature": _SAMPLING["temperature"],
                    "max_new_tokens": {"type": "integer", "minimum": 1},
                    "stop": _TEXTS,
                },
            },
        },
    },
}


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    title: str
    body: str | type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    token: bool = True


_CALLS: Final = (
    _Call("post", "/inference/v1/generate", "Generate, by token ids", "GenerateRequest"),
    _Call("post", "/v1/completions", "Complete a text", "CompletionRequest"),
    _Call("post", "/v1/chat/completions", "Answer a conversation", "ChatCompletionRequest"),
    _Call("post", "/generate", "Generate, as an SGLang engine does", "SglangGenerateRequest"),
    _Call("post", "/v1/batches", "Declare a batch", gateway.OpenBatch, gateway.BatchProgress),
    _Call("get", "/v1/batches/{step}", "How far a batch is", None, gateway.BatchProgress),
    _Call("post", "/v1/batches/{step}/finish", "End a trajectory", gateway.FinishTrajectory, gateway.BatchProgress),
    _Call("post", "/v1/batches/{step}/abort", "End a trajectory early", gateway.AbortTrajectory, gateway.BatchProgress),
    _Call("post", "/v1/batches/{step}/consume", "Finished trajectories, each handed out once"),
    _Call("post", "/v1/batches/{step}/close", "The batch is over", None, gateway.BatchProgress),
    _Call("post", "/v1/permits", "Admission of a group", gateway.PermitRequest, gateway.PermitAnswer),
    _Call("get", "/v1/trajectories/{id}", "The token log of a trajectory", None, gateway.TrajectoryExport),
    _Call("get", "/v1/stats", "Everything the operator observes", None, gateway.GatewayStats),
    _Call("get", "/v1/models", "The served model", token=False),
    _Call("get", "/v1/models/{id}", "The served model", token=False),
    _Call("get", "/health", "The process answers", token=False),
    _Call("get", "/ready", "The list of workers was read", token=False),
    _Call("get", "/metrics", "Prometheus text", token=False),
    _Call("get", "/openapi.json", "This document", token=False),
)
_ERROR: Final = {
    "description": "Any refusal, as OpenAI clients read it; the message names the field.",
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string", "description": "Closed reason, CamelCase."},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer", "description": "The HTTP status."},
                "retryAfterSeconds": {"type": "number"},
            },
        }
    },
}


def gateway_api() -> Document:
    """The document."""
    models = {one for call in _CALLS for one in (call.body, call.answer) if isinstance(one, type)}
    ordered = sorted(models, key=lambda model: model.__name__)
    template = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=template)
    paths: dict[str, Document] = {}
    for call in _CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    bodies = {name: {"type": "object", **body} for name, body in _BODIES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "PEARL gateway", "version": VERSION, "description": inspect.getdoc(gateway) or ""},
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], **bodies, "Error": {"type": "object", **_ERROR}},
            "responses": {"Error": {"description": _ERROR["description"], "content": _content("Error")}},
            "securitySchemes": {
                "client": {"type": "http", "scheme": "bearer", "description": "Secret `NAME-pearl-client`."}
            },
        },
    }


def _operation(call: _Call) -> Document:
    said: Document = {"description": "Success"}
    if call.answer is not None:
        said["content"] = _content(call.answer.__name__)
    operation: Document = {
        "summary": call.title,
        "responses": {"200": said, "default": {"$ref": "#/components/responses/Error"}},
    }
    if call.token:
        operation["security"] = [{"client": []}]
    if call.body is not None:
        name = call.body if isinstance(call.body, str) else call.body.__name__
        operation["requestBody"] = {"required": True, "content": _content(name)}
    for name in ("step", "id"):
        if f"{{{name}}}" in call.path:
            kind = {"type": "integer", "minimum": 0} if name == "step" else {"type": "string"}
            operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": kind}]
    return operation


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

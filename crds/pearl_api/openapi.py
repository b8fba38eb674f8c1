"""The loan API as an OpenAPI 3.1 document, written from the wire models.

The operator serves it, `docs/reference` keeps it, and a test holds the operator's routes to it.
"""

import inspect
import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pearl_api.names import VERSION
from pearl_api.wire import loans
from pearl_api.wire.worker import Problem

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One path and method. `handle`: for the holder of a loan or group, hence with its token."""

    method: str
    tail: str
    title: str
    answer: type[BaseModel]
    body: type[BaseModel] | None = None
    handle: bool = True


_REGISTRATION: Final = (
    Call(
        "post", "/v1/loans/register", "Enrol the calling pod", loans.RegisterAnswer, loans.RegisterRequest, handle=False
    ),
    Call(
        "post",
        "/v1/groups/register",
        "Take the handle of a group",
        loans.RegisterAnswer,
        loans.GroupRequest,
        handle=False,
    ),
    Call(
        "post",
        "/v1/loans/access",
        "How borrowers would reach the calling pod's GPUs",
        loans.AccessAnswer,
        loans.AccessRequest,
        handle=False,
    ),
)
_HANDLE: Final = (
    Call("post", "/lend", "Offer the GPUs", loans.LendAnswer, loans.LendRequest),
    Call("post", "/reclaiming", "Tell that a reclaim began", loans.LoanView, loans.ReclaimingNotice),
    Call("post", "/reclaimed", "Tell how a reclaim ended", loans.LoanView, loans.ReclaimedNotice),
    Call("get", "", "What is recorded, and which borrower pods exist", loans.LoanView),
    Call("delete", "", "End the enrolment", loans.LoanView),
)
_PREFIXES: Final = {"/v1/loans/{namespace}/{name}": "one pod's loan", "/v1/groups/{namespace}/{name}": "a group"}
_ERRORS: Final = {
    "401": "the token is missing, expired, of another audience, or another loan's",
    "403": "this pod may not lend",
    "404": "not enrolled (any more): register",
    "409": "not as things are; the message says what to change",
    "422": "the body is wrong; the message names the field",
    "429": "too often; `Retry-After` says when to try again",
    "503": "not now, for example while the operator starts; `Retry-After` says when to try again",
}


def loan_api() -> Document:
    """The document."""
    calls = [*_REGISTRATION, *_HANDLE]
    models = {model for call in calls for model in (call.answer, call.body) if model is not None} | {Problem}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Document] = {}
    for call in _REGISTRATION:
        paths.setdefault(call.tail, {})[call.method] = _operation(call, "")
    for prefix, what in _PREFIXES.items():
        for call in _HANDLE:
            paths.setdefault(prefix + call.tail, {})[call.method] = _operation(call, what)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "PEARL loan API",
            "version": VERSION,
            "description": inspect.getdoc(loans) or "",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "responses": {
                f"Error{status}": {"description": meaning, "content": _json_of(Problem)}
                for status, meaning in _ERRORS.items()
            },
            "securitySchemes": _SECURITY,
        },
    }


_SECURITY: Final = {
    "pod": {
        "type": "http",
        "scheme": "bearer",
        "description": "Projected ServiceAccount token of the calling pod, audience `pearl`.",
    },
    "loan": {"type": "http", "scheme": "bearer", "description": "The `token` that registering answered."},
}


def _operation(call: Call, what: str) -> Document:
    operation: Document = {
        "summary": f"{call.title} ({what})" if what else call.title,
        "security": [{"loan" if call.handle else "pod": []}],
        "responses": {
            "200": {"description": _first_sentence(call.answer), "content": _json_of(call.answer)},
            **{status: {"$ref": f"#/components/responses/Error{status}"} for status in _ERRORS},
        },
    }
    if call.body is not None:
        operation["requestBody"] = {"required": True, "content": _json_of(call.body)}
    if call.handle:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in ("namespace", "name")
        ]
    return operation


def _json_of(model: type[BaseModel]) -> Document:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}


def _first_sentence(model: type[BaseModel]) -> str:
    return (inspect.getdoc(model) or "").split("\n\n", maxsplit=1)[0]


def as_text(document: Document) -> str:
    """The document as a file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

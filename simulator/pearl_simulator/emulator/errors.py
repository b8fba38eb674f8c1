"""Refusals, in the form and with the words that clients of vLLM see."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Answered with `status` and vLLM's error body."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", status: int = 400, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class LateError(ApiError):
    """Found where a request enters the engine: a stream has begun by then with status 200, and ends with the error."""


class EngineDeadError(RuntimeError):
    """The engine ended; its server is about to."""


class EngineFaultError(RuntimeError):
    """A call inside the engine failed; the message is what vLLM says."""


def wrong(field: str, message: str, value: Any = None, *, kind: type[ApiError] = ApiError) -> ApiError:
    """A field has a value that the engine refuses."""
    shown = f"(parameter={field})" if value is None else f"(parameter={field}, value={value})"
    return kind(f"{message} {shown}", param=field)


def invalid(where: str, kind: str, message: str, found: Any, **context: Any) -> ApiError:
    """The body has not the form of the request; `where` is dotted, from `body` or `query`."""
    shown = {"type": kind, "loc": where, "msg": message, "input": _summary(found)}
    if context:
        shown["ctx"] = context
    return ApiError(f"1 validation error:\n  {shown}", kind="Bad Request", param=where)


def missing(where: str, body: Any) -> ApiError:
    """A required field is not there."""
    return invalid(where, "missing", "Field required", body)


def dead() -> ApiError:
    """The engine crashed."""
    return ApiError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        kind="InternalServerError",
        status=500,
    )


def failed(message: str) -> ApiError:
    """Something inside the engine failed."""
    return ApiError(message, kind="InternalServerError", status=500)


def _summary(found: Any) -> Any:
    if isinstance(found, (list, dict)):
        return f"<{type(found).__name__} of {len(found)} items>"
    return found if isinstance(found, str) else str(found)

"""The two small error trees: what a client is told, and how an engine failed."""

from __future__ import annotations

from http import HTTPStatus


class GatewayError(Exception):
    """An answer that is no success; `error` is the closed CamelCase reason of `Problem`."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.param = param
        """The field that is wrong, where it is one; the message names it too."""


def bad_request(message: str, error: str = "BadRequest", *, param: str | None = None) -> GatewayError:
    """A request that can never succeed as it is."""
    return GatewayError(HTTPStatus.BAD_REQUEST, error, message, param=param)


def try_later(error: str, message: str, seconds: float) -> GatewayError:
    """A typed retryable refusal: the same request may succeed after `seconds`."""
    return GatewayError(HTTPStatus.SERVICE_UNAVAILABLE, error, message, retry_after_seconds=seconds)


class EngineError(Exception):
    """One call to one engine did not give its answer."""


class EngineUnreachableError(EngineError):
    """Connection failed, broke before the end, or the engine answered 5xx: eject it and go elsewhere."""


class EngineFaultError(EngineUnreachableError):
    """The engine answered 5xx: it is there, and this request, or it, is not well."""


class EngineStalledError(EngineError):
    """A deadline passed while the connection stayed up: go elsewhere."""


class EngineClosedError(EngineError):
    """The engine is well but takes no work now (its guard's gate is closed): ask another, or it again soon."""


class EngineWeightsError(EngineClosedError):
    """The engine is well, and its weights are not those that the turn accepts."""

    def __init__(self, message: str, version: int) -> None:
        super().__init__(message)
        self.version = version


class EngineRefusedError(EngineError):
    """The engine understood and refused (4xx): no other engine would answer better."""

    def __init__(self, status: int, message: str, body: object) -> None:
        super().__init__(message)
        self.status = status
        self.body = body

    def passed_on(self) -> GatewayError:
        """The refusal for the client, with the engine's words, type and field."""
        body = self.body if isinstance(self.body, dict) else {}
        said = body["error"] if isinstance(body.get("error"), dict) else {}
        return GatewayError(self.status, str(said.get("type") or "Refused"), str(self), param=said.get("param"))

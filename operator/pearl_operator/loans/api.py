"""The loan API over HTTP; see `pearl_api.wire.loans` for its table. Its own description is `pearl_api.openapi`."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable  # noqa: TC003 - FastAPI reads annotations
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute

from pearl_api import openapi
from pearl_api.openapi_page import html_page
from pearl_api.wire import loans as wire  # noqa: TC001 - FastAPI reads annotations
from pearl_api.wire.worker import Problem
from pearl_operator.errors import OperatorError, RetryAfter
from pearl_operator.loans.limits import Calls
from pearl_operator.loans.problems import LoanProblem, LoanReason

if TYPE_CHECKING:
    from fastapi import Request

    from pearl_operator.loans.service import LoanService
    from pearl_operator.loans.units import Unit

Authorization = Annotated[str, Header()]


def _route_class(refused: Callable[[str], None]) -> type[APIRoute]:
    """Routes that turn everything that can go wrong into a `Problem`, and count it."""

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            inner = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await inner(request)
                except (LoanProblem, RequestValidationError, OperatorError) as error:
                    problem = _told(error)
                    refused(problem.reason)
                    return _answer(problem)

            return handle

    return Route


def _told(error: LoanProblem | RequestValidationError | OperatorError) -> LoanProblem:
    """What a caller hears of an error."""
    if isinstance(error, LoanProblem):
        return error
    if isinstance(error, RequestValidationError):
        return LoanProblem(LoanReason.INVALID_BODY, _sentence(error))
    if isinstance(error, RetryAfter):
        return LoanProblem(LoanReason.BUSY, str(error), HTTPStatus.SERVICE_UNAVAILABLE, error.seconds)
    return LoanProblem(LoanReason.REFUSED, str(error), HTTPStatus.CONFLICT)


def _sentence(error: RequestValidationError) -> str:
    """The first thing that is wrong with a body: the field, what is wrong, and what was sent."""
    first: dict[str, Any] = error.errors()[0]
    if first["type"] == "json_invalid":
        said = (first.get("ctx") or {}).get("error", "")
        return f"the body is not JSON ({said}): send one JSON object with Content-Type application/json"
    where = ".".join(str(part) for part in first["loc"])
    sent = "" if first["type"] == "missing" else f" (got {str(first.get('input'))[:80]})"
    return f"{where}: {first['msg']}{sent}; /v1/loans/openapi.json describes every field"


def _answer(problem: LoanProblem) -> Response:
    wait = problem.retry_after_seconds
    body = Problem(error=problem.reason, message=problem.message, retry_after_seconds=wait)
    headers = {} if wait is None else {"Retry-After": str(max(math.ceil(wait), 1))}
    return JSONResponse(body.model_dump(mode="json", by_alias=True), status_code=problem.status, headers=headers)


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty where there is none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def router(service: LoanService) -> APIRouter:
    """The routes; mount them on the operator's web application."""
    routes = APIRouter(route_class=_route_class(service.refused))
    _add_description(routes)
    _add_registration(routes, service)
    _add_calls(routes, service, "/v1/loans", group=False)
    _add_calls(routes, service, "/v1/groups", group=True)
    return routes


def _add_description(routes: APIRouter) -> None:
    document = openapi.loan_api()

    @routes.get("/v1/loans/openapi.json")
    async def describe() -> JSONResponse:
        return JSONResponse(document)

    @routes.get("/v1/loans")
    async def page() -> HTMLResponse:
        return HTMLResponse(html_page(document))


def _add_registration(routes: APIRouter, service: LoanService) -> None:
    @routes.post("/v1/loans/register")
    async def register(body: wire.RegisterRequest, authorization: Authorization = "") -> wire.RegisterAnswer:
        return await service.register(body, bearer(authorization))

    @routes.post("/v1/loans/access")
    async def access(body: wire.AccessRequest, authorization: Authorization = "") -> wire.AccessAnswer:
        return await service.access(body, bearer(authorization))

    @routes.post("/v1/groups/register")
    async def register_group(body: wire.GroupRequest, authorization: Authorization = "") -> wire.RegisterAnswer:
        return await service.register_group(body, bearer(authorization))


def _add_calls(routes: APIRouter, service: LoanService, prefix: str, *, group: bool) -> None:
    """What the holder of a handle may do; alike for one pod and for a group."""
    path = prefix + "/{namespace}/{name}"

    async def unit(namespace: str, name: str, authorization: str, calls: Calls = Calls.CHANGE) -> Unit:
        return await service.unit(namespace, name, bearer(authorization), calls, group=group)

    @routes.post(path + "/lend")
    async def lend(
        namespace: str, name: str, body: wire.LendRequest, authorization: Authorization = ""
    ) -> wire.LendAnswer:
        return await service.lend(await unit(namespace, name, authorization), body)

    @routes.post(path + "/reclaiming")
    async def reclaiming(
        namespace: str, name: str, body: wire.ReclaimingNotice, authorization: Authorization = ""
    ) -> wire.LoanView:
        return await service.reclaiming(await unit(namespace, name, authorization), body)

    @routes.post(path + "/reclaimed")
    async def reclaimed(
        namespace: str, name: str, body: wire.ReclaimedNotice, authorization: Authorization = ""
    ) -> wire.LoanView:
        return await service.reclaimed(await unit(namespace, name, authorization), body)

    @routes.get(path)
    async def view(namespace: str, name: str, authorization: Authorization = "") -> wire.LoanView:
        return await service.view(await unit(namespace, name, authorization, Calls.VIEW))

    @routes.delete(path)
    async def deregister(namespace: str, name: str, authorization: Authorization = "") -> wire.LoanView:
        return await service.deregister(await unit(namespace, name, authorization))

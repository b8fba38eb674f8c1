"""The loan API over HTTP; see `pearl_api.wire.loans` for its table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable  # noqa: TC003 - FastAPI reads annotations
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute

from pearl_api.wire import loans as wire  # noqa: TC001 - FastAPI reads annotations
from pearl_api.wire.worker import Problem
from pearl_operator.errors import Permanent, RetryAfter
from pearl_operator.loans.problems import LoanProblem

if TYPE_CHECKING:
    from fastapi import Request

    from pearl_operator.loans.service import LoanService

Authorization = Annotated[str, Header()]


class _Route(APIRoute):
    """Turns everything that can go wrong into a `Problem`."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except LoanProblem as problem:
                return _problem(problem.status, problem.reason, problem.message)
            except RequestValidationError as error:
                first: dict[str, Any] = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidBody", f"{where}: {first['msg']}")
            except RetryAfter as error:
                return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "Busy", str(error), error.seconds)
            except Permanent as error:
                return _problem(HTTPStatus.CONFLICT, "Refused", str(error))

        return handle


def _problem(status: HTTPStatus, reason: str, message: str, retry_after: float | None = None) -> Response:
    body = Problem(error=reason, message=message, retry_after_seconds=retry_after)
    return JSONResponse(body.model_dump(mode="json", by_alias=True), status_code=status)


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty where there is none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def router(service: LoanService) -> APIRouter:
    """The routes; mount them on the operator's web application."""
    routes = APIRouter(prefix="/v1/loans", route_class=_Route)

    @routes.post("/register")
    async def register(body: wire.RegisterRequest, authorization: Authorization = "") -> wire.RegisterAnswer:
        return await service.register(body, bearer(authorization))

    @routes.post("/{namespace}/{name}/lend")
    async def lend(
        namespace: str, name: str, body: wire.LendRequest, authorization: Authorization = ""
    ) -> wire.LendAnswer:
        return await service.lend(await service.authorise(namespace, name, bearer(authorization)), body)

    @routes.post("/{namespace}/{name}/reclaiming")
    async def reclaiming(
        namespace: str, name: str, body: wire.ReclaimingNotice, authorization: Authorization = ""
    ) -> wire.LoanView:
        return await service.reclaiming(await service.authorise(namespace, name, bearer(authorization)), body)

    @routes.post("/{namespace}/{name}/reclaimed")
    async def reclaimed(
        namespace: str, name: str, body: wire.ReclaimedNotice, authorization: Authorization = ""
    ) -> wire.LoanView:
        return await service.reclaimed(await service.authorise(namespace, name, bearer(authorization)), body)

    @routes.get("/{namespace}/{name}")
    async def view(namespace: str, name: str, authorization: Authorization = "") -> wire.LoanView:
        return service.view(await service.authorise(namespace, name, bearer(authorization)))

    @routes.delete("/{namespace}/{name}")
    async def deregister(namespace: str, name: str, authorization: Authorization = "") -> wire.LoanView:
        return await service.deregister(await service.authorise(namespace, name, bearer(authorization)))

    return routes

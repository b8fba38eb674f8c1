"""The agent's HTTP interface (`pearl_api.wire.worker`): tokens, bodies and status codes; no decisions."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pearl_api import tokens
from pearl_api.wire.worker import (
    ActivityRequest,
    EngineReport,
    GrantRequest,
    HeartbeatRequest,
    LoanState,
    Problem,
    ReclaimAnswer,
    ReclaimRequest,
    WorkerState,
)
from pearl_worker.fence import FencedError
from pearl_worker.loan import DeviceBusyError, Loan
from pearl_worker.metrics import registry
from pearl_worker.steps import newest_steps
from pearl_worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Tokens:
    """Accepted bearer tokens; `loan` is None where the pod is not borrowed."""

    agent: str
    loan: str | None


class ProblemError(Exception):
    """An error answer."""

    def __init__(self, status: int, error: str, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(error=error, message=message, retry_after_seconds=retry_after_seconds)


def build_api(worker: Worker, accepted: Tokens, now: Callable[[], float]) -> FastAPI:
    """The application; `now` is the clock that loans are measured with (the loop's)."""
    app = FastAPI(title="PEARL worker agent", docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app)
    _add_probes(app, worker)
    _add_worker_calls(app, worker, accepted.agent)
    _add_loan_calls(app, worker, accepted, now)
    return app


def _add_probes(app: FastAPI, worker: Worker) -> None:
    metrics = registry(worker)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        state = worker.state()
        body = {"phase": state.phase, "message": state.message}
        return JSONResponse(body, status_code=200 if worker.ready else 503)

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)


def _add_worker_calls(app: FastAPI, worker: Worker, token: str) -> None:
    guard = [Depends(_bearer(token))]

    @app.get("/v1/state", dependencies=guard)
    async def state() -> WorkerState:
        return worker.state()

    @app.get("/v1/steps", dependencies=guard)
    async def steps(since: float = 0.0, limit: int = 1000) -> dict[str, Any]:
        found = await asyncio.to_thread(newest_steps, worker.steps_directory, since, limit)
        return {"steps": found}

    @app.post("/v1/activity", dependencies=guard)
    async def activity(request: ActivityRequest) -> WorkerState:
        worker.set_activity(request.activity, request.deadline_seconds)
        return worker.state()

    @app.post("/v1/weights/poke", dependencies=guard)
    async def poke() -> WorkerState:
        worker.poke_weights()
        return worker.state()

    @app.post("/v1/engine/report", dependencies=guard)
    async def report(request: EngineReport) -> WorkerState:
        worker.request_restart(f"reported by the gateway: {request.kind} {request.detail}".rstrip())
        return worker.state()


def _add_loan_calls(app: FastAPI, worker: Worker, accepted: Tokens, now: Callable[[], float]) -> None:
    def loan() -> Loan:
        if worker.loan is None:
            raise ProblemError(409, "NotBorrowed", "this worker is not borrowed: PEARL_LOAN_NAME is not set")
        return worker.loan

    @app.post("/v1/loan/grant", dependencies=[Depends(_bearer(accepted.agent))])
    async def grant(request: GrantRequest) -> LoanState:
        absent = not worker.engine.facts.running
        loan().grant(request.epoch, request.ttl_seconds, now(), engine_absent=absent)
        worker.loan_changed()
        return worker.loan_state()

    @app.post("/v1/loan/heartbeat", dependencies=[Depends(_bearer(accepted.loan))])
    async def heartbeat(request: HeartbeatRequest) -> LoanState:
        loan().expire(now(), now() + worker.reclaim_seconds)
        loan().renew(request.epoch, now())
        return worker.loan_state()

    @app.post("/v1/loan/reclaim", dependencies=[Depends(_bearer(accepted.loan))])
    async def reclaim(request: ReclaimRequest) -> ReclaimAnswer:
        loan()
        return await worker.reclaim(request.epoch, request.within_seconds)


def _bearer(expected: str | None) -> Callable[..., Awaitable[None]]:
    async def check(authorization: Annotated[str, Header()] = "") -> None:
        kind, _, presented = authorization.partition(" ")
        if kind.lower() != "bearer" or not tokens.matches(presented.strip(), expected or ""):
            raise ProblemError(401, "Unauthorized", "send the right token as `Authorization: Bearer ...`")

    return check


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, problem: Problem) -> JSONResponse:
        return JSONResponse(problem.model_dump(by_alias=True), status_code=status)

    @app.exception_handler(ProblemError)
    async def known(_: Request, error: ProblemError) -> JSONResponse:
        return answer(error.status, error.problem)

    @app.exception_handler(FencedError)
    async def fenced(_: Request, error: FencedError) -> JSONResponse:
        return answer(409, Problem(error="Fenced", message=str(error)))

    @app.exception_handler(DeviceBusyError)
    async def busy(_: Request, error: DeviceBusyError) -> JSONResponse:
        return answer(503, Problem(error="DeviceBusy", message=str(error), retry_after_seconds=1.0))

    @app.exception_handler(RequestValidationError)
    async def body(_: Request, error: Any) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return answer(422, Problem(error="InvalidBody", message=f"{where}: {first['msg']}"))

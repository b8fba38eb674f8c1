"""The operator's HTTP interface (port 8090): health, metrics, decisions in memory, and the loan API.

| method and path                | answer                                                             |
|--------------------------------|--------------------------------------------------------------------|
| GET /healthz                   | 200, or 503 with the reasons to restart the process                |
| GET /readyz                    | 200 once it holds the Lease and has seen the cluster               |
| GET /metrics                   | Prometheus text                                                    |
| GET /debug/snapshot/{rollout}  | the last (snapshot, policy, plan), oldest first                     |
| /v1/loans/…                    | see `pearl_api.wire.loans`                                         |
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pearl_operator.ports import RolloutKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import APIRouter

    from pearl_operator.health import Health
    from pearl_operator.metrics import Metrics
    from pearl_operator.ring import Ring


@dataclass(frozen=True, slots=True)
class WebParts:
    """What the interface shows."""

    health: Health
    metrics: Metrics
    ring: Ring
    namespace: str
    loans: APIRouter


def build_app(parts: WebParts) -> FastAPI:
    """The application."""
    app = FastAPI(title="PEARL operator", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        problems = parts.health.problems()
        return PlainTextResponse("\n".join(problems) or "ok", status_code=503 if problems else 200)

    @app.get("/readyz")
    async def readyz() -> Response:
        ready = parts.health.ready()
        return PlainTextResponse("ok" if ready else "waits for the Lease", status_code=200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        age = parts.health.watch_age()
        if age is not None:
            parts.metrics.watch_age.set(age)
        parts.metrics.lease_remaining.set(max(parts.health.lease.remaining_seconds(), 0.0))
        return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/debug/snapshot/{rollout}")
    async def snapshot(rollout: str) -> Response:
        decisions: list[dict[str, Any]] = parts.ring.dump(RolloutKey(parts.namespace, rollout))
        return JSONResponse(decisions, status_code=200 if decisions else 404)

    app.include_router(parts.loans)
    return app


class Server(uvicorn.Server):
    """uvicorn without signal handlers: `main` owns SIGTERM."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def server_of(app: FastAPI, port: int) -> Server:
    """A server on all addresses of the pod."""
    return Server(
        uvicorn.Config(
            app,
            host="0.0.0.0",  # noqa: S104 - kubelet, Prometheus and trainers call from outside the pod
            port=port,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,  # clients close their idle connections first
            timeout_graceful_shutdown=5,
        )
    )

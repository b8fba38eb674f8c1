"""PEARL as a trainer sees it, over real HTTP: operator, one borrower's agent with the real fence, and a gateway.

Standard library and the fence only, so that it runs in a framework's own environment, too.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from pearl_worker.fence import Fence, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

TTL_SECONDS = 8.0


@dataclass
class PearlDouble:
    """Grants every offer. `events` tells what happened, in order."""

    weights: Path
    generate: Callable[[list[int], dict[str, Any]], dict[str, Any]] | None = None
    fence: Fence = field(default_factory=Fence)
    events: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    finished: int = 0
    renewed: threading.Event = field(default_factory=threading.Event)
    """Set by every heartbeat."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                status, answer = double.answer(self.command, self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_DELETE = do_POST  # noqa: N815 - the library's names

            def log_message(self, *_: Any) -> None:
                return

        self._handler = Handler

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def lent(self) -> bool:
        """An engine may run on the GPU now."""
        return self.fence.expire(time.monotonic()).granted

    def note(self, what: str) -> None:
        """Record an event together with who has the GPU."""
        with self._lock:
            self.events.append(f"{what} {'lent' if self.lent else 'mine'}")

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of one call."""
        if path == "/inference/v1/generate":
            assert self.generate is not None
            return 200, self.generate(body["token_ids"], body["sampling_params"])
        if path == "/note":
            self.note(body["what"])
            return 200, {}
        if path.startswith("/v1/batches"):
            return self._batch(path, body)
        return self._agent(path, body) if path.startswith("/v1/loan/") else self._operator(method, path, body)

    def _operator(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.bodies[path] = body
        if path.endswith("/register"):
            self.note("register")
            return 200, self._registration()
        if path.endswith("/lend"):
            return 200, self._lend(body)
        if method == "DELETE":
            self.note("deregister")
        return 200, {"namespace": "ml", "name": "t", "epoch": self.fence.epoch, "phase": "Idle", "agents": []}

    def _registration(self) -> dict[str, Any]:
        known = {"token": "loan-token", "slots": 1, "agents": [self._endpoint()], "epoch": self.fence.epoch}
        gateway = {"gatewayUrl": self.url, "gatewayToken": "client-token", "weightsSource": str(self.weights)}
        times = {"reclaimSeconds": 10.0, "heartbeatSeconds": 0.5, "ttlSeconds": TTL_SECONDS}
        return {"namespace": "ml", "name": "t", **known, **gateway, **times}

    def _endpoint(self) -> dict[str, str]:
        return {"pod": "t-borrower-0", "uid": "u-0", "url": self.url}

    def _lend(self, body: dict[str, Any]) -> dict[str, Any]:
        epoch = max(self.fence.epoch, body["afterEpoch"]) + 1
        self.fence = self.fence.expire(time.monotonic()).grant(epoch, TTL_SECONDS, time.monotonic())
        self.note("lend")
        return {"epoch": epoch, "granted": True, "reason": "Applied", "agents": [self._endpoint()]}

    def _agent(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        epoch, now = body["epoch"], time.monotonic()
        try:
            if path.endswith("/heartbeat"):
                self.fence = self.fence.expire(now).renew(epoch, now)
                self.renewed.set()
                return 200, {"epoch": epoch, "fenced": False, "granted": True}
            self.fence = self.fence.expire(now).reclaim(epoch)
        except FencedError as error:
            return 409, {"error": "Fenced", "message": str(error)}
        self.note("reclaim")
        done = {"drainSeconds": 0.0, "sleepSeconds": 0.0, "totalSeconds": 0.0}
        return 200, {"epoch": epoch, "free": True, "killed": False, **done}

    def _batch(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self._lock:
            if path == "/v1/batches":
                self.batches.append(body)
            self.finished += path.endswith("/finish")
        open_ = self.batches[-1]
        counts = {"started": 0, "finished": self.finished, "aborted": 0, "completeGroups": 0}
        sizes = {"groups": open_["groups"], "groupSize": open_["groupSize"], "needGroups": open_["groups"]}
        more = {"step": open_["step"], "minVersion": 0, "openSeconds": 0.0, "closed": path.endswith("/close")}
        return 200, {**counts, **sizes, **more}

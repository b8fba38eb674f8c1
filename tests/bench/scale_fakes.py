"""The fakes of the scale bench, a process of its own: one HTTP server that answers as every agent and every gateway.

    python tests/bench/scale_fakes.py KUBECONFIG PORT

It watches the worker pods, as gateways do, and acknowledges every role at once. Nobody asks for a turn.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "bench")]

from fake_cluster import quiet_stats  # noqa: E402
from scale_api import PODS, connected  # noqa: E402

from pearl_api import names  # noqa: E402
from pearl_api.names import Activity, Role  # noqa: E402
from pearl_api.wire.gateway import WorkerView  # noqa: E402
from pearl_api.wire.worker import WorkerPhase, WorkerState  # noqa: E402

SELECTOR = f"{names.LABEL_ROLLOUT},{names.LABEL_COMPONENT}={names.COMPONENT_WORKER}"


class Fakes:
    """Views of the workers by rollout and UID."""

    def __init__(self) -> None:
        self.views: dict[str, dict[str, WorkerView]] = {}
        self.activities: dict[str, Activity] = {}
        self._since = time.monotonic()

    def see(self, event: str, pod: dict[str, Any]) -> None:
        """A change of a pod."""
        meta = pod["metadata"]
        labels = meta["labels"]
        views = self.views.setdefault(labels[names.LABEL_ROLLOUT], {})
        if event == "DELETED":
            views.pop(meta["uid"], None)
            return
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
        views[meta["uid"]] = WorkerView(
            uid=meta["uid"],
            pod=meta["name"],
            role=Role(labels[names.LABEL_ROLE]),
            acked_epoch=int(labels[names.LABEL_ROLE_EPOCH]),
            activity=Activity(labels[names.LABEL_ACTIVITY]),
            ready=ready,
            in_flight=0,
            resident_tokens=0,
        )

    async def stats(self, request: web.Request) -> web.Response:
        """As a gateway."""
        name = request.match_info["rollout"]
        views = list(self.views.get(name, {}).values())
        stats = quiet_stats(name, workers=views, uptime_seconds=time.monotonic() - self._since)
        return web.Response(text=stats.model_dump_json(by_alias=True), content_type="application/json")

    async def state(self, request: web.Request) -> web.Response:
        """As an agent."""
        return self._state(request.match_info["uid"])

    async def activity(self, request: web.Request) -> web.Response:
        """The same, told what to do."""
        uid = request.match_info["uid"]
        self.activities[uid] = Activity((await request.json())["activity"])
        return self._state(uid)

    def _state(self, uid: str) -> web.Response:
        activity = self.activities.get(uid, Activity.ACTIVE)
        phase = WorkerPhase.ASLEEP if activity is Activity.ASLEEP else WorkerPhase.READY
        state = WorkerState(pod_uid=uid, phase=phase, activity=activity, engine_starts=1)
        return web.Response(text=state.model_dump_json(by_alias=True), content_type="application/json")


async def serve(kubeconfig: Path, port: int) -> None:
    """For ever."""
    fakes = Fakes()
    app = web.Application()
    app.router.add_get("/gateways/{rollout}/v1/stats", fakes.stats)
    app.router.add_get("/agents/{uid}/v1/state", fakes.state)
    app.router.add_post("/agents/{uid}/v1/activity", fakes.activity)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    async with connected(kubeconfig) as api:
        async for event, pod in api.watch(PODS, labelSelector=SELECTOR):
            fakes.see(event, pod)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))

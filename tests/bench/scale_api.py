"""The Kubernetes API by path for the processes of the scale bench: many calls at once, and watches."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Object = dict[str, Any]

NAMESPACE = "pearl"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ROLLOUTS = f"/apis/pearl.dev/v1alpha1/namespaces/{NAMESPACE}/pearlrollouts"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
_PAGE = "500"


class Answered(Exception):  # noqa: N818 - what happened
    """The API server refused, with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:500]}")
        self.status = status


class Api:
    """Dicts in, dicts out."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    async def call(self, method: str, path: str, body: Object | None = None, *, kind: str = "", **params: str) -> Any:
        """One call; raises `Answered` for anything but 2xx."""
        headers = {"Content-Type": kind or "application/json", "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        url = self._server + path
        async with self._session.request(method, url, data=data, params=params, headers=headers) as answer:
            text = await answer.text()
            if not answer.ok:
                raise Answered(answer.status, text)
            return json.loads(text)

    async def list(self, path: str, **params: str) -> tuple[list[Object], str]:
        """All objects, read in pages, and the version to watch from."""
        items: list[Object] = []
        token = ""
        while True:
            page = await self.call("GET", path, limit=_PAGE, **({"continue": token} if token else {}), **params)
            items += page["items"]
            token = page["metadata"].get("continue") or ""
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(self, path: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """What is there as `ADDED`, and then every change, for ever; after a break from a list again."""
        while True:
            items, version = await self.list(path, **params)
            for item in items:
                yield "ADDED", item
            wanted = {**params, "watch": "true", "resourceVersion": version, "timeoutSeconds": "3000"}
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._session.get(self._server + path, params=wanted, timeout=timeout) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    yield event["type"], event["object"]


@asynccontextmanager
async def connected(kubeconfig: Path) -> AsyncIterator[Api]:
    """With the credentials of a kubeconfig file as `pearl_dev` writes it."""
    config = yaml.safe_load(await asyncio.to_thread(kubeconfig.read_text))
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=100),
        headers={"Authorization": f"Bearer {user['token']}"},
        timeout=aiohttp.ClientTimeout(total=60),
        read_bufsize=2**22,
    ) as session:
        yield Api(session, cluster["server"])

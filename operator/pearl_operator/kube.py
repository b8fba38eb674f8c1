"""The `Kube` port over one shared `kubernetes.aio` client: dicts in, dicts out, errors as `errors` has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from pearl_operator.calls import Receiver
from pearl_operator.errors import AlreadyExists, Conflict, NotFound, OperatorError, Refused, Unavailable, described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pearl_operator.calls import Calls
    from pearl_operator.kinds import Kind
    from pearl_operator.ports import Object

_Query = list[tuple[str, str]]

_JSON = "application/json"
_HEADS = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"  # the body goes out as JSON, which is YAML
_PAGE = 500
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TOO_MANY = 429
_SERVER_ERRORS = 500


async def load_client(kubeconfig: Path | None = None) -> client.ApiClient:
    """A client from `kubeconfig`, else from the pod's service account, else from where KUBECONFIG says."""
    settings = client.Configuration()
    if kubeconfig is None and _SERVICE_ACCOUNT.exists():  # noqa: ASYNC240 - once, at start
        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
    else:
        path = None if kubeconfig is None else str(kubeconfig)
        await config.load_kube_config(config_file=path, client_configuration=settings)  # type: ignore[no-untyped-call]
    return client.ApiClient(settings)


def path_of(kind: Kind, namespace: str | None, name: str | None = None, *, subresource: str = "") -> str:
    """The URL path of an object, a collection, or a subresource."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{namespace}" if kind.namespaced and namespace else ""
    return "/".join(part for part in (root + scope, kind.plural, name, subresource) if part)


def error_from(status: int, body: Mapping[str, Any], what: str, retry_after: str | None) -> OperatorError:
    """The error for an answer of the API server; the message ends with its own sentence."""
    message = f"{what}: {body.get('message') or f'HTTP {status}'}"
    reason = body.get("reason")
    if reason == "AlreadyExists":
        return AlreadyExists(message)
    if status == 409:  # noqa: PLR2004 - the status codes are what this function is about
        return Conflict(message, seconds=0.1)
    if status == 404:  # noqa: PLR2004
        return NotFound(message)
    if status == _TOO_MANY or status >= _SERVER_ERRORS:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
        return Unavailable(message, seconds=seconds)
    return Refused(message)


class KubeClient:
    """See `ports.Kube`."""

    def __init__(self, api: client.ApiClient, calls: Calls, *, timeout_seconds: float) -> None:
        self._api = api
        self._calls = calls
        self._timeout = timeout_seconds

    async def _call(  # noqa: PLR0913 - what a request is made of
        self,
        method: str,
        path: str,
        *,
        query: _Query | None = None,
        body: Any = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> Object:
        what = f"{method} {path}"
        request = await self._api.param_serialize(
            method,
            path,
            query_params=query or [],
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            with self._calls.told(Receiver.API_SERVER, method, path) as told:
                answer = await self._api.call_api(*request, _request_timeout=self._timeout)
                raw: bytes = await answer.read()  # type: ignore[no-untyped-call]
                told.answer = str(answer.status)
        except (TimeoutError, aiohttp.ClientError, OSError, ApiException) as error:
            raise Unavailable(f"{what}: no answer from the API server ({described(error)})") from error
        parsed = _parse(raw)
        if answer.status >= 400:  # noqa: PLR2004
            raise error_from(answer.status, parsed, what, answer.headers.get("Retry-After"))
        return parsed

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None where it does not exist."""
        try:
            return await self._call("GET", path_of(kind, namespace, name))
        except NotFound:
            return None

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        heads: bool = False,
    ) -> list[Object]:
        """All objects with these labels and fields, read in pages."""
        query = [("limit", str(_PAGE))]
        for name, wanted in (("labelSelector", labels), ("fieldSelector", fields)):
            if wanted:
                query.append((name, _selector(wanted)))
        items: list[Object] = []
        token = ""
        while True:
            page = [*query, ("continue", token)] if token else query
            answer = await self._call("GET", path_of(kind, namespace), query=page, accept=_HEADS if heads else _JSON)
            items += answer.get("items") or []
            token = answer.get("metadata", {}).get("continue") or ""
            if not token:
                return items

    async def create(self, kind: Kind, body: Object) -> Object:
        """A new object as stored."""
        return await self._create(kind, body, query=[])

    async def dry_run_create(self, kind: Kind, body: Object) -> None:
        """Everything that a create does, except storing."""
        await self._create(kind, body, query=[("dryRun", "All")])

    async def _create(self, kind: Kind, body: Object, *, query: _Query) -> Object:
        namespace = body["metadata"].get("namespace")
        query = [*query, ("fieldManager", "pearl")]
        return await self._call("POST", path_of(kind, namespace), query=query, body=body)

    async def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = True) -> Object:
        """Server-side apply of the object."""
        return await self._apply(kind, body, manager=manager, force=force, subresource="")

    async def apply_status(self, kind: Kind, body: Object, *, manager: str) -> Object:
        """Server-side apply of the status."""
        return await self._apply(kind, body, manager=manager, force=True, subresource="status")

    async def _apply(self, kind: Kind, body: Object, *, manager: str, force: bool, subresource: str) -> Object:
        meta = body["metadata"]
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        return await self._call(
            "PATCH",
            path_of(kind, meta.get("namespace"), meta["name"], subresource=subresource),
            query=[("fieldManager", manager), ("force", "true" if force else "false")],
            body=body,
            content_type=_APPLY,
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> None:
        """Deletes it; a missing object is fine."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._call("DELETE", path_of(kind, namespace, name), body=body)
        except NotFound:
            return


def _selector(wanted: Mapping[str, str]) -> str:
    """`key=value,…`; a key with an empty value only has to be there."""
    return ",".join(f"{key}={value}" if value else key for key, value in sorted(wanted.items()))


def _parse(raw: bytes) -> Object:
    """The JSON object of an answer; a proxy's HTML or text becomes a message."""
    try:
        parsed = orjson.loads(raw)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"message": raw[:200].decode(errors="replace")}

"""The Prometheus client against a server of its own: tokens, tenants, certificates, queries, and what goes wrong."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from pearl_api.rollout import EngineQueries, PrometheusSpec
from pearl_operator.calls import Calls
from pearl_operator.clock import SystemClock
from pearl_operator.errors import OperatorError
from pearl_operator.http_json import HttpJson
from pearl_operator.ports import RolloutKey
from pearl_operator.prometheus import PrometheusClient, expressions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY = RolloutKey("rl", "swe")


class Server:
    """Answers every query with one pod's value and keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.refuses: str | None = None
        self.result: list[Any] = [{"metric": {"namespace": "rl", "pod": "swe-w0-0"}, "value": [1.0, "2.5"]}]

    async def query(self, request: web.Request) -> web.Response:
        self.asked.append(request.query["query"])
        self.headers.append(dict(request.headers))
        if self.refuses is not None:
            answer = {"status": "error", "errorType": "bad_data", "error": self.refuses}
            return web.json_response(answer, status=400)
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": self.result}})


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server, app = Server(), web.Application()
    app.router.add_get("/api/v1/query", server.query)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    scheme = "http" if context is None else "https"
    server.url = f"{scheme}://localhost:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client() -> AsyncIterator[PrometheusClient]:
    async with aiohttp.ClientSession() as session:
        yield PrometheusClient(HttpJson(session, 5.0, Calls(SystemClock())))


async def test_every_query_names_the_rollouts_pods_and_gives_a_field() -> None:
    async with serving() as server, client() as prometheus:
        found = await prometheus.engines(KEY, PrometheusSpec(url=server.url))
    assert found.sampled_at == {"rl/swe-w0-0": 2.5}
    assert (found.by_pod["rl/swe-w0-0"].running, found.by_pod["rl/swe-w0-0"].inter_token_seconds) == (2.5, 2.5)
    assert len(server.asked) == 7
    assert all('pod=~"swe-w[0-9]+-[0-9]+|.+-borrower-[0-9]+"' in asked for asked in server.asked)


async def test_a_token_that_was_rotated_is_read_again_and_tenants_are_told(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with serving() as server, client() as prometheus:
        spec = PrometheusSpec(url=server.url, bearer_token_file=str(token), headers={"X-Scope-OrgID": "rl-team"})
        with pytest.raises(OperatorError, match=r"bearerTokenFile '.*token' cannot be read"):
            await prometheus.engines(KEY, spec)
        for value in ("first", "second"):
            token.write_text(f"{value}\n")
            server.headers.clear()
            await prometheus.engines(KEY, spec)
            assert {one["Authorization"] for one in server.headers} == {f"Bearer {value}"}
            assert {one["X-Scope-OrgID"] for one in server.headers} == {"rl-team"}


async def test_own_queries_take_the_place_of_the_usual_ones() -> None:
    own = EngineQueries(running='sum by (namespace, pod) (my_running{job="x",$pods})')
    async with serving() as server, client() as prometheus:
        await prometheus.engines(KEY, PrometheusSpec(url=server.url, queries=own))
    (asked,) = [one for one in server.asked if "my_running" in one]
    assert asked.startswith('sum by (namespace, pod) (my_running{job="x",pod=~"swe-w')
    assert not [one for one in server.asked if "num_requests_running" in one and "timestamp" not in one]


async def test_what_prometheus_says_of_a_wrong_query_is_passed_on() -> None:
    async with serving() as server, client() as prometheus:
        server.refuses = "1:5: parse error: unexpected identifier"
        with pytest.raises(OperatorError, match="parse error: unexpected identifier"):
            await prometheus.engines(KEY, PrometheusSpec(url=server.url))


async def test_two_series_of_one_pod_count_once() -> None:
    async with serving() as server, client() as prometheus:
        server.result *= 2
        found = await prometheus.engines(KEY, PrometheusSpec(url=server.url))
    assert found.by_pod["rl/swe-w0-0"].running == 2.5


async def test_gpu_use_is_one_query() -> None:
    async with serving() as server, client() as prometheus:
        labels = {"__name__": "dcgm_gpu_utilization", "namespace": "rl", "pod": "swe-w0-0", "gpu": "0"}
        server.result = [{"metric": labels, "value": [1.0, "50"]}]
        found = await prometheus.gpus(KEY, PrometheusSpec(url=server.url))
    assert [(one.path, one.use.busy) for one in found] == [("rl/swe-w0-0", 0.5)]
    assert len(server.asked) == 1
    assert 'pod=~"swe-w[0-9]+-[0-9]+|.+-borrower-[0-9]+"' in server.asked[0]


def test_engines_are_asked_by_the_names_of_older_versions_too() -> None:
    asked = expressions(EngineQueries())
    assert "vllm:kv_cache_usage_perc{$pods} or vllm:gpu_cache_usage_perc{$pods}" in asked["kv_usage"]
    assert "vllm:time_per_output_token_seconds_sum{$pods}" in asked["inter_token_seconds"]
    assert all(
        "without (prometheus, prometheus_replica, replica)" in asked[name] for name in asked if name != "sampled_at"
    )


def certificate(folder: Path, name: str) -> ssl.SSLContext:
    """Of a server that signs itself; its certificate is in `{name}.crt`."""
    key, found = folder / f"{name}.key", folder / f"{name}.crt"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", str(key), "-out", str(found)]
    subprocess.run(["openssl", "req", *made, *names], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(found, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_a_server_is_checked_with_the_named_certificates_also_after_they_changed(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    async with client() as prometheus, serving(certificate(tmp_path, "one")) as first:
        spec = PrometheusSpec(url=first.url, ca_file=str(ca))
        with pytest.raises(OperatorError, match=r"caFile '.*ca.crt' cannot be read"):
            await prometheus.engines(KEY, spec)
        with pytest.raises(OperatorError, match="certificate"):
            await prometheus.engines(KEY, PrometheusSpec(url=first.url))
        ca.write_bytes((tmp_path / "one.crt").read_bytes())
        assert (await prometheus.engines(KEY, spec)).by_pod
        async with serving(certificate(tmp_path, "two")) as second:
            spec = PrometheusSpec(url=second.url, ca_file=str(ca))
            with pytest.raises(OperatorError, match="certificate"):
                await prometheus.engines(KEY, spec)
            ca.write_bytes((tmp_path / "two.crt").read_bytes())
            assert (await prometheus.engines(KEY, spec)).by_pod

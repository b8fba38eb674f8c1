"""Real processes of a gateway under a supervisor: right answers, equal statistics, deaths, ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from several_processes import apart, lines, name_at, until

from pearl_gateway.processes.homes import home_of
from pearl_gateway.processes.layout import folders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from several_processes import Apart

    from conftest import FakeEngine

    Engines = Callable[..., Awaitable[FakeEngine]]
    Continuation = Callable[..., list[int]]

NAMES = [f"group-{at // 5}/{at % 5}" for at in range(50)]
TURNS = 3


def worker(engine: FakeEngine, **more: Any) -> dict[str, Any]:
    return {"url": engine.url, "uid": engine.name, **more}


class Client:
    """Plays trajectories; a request is repeated with its key until it is answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.repeated = 0
        self.refusals: set[str] = set()

    async def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        async with asyncio.timeout(600):
            while True:
                with suppress(aiohttp.ClientError):
                    async with self._session.request(method, self._url + path, json=body, headers=headers) as response:
                        answer = await response.json(content_type=None)
                        if response.status == 200:
                            return answer
                        assert response.status == 503, answer
                        self.refusals.add(answer["error"]["type"])
                self.repeated += 1
                await asyncio.sleep(0.1)

    async def play(self, name: str, turns: int, count: int, group: str | None = None) -> list[int]:
        """The whole conversation: prompts and answers."""
        said = [1, *name.encode()]
        for number in range(turns):
            headers = {"X-Pearl-Trajectory": name, "X-Pearl-Turn": str(number)}
            headers |= {"X-Pearl-Group": group} if group is not None else {}
            body = {"token_ids": said, "sampling_params": {"max_tokens": count, "temperature": 0.0}}
            answer = await self.ask("POST", "/inference/v1/generate", body, headers)
            said = [*said, *answer["choices"][0]["token_ids"], 5]
        return said[:-1]


def expected(name: str, turns: int, count: int, continuation: Continuation) -> list[int]:
    said = [1, *name.encode()]
    for _ in range(turns):
        said = [*said, *continuation(said, count), 5]
    return said[:-1]


async def work(gateway: Apart, continuation: Continuation) -> dict[str, Any]:
    """Fifty trajectories, a batch of all of them; the statistics after it."""
    async with aiohttp.ClientSession() as session:
        client = Client(session, gateway.url)
        await client.ask("POST", "/v1/batches", {"step": 1, "groups": 10, "groupSize": 5})

        async def one(name: str) -> None:
            said = await client.play(name, TURNS, 4, name.partition("/")[0])
            assert said == expected(name, TURNS, 4, continuation)
            export = await client.ask("GET", f"/v1/trajectories/{name}")
            assert export["tokenIds"] == said
            assert export["turns"] == TURNS

        await asyncio.gather(*map(one, NAMES))
        stats = await client.ask("GET", "/v1/stats")
        assert (stats["batch"]["started"], len(stats["unfinished"])) == (50, 50)
        for name in NAMES[:-1]:
            finish = {"trajectory": name, "group": name.partition("/")[0], "reward": 1.0}
            await client.ask("POST", "/v1/batches/1/finish", finish)
        await client.ask("POST", "/v1/batches/1/abort", {"trajectory": NAMES[-1]})
        exports = await client.ask("POST", "/v1/batches/1/consume")
        assert [one["trajectory"] for one in exports] == NAMES[:-1]
        assert client.repeated == 0
        found: dict[str, Any] = await client.ask("GET", "/v1/stats")
        return found


async def test_statistics_and_answers_are_those_of_one_process(engines: Engines, continuation: Continuation) -> None:
    engine = await engines()
    found = {}
    for count in (1, 2):
        async with apart(count, [worker(engine)]) as gateway:
            found[count] = await work(gateway, continuation)
            if count == 2:
                for at, folder in enumerate(folders(gateway.folder / "storage", 2)):
                    names = {line["trajectory"] for line in lines(folder, "turns")}
                    assert names == {name for name in NAMES if home_of(name, 2) == at}
            assert await gateway.stop() in {0, -signal.SIGTERM}
    one, two = found[1], found[2]
    assert two["counters"] == one["counters"]
    assert two["counters"]["turns"] == 150
    assert two["live"] == one["live"]
    assert two["agesAtConsumption"] == one["agesAtConsumption"]
    assert {**two["batch"], "openSeconds": 0} == {**one["batch"], "openSeconds": 0}
    assert (two["batch"]["finished"], two["batch"]["completeGroups"]) == (49, 9)
    assert two["profile"].keys() == one["profile"].keys()
    for name in ("turns", "trajectories", "aborted", "newestVersion"):
        assert two["profile"][name] == one["profile"][name], name
    # What fades depends on the order of the records, which is another one in each run.
    for name in ("ended", "continued", "appendedBins", "appended", "generated", "context", "retained", "log_length"):
        assert two["profile"][name] == pytest.approx(one["profile"][name], rel=1e-2, abs=1e-6), name


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_process_costs_its_clients_a_repeat_and_nothing_else(
    engines: Engines, continuation: Continuation, victim: int
) -> None:
    two = [await engines(pause=0.01), await engines(pause=0.01)]
    names = [f"t{at}" for at in range(16)]
    async with apart(2, [worker(one) for one in two]) as gateway, aiohttp.ClientSession() as session:
        client = Client(session, gateway.url)
        await client.ask("POST", "/v1/batches", {"step": 1, "groups": 16, "groupSize": 1})
        playing = [asyncio.ensure_future(client.play(name, 4, 8)) for name in names]
        await until(lambda: sum(len(one.requests) for one in two) >= 24)
        gateway.signal(victim, signal.SIGKILL)
        for name, said in zip(names, await asyncio.gather(*playing), strict=True):
            assert said == expected(name, 4, 8, continuation)
        assert client.repeated
        for name in names:
            export = await client.ask("GET", f"/v1/trajectories/{name}")
            assert export["tokenIds"] == expected(name, 4, 8, continuation)
            assert (export["turns"], sum(export["lossMask"])) == (4, 32)
            progress = await client.ask("POST", "/v1/batches/1/finish", {"trajectory": name})
        assert (progress["started"], progress["finished"], progress["completeGroups"]) == (16, 16, 16)
        consumed = await client.ask("POST", "/v1/batches/1/consume")
        assert [one["trajectory"] for one in consumed] == names
        async with session.get(gateway.url + "/metrics") as response:
            assert 'pearl_gateway_process_restarts_total{rollout="r"} 1.0' in await response.text()
        assert gateway.status().restarts == tuple(int(at == victim) for at in range(2))


async def test_a_flip_counts_when_every_process_has_seen_it_and_all_end_with_their_supervisor(
    engines: Engines,
) -> None:
    engine = await engines()
    async with apart(3, [worker(engine)]) as gateway, aiohttp.ClientSession() as session:
        client = Client(session, gateway.url)
        assert [one["ackedEpoch"] for one in (await client.ask("GET", "/v1/stats"))["workers"]] == [0]
        gateway.signal(2, signal.SIGSTOP)
        gateway.place([worker(engine, role="decode", roleEpoch=1)])
        asking = asyncio.ensure_future(client.ask("GET", "/v1/stats"))
        await asyncio.sleep(1.0)
        assert not asking.done()
        gateway.signal(2, signal.SIGCONT)
        epochs = [0]
        async with asyncio.timeout(300):
            while epochs != [1]:
                epochs = [one["ackedEpoch"] for one in (await client.ask("GET", "/v1/stats"))["workers"]]
        await asking
        folder = next(gateway.folder.glob("pearl-gateway-*"))
        gateway.kill()
        await until(lambda: not any(listens(folder / f"{at}.sock") for at in range(3)))


async def test_told_to_stop_it_sends_everybody_away_and_keeps_what_it_has(
    engines: Engines, continuation: Continuation
) -> None:
    engine = await engines(stall_after=2)
    t0, t1 = name_at(0, 2), name_at(1, 2)
    async with apart(2, [worker(engine)]) as gateway, aiohttp.ClientSession() as session:
        client = Client(session, gateway.url)
        body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 4, "temperature": 0.0}}
        asked = [
            session.post(
                gateway.url + "/inference/v1/generate",
                json=body,
                headers={"X-Pearl-Trajectory": name, "X-Pearl-Turn": "0"},
            )
            for name in (t0, t1)
        ]
        running = [asyncio.ensure_future(one.__aenter__()) for one in asked]
        permit = {"group": "g", "size": 1, "waitSeconds": 60}
        await client.ask("POST", "/v1/permits", permit)
        await until(lambda: len(engine.requests) == 2)
        assert await gateway.stop() == 0
        for one in running:
            response = await one
            assert response.status == 503, await response.text()
            assert (await response.json())["error"]["type"] in {"ShuttingDown", "ProcessAway"}
        engine.stall_after = None
        gateway.start()
        await gateway.ready()
        for name in (t0, t1):
            headers = {"X-Pearl-Trajectory": name, "X-Pearl-Turn": "0"}
            answer = await client.ask("POST", "/inference/v1/generate", body, headers)
            assert answer["choices"][0]["token_ids"] == continuation([1, 2], 4)
        assert await gateway.stop() == 0


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0

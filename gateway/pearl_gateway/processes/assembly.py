"""Puts one of several processes together: the same gateway, its place among the others, two servers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import uvicorn

from pearl_gateway.app import create_app
from pearl_gateway.books import Shared
from pearl_gateway.connections import server_config, shared_listener
from pearl_gateway.processes.control import OwnerControl
from pearl_gateway.processes.front import Front
from pearl_gateway.processes.groups import MemberGroups
from pearl_gateway.processes.health import SharedControl
from pearl_gateway.processes.homes import OWNER, share_of
from pearl_gateway.processes.internal import member_app, owner_app
from pearl_gateway.processes.layout import folders
from pearl_gateway.processes.member import Member, MemberBooks
from pearl_gateway.processes.outbox import Outbox
from pearl_gateway.processes.owner import Owner
from pearl_gateway.processes.pausing import AllRunning, Pausing
from pearl_gateway.processes.peers import Peers
from pearl_gateway.processes.status import read_status, socket_of
from pearl_gateway.serving import GRACE_SECONDS, ask_agents, dismiss, expire, poll_agents, running_gateway, sources_of
from pearl_gateway.sglang.running import Here, Running
from pearl_gateway.storage import MOST_EXPORT_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp

    from pearl_gateway.gateway import Gateway
    from pearl_gateway.settings import Settings

_KNOWN_SECONDS = 10.0
"""Longest wait for the list of workers before clients are answered that there is none."""
_PEER_IDLE_SECONDS = 75
"""The others close idle connections first."""
_STAY_SECONDS = 10.0
"""Longest wait for the others to be gone."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """What the supervisor tells a process on its command line."""

    number: int
    folder: Path
    """Of all sockets."""
    life: int
    """Descriptor that ends when the supervisor does."""
    host: str
    port: int
    """Where clients connect to; all processes listen there."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One process."""

    gateway: Gateway
    app: ASGIApp
    internal: ASGIApp
    loops: tuple[Coroutine[None, None, None], ...]
    join: Callable[[], Awaitable[object]]
    """Returns when it may answer the other processes."""
    settle: Callable[[], Awaitable[object]]
    """Returns when it may answer clients."""
    leave: Callable[[], Awaitable[object]]
    """Says what is left to say."""
    stays: bool
    """When it is told to stop it answers clients no more, and the others until it is told again."""


class Server(uvicorn.Server):
    """Ends when it is told to; signals are handled once for both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve_process(settings: Settings, *, workers: Path | None, place: Place) -> None:
    """Run one of several processes until it is told to stop or the supervisor is gone."""
    root, count = settings.storage, settings.processes
    if root is None:
        raise ValueError("PEARL_STORAGE is empty: several processes keep their trajectories there")
    mine = replace(settings, storage=folders(root, count)[place.number], limits=share_of(settings.limits, count))
    peers = Peers(place.folder, place.number, count)
    make = owner_parts if place.number == OWNER else member_parts
    try:
        async with make(mine, peers, place.folder) as parts:
            await _serve(parts, peers, workers, place)
    finally:
        await peers.close()


@contextlib.asynccontextmanager
async def owner_parts(settings: Settings, peers: Peers, folder: Path) -> AsyncIterator[Parts]:
    """Process 0."""
    async with running_gateway(settings, None, MOST_EXPORT_BYTES // peers.count) as gateway:
        pausing = Pausing(Running(gateway.clock), gateway.clock)
        owner = Owner(gateway=gateway, peers=peers, pausing=pausing, start=uuid.uuid4().hex)
        control = OwnerControl(gateway, owner, peers, folder)
        app = create_app(gateway, control, AllRunning(pausing, peers, gateway.clock))
        yield Parts(
            gateway, app, owner_app(app, gateway, owner, pausing), (), _nothing, owner.settle, _nothing, stays=True
        )


@contextlib.asynccontextmanager
async def member_parts(settings: Settings, peers: Peers, _folder: Path) -> AsyncIterator[Parts]:
    """Any other process."""
    outbox = Outbox()
    books = MemberBooks(outbox)
    shared = Shared(books, MemberGroups(peers), books.record)
    async with running_gateway(settings, shared, MOST_EXPORT_BYTES // peers.count) as gateway:
        pausing = Pausing(Running(gateway.clock), gateway.clock)
        start = uuid.uuid4().hex
        member = Member(gateway=gateway, books=books, outbox=outbox, peers=peers, pausing=pausing, start=start)
        app = create_app(gateway, SharedControl(gateway, peers), Here(pausing.running))
        internal = member_app(app, gateway, member, books, pausing)
        yield Parts(gateway, app, internal, (member.run(),), member.join, _nothing, member.sync, stays=False)


async def _serve(parts: Parts, peers: Peers, workers: Path | None, place: Place) -> None:
    gateway = parts.gateway
    gateway.started_wall = read_status(place.folder).started_wall
    public = Server(public_config(parts, peers))
    internal = Server(internal_config(parts))
    told_again = _end_with(public, place.life)
    first = [*await sources_of(gateway, workers), expire(gateway)]
    tasks = [asyncio.ensure_future(one) for one in first]
    await _know_workers(gateway)
    tasks.append(asyncio.ensure_future(poll_agents(gateway)))
    await parts.join()
    inside = asyncio.ensure_future(internal.serve([unix_socket(socket_of(place.folder, place.number))]))
    tasks += [asyncio.ensure_future(one) for one in (*parts.loops, dismiss(gateway, public))]
    await parts.settle()
    outside = asyncio.ensure_future(public.serve([_listener(gateway, place)]))
    done, _ = await asyncio.wait({inside, outside, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    public.should_exit = True
    await asyncio.gather(outside, return_exceptions=True)
    if parts.stays and outside in done:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STAY_SECONDS):
                await told_again.wait()
    internal.should_exit = True
    await asyncio.gather(inside, return_exceptions=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await parts.leave()
    for one in done:
        one.result()


def public_config(parts: Parts, peers: Peers) -> uvicorn.Config:
    """Of the server that clients connect to."""
    limits = parts.gateway.settings.limits
    front = Front(parts.app, peers, limits)
    return server_config(front, limits, timeout_graceful_shutdown=GRACE_SECONDS, lifespan="off")


def internal_config(parts: Parts) -> uvicorn.Config:
    """Of the server that the other processes connect to; they are trusted with how they use it."""
    return uvicorn.Config(
        parts.internal,
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=_PEER_IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="off",
    )


async def _know_workers(gateway: Gateway) -> None:
    """Return when this process knows which workers there are, and which weights they have."""
    deadline = time.monotonic() + _KNOWN_SECONDS
    while not gateway.membership_known and time.monotonic() < deadline:  # noqa: ASYNC110 - a flag that tells nobody
        await asyncio.sleep(_LOOK_SECONDS)
    await ask_agents(gateway)


def _end_with(server: uvicorn.Server, life: int) -> asyncio.Event:
    """Stop the server on a signal, and when the supervisor is gone; the event: there was another signal."""
    loop, again = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        if server.should_exit:
            again.set()
        server.should_exit = True

    def gone() -> None:
        loop.remove_reader(life)
        again.set()
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_reader(life, gone)
    return again


def unix_socket(path: Path) -> socket.socket:
    """Where a process listens for the others, whoever had it before."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def _listener(gateway: Gateway, place: Place) -> socket.socket:
    return shared_listener(place.host, place.port, gateway.settings.limits.client_stall_seconds)


async def _nothing() -> None:
    """There is nobody to tell."""

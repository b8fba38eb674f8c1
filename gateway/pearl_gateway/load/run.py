"""One whole run: read, scale, replay, check, sum up. What the command line calls, and the demo too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from pearl_gateway.load.bounds import check_spec
from pearl_gateway.load.check import Reference, check_all
from pearl_gateway.load.client import GatewayClient, LoadError
from pearl_gateway.load.plan import LOWEST_TOKEN, Group, plan_groups
from pearl_gateway.load.recordings import read_sessions, shipped
from pearl_gateway.load.replay import Progress, Replay, Style
from pearl_gateway.load.report import Summary, summarise
from pearl_gateway.load.sessions import scale
from pearl_gateway.load.synthetic import Synthetic, synthetic_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What to replay, against what."""

    url: str
    run: str
    """Prefix of all names; must be new to the gateway."""
    sessions: str = "trie_office_work_first8"
    synthetic: Synthetic | None = None
    """Made-up sessions instead of recorded ones."""
    token: str | None = None
    model: str | None = None
    step: int = 0
    groups: int = 4
    group_size: int = 4
    context: int = 2048
    vocabulary: int = 256
    most_turns: int | None = None
    response_factor: float = 1.0
    input_factor: float = 1.0
    seed: str = "pearl"
    style: Style = field(default_factory=Style)
    reference: str | None = None
    reference_token: str | None = None
    give_up_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run will do, before it does it."""

    groups: list[Group]
    token_factor: float

    def progress(self) -> Progress:
        """An empty progress for it."""
        works = [work for group in self.groups for work in group.members]
        return Progress(trajectories=len(works), turns=sum(len(work.session.turns) for work in works))


def prepare(spec: LoadSpec) -> Prepared:
    """Read and scale the sessions.

    Raises:
        ValueError: no such recording, one that cannot be read, or a number that cannot be meant.
    """
    check_spec(spec)
    made = spec.synthetic
    sessions, factor = scale(
        read_sessions(shipped(spec.sessions)) if made is None else synthetic_sessions(made, spec.seed),
        spec.context,
        response_factor=spec.response_factor,
        input_factor=spec.input_factor,
        most_turns=spec.most_turns,
    )
    groups = plan_groups(
        sessions,
        groups=spec.groups,
        group_size=spec.group_size,
        run=spec.run,
        seed=spec.seed,
        vocabulary=spec.vocabulary,
    )
    return Prepared(groups, factor)


async def run_load(
    spec: LoadSpec,
    prepared: Prepared,
    progress: Progress,
    view: Callable[[Progress], Coroutine[Any, Any, None]] | None = None,
) -> Summary:
    """Replay and check; `view` runs beside it until it is over.

    Raises:
        LoadError: the gateway or the reference does not answer at the start, or the batch could not be opened.
    """
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        style = replace(spec.style, check_log=spec.style.check_log or spec.reference is not None)
        client = GatewayClient(
            session, spec.url, spec.token, spec.model, spec.give_up_seconds, stream=spec.style.stream
        )
        reference = None
        if spec.reference is not None:
            reference = Reference(session, spec.reference, spec.reference_token)
            await reference.answer([LOWEST_TOKEN], 1)
        await client.reach()
        shown = asyncio.ensure_future(view(progress)) if view is not None else None
        try:
            progress.started_at = time.monotonic()
            await Replay(client, style, progress, spec.seed).run(spec.step, prepared.groups)
            duration = time.monotonic() - progress.started_at
            if reference is not None:
                await _check(reference, progress)
        finally:
            if shown is not None:
                shown.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await shown
    return summed_up(spec, prepared, progress, duration)


async def _check(reference: Reference, progress: Progress) -> None:
    try:
        await check_all(reference, progress)
    except LoadError as error:
        progress.troubles.append(f"not all turns were checked: {error}")


def summed_up(spec: LoadSpec, prepared: Prepared, progress: Progress, duration: float) -> Summary:
    """The summary of a run that is over, or was interrupted."""
    return summarise(progress, duration, token_factor=prepared.token_factor, time_scale=spec.style.time_scale)

"""Act 2: the whole product on a real local cluster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from examples.common import local, page
from examples.common.sampler import Sampler
from examples.demo import agents, promises, report, training
from examples.demo.facts import Record
from examples.demo.stage import HERE, Stage
from examples.demo.view import View
from pearl_dev.fleet import Api
from pearl_dev.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from examples.common.promises import Promise

NAME = "demo"
FLEETS = ("agents", "policy")


def play(  # noqa: PLR0913 - what the two acts share, and act 2's options
    console: Console, parts: list[str], checks: list[Promise], *, out: Path, steps: int, keep: bool
) -> None:
    """Set up, play, take down; adds to the report and to the promises."""
    progress, record = Progress(), Record()
    installation = local.set_up(NAME, ("tiny", "smollm2"), progress)
    started, view = time.monotonic(), View(record)
    api = Api(installation.cluster.kubeconfig)
    agents_fleet, policy = (local.apply(installation, api, HERE / f"manifests/{name}.yaml") for name in FLEETS)
    sampler = Sampler(record, (agents_fleet, policy))
    stage = Stage(installation, agents_fleet, policy, record, sampler, view, out)
    view.start()
    try:
        _scenes(stage, steps)
    finally:
        view.stop()
        sampler.close()
        local.keep_logs(installation, out)
        if not keep:
            local.take_down(NAME, progress)
    console.print(f"Took {time.monotonic() - started:.0f} s after set-up.")
    console.print(page.promises_on_screen(record.checks, title="Act 2: what was kept"))
    console.print(report.verdict(record.loads))
    parts += report.parts(record, agents=agents_fleet.name, policy=policy.name)
    checks += record.checks


def _scenes(stage: Stage, steps: int) -> None:
    stage.act("kubectl apply: 3 workers with SmolLM2, 2 with the tiny model; real vLLM starts in real pods")
    with ThreadPoolExecutor(2) as pool:
        for ready in [
            pool.submit(stage.agents.wait_ready, 3, seconds=420),
            pool.submit(stage.policy.wait_ready, 2, seconds=420),
        ]:
            ready.result()
    before = stage.agents.uids()
    agents.run(stage)
    after = stage.agents.uids()
    agents.checked(stage)
    training.run(stage, steps)
    lost = sum(fleet.stats().counters.lost_turns for fleet in (stage.agents, stage.policy))
    promises.check(stage.record, uids_before=before, uids_after=after, lost_turns=lost, wanted_steps=steps)

"""First half of the demo: recorded agent sessions on real workers, roles that follow the work, a worker killed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from examples.demo.facts import LoadResult
from pearl_api import names
from pearl_dev.fleet import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from examples.demo.stage import Stage
    from pearl_dev.fleet import Fleet

SMOLLM2_VOCABULARY = 40_000


@dataclass(frozen=True, slots=True)
class Phase:
    """Recorded sessions, scaled to be decode-heavy or prefill-heavy."""

    name: str
    input_factor: float
    response_factor: float
    groups: int = 2
    group_size: int = 4
    most_turns: int = 4
    time_scale: float = 0.5


DECODE_HEAVY = Phase("decode-heavy", input_factor=0.15, response_factor=4.0)
PREFILL_HEAVY = Phase("prefill-heavy", input_factor=1.0, response_factor=0.25, groups=4, most_turns=5)
MIXED = Phase("mixed, mode Auto", input_factor=0.5, response_factor=2.0, groups=1)


def run(stage: Stage) -> None:
    """Both phases on the automatic fleet, then the same sessions on a fixed colocated one."""
    fleet = stage.agents
    for phase in (DECODE_HEAVY, PREFILL_HEAVY):
        stage.act(f"agents: {phase.name} sessions; PEARL chooses the ratio")
        load = start_load(stage, fleet, phase, f"pearl-{phase.name}")
        if phase is PREFILL_HEAVY:
            kill_a_worker(stage, fleet)
        stage.record.loads.append(finish_load(stage, load, phase, "pearl"))
    stage.act("agents: mode Auto; the planner may choose the mode too")
    fleet.patch({"mode": "Auto"})
    finish_load(stage, start_load(stage, fleet, MIXED, "pearl-mixed"), MIXED, "pearl")
    fleet.patch({"mode": "Colocated"})
    fleet.wait_roles({"colocated": 3})
    fleet.wait_ready(3)
    for phase in (DECODE_HEAVY, PREFILL_HEAVY):
        stage.act(f"agents: the same {phase.name} sessions on a fixed colocated fleet")
        load = start_load(stage, fleet, phase, f"fixed-{phase.name}")
        stage.record.loads.append(finish_load(stage, load, phase, "fixed colocated"))


@dataclass(slots=True)
class Load:
    """A `pearl-load` that runs."""

    process: subprocess.Popen[bytes]
    summary: Path
    resumes_before: int


def start_load(stage: Stage, fleet: Fleet, phase: Phase, run: str, reference: dict[str, Any] | None = None) -> Load:
    """Start `pearl-load` in the cluster's network."""
    summary = stage.folder / f"{run}.json"
    vocabulary = SMOLLM2_VOCABULARY if fleet.name == stage.agents.name else 250
    words = [
        stage.program("pearl-load"), fleet.gateway_url(), "--token", fleet.client_token(), "--run", run,
        "--step", str(stage.next_step()), "--groups", str(phase.groups), "--group-size", str(phase.group_size),
        "--context", "1900", "--vocabulary", str(vocabulary), "--most-turns", str(phase.most_turns),
        "--input-factor", str(phase.input_factor), "--response-factor", str(phase.response_factor),
        "--time-scale", str(phase.time_scale), "--no-permits", "--json", str(summary),
    ]  # fmt: skip
    if reference is not None:
        token = fleet.worker_token(reference, "engine")
        url = f"http://{reference['status']['podIP']}:{names.PORT_ENGINE}"
        words += ["--reference", url, "--reference-token", token]
    cluster = stage.installation.cluster
    with (stage.folder / f"{run}.log").open("wb") as log:
        process = subprocess.Popen(cluster.inside(words), env=dict(cluster.environment), stdout=log, stderr=log)
    return Load(process, summary, fleet.stats().counters.resumes)


def finish_load(stage: Stage, load: Load, phase: Phase, fleet_name: str) -> LoadResult:
    """Wait for the end and read the summary."""
    load.process.wait(timeout=600)
    if not load.summary.exists():
        raise RuntimeError(f"pearl-load did not start: {load.summary.with_suffix('.log').read_text()[-2000:]}")
    found = json.loads(load.summary.read_text())
    stage.scaled(phase.name, found["token_factor"], phase.input_factor, phase.response_factor, found["time_scale"])
    result = LoadResult(
        phase=phase.name,
        fleet=fleet_name,
        seconds=found["duration_seconds"],
        trajectories=found["finished"],
        turns=found["turns"],
        generated_tokens=found["generated_tokens"],
        lost_turns=found["turns_planned"] - found["turns"],
        mismatched_turns=found["wrong"] if found["checked"] else None,
        resumed_turns=None,
    )
    stage.act(
        f"  {result.turns} turns, {result.generated_tokens} tokens in {result.seconds:.1f} s, lost {result.lost_turns}"
    )
    return result


def kill_a_worker(stage: Stage, fleet: Fleet) -> None:
    """SIGKILL for the engine of a decode worker that is in the middle of a turn."""

    def busy() -> str | None:
        return next((w.pod for w in fleet.stats().workers if w.role == "decode" and w.in_flight), None)

    victim = wait_for(busy, seconds=180, what="a decode worker has turns in flight")
    pod = next(pod for pod in fleet.workers() if pod["metadata"]["name"] == victim)
    stage.act(f"  kill -9 of the engine of {victim}, in the middle of its turns")
    stage.installation.kill_engine(fleet, pod)


CHECKED = Phase("checked", input_factor=0.5, response_factor=2.0, groups=2, group_size=3, most_turns=4, time_scale=0.2)


def checked(stage: Stage) -> None:
    """The tiny model in two roles with an engine killed: every answer compared with an undisturbed engine."""
    fleet = stage.policy
    stage.act("policy: disaggregated, one engine killed, every token compared with an undisturbed engine")
    fleet.wait_roles({"prefill": 1, "decode": 1})
    prefill = next(pod for pod in fleet.workers() if pod["metadata"]["labels"][names.LABEL_ROLE] == "prefill")
    load = start_load(stage, fleet, CHECKED, "checked", reference=prefill)
    kill_a_worker(stage, fleet)
    stage.record.loads_checked = finish_load(stage, load, CHECKED, "pearl")

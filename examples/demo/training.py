"""Second half of the demo: a real PyTorch trainer in its own pod lends and reclaims its GPU around each update."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from examples.demo.facts import TrainStep
from examples.demo.stage import HERE

if TYPE_CHECKING:
    from examples.demo.stage import Stage

TRAINERS = "trainers"


def run(stage: Stage, steps: int) -> None:
    """Start the trainer pod and follow what it prints until it is done."""
    stage.act(f"policy: a trainer starts, {steps} updates; it lends its GPU between them")
    stage.policy.patch({"mode": "Auto"})
    stage.installation.cluster.apply(*_manifests(stage, steps))
    kubectl = stage.installation.cluster.kubectl
    kubectl("-n", TRAINERS, "wait", "--for=condition=Ready", "pod/trainer-0", "--timeout=120s")
    for fact in _facts(stage):
        if fact.pop("event") != "step":
            continue
        borrowed, turns = fact.pop("borrowed_turns"), fact.pop("turns")
        step = TrainStep(at=stage.sampler.now(), **fact)
        stage.record.steps.append(step)
        stage.record.borrowed_turns += borrowed
        stage.record.rollout_turns += turns
    phase = stage.installation.cluster.get("-n", TRAINERS, "pod", "trainer-0")["status"]["phase"]
    if phase == "Failed" or len(stage.record.steps) < steps:
        log = kubectl("-n", TRAINERS, "logs", "trainer-0", "--tail=30")
        raise RuntimeError(f"the trainer ended after {len(stage.record.steps)} of {steps} updates:\n{log}")


def _facts(stage: Stage) -> list[dict[str, Any]] | Any:
    """JSON lines of the pod's log, as they come."""
    cluster = stage.installation.cluster
    argv = [str(cluster.binaries["kubectl"]), "-n", TRAINERS, "logs", "-f", "trainer-0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=dict(cluster.environment)) as process:
        assert process.stdout is not None  # noqa: S101 - given by PIPE
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)


def _manifests(stage: Stage, steps: int) -> list[dict[str, Any]]:
    """The trainer example with this training script."""
    command = ["python3", "-m", "trainer.train", "--rollout", stage.policy.name]
    variables = {
        "PEARL_WEIGHTS_SOURCE": f"file:///weights/{stage.policy.name}",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    arguments = ["--model", "/models/tiny", "--steps", str(steps)]
    return stage.installation.trainer([HERE / "trainer"], [*command, *arguments], variables, models=True)

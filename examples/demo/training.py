"""Second half of the demo: a real PyTorch trainer in its own pod lends and reclaims its GPU around each update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.common.trainer_pod import Step, TrainerPod, read

if TYPE_CHECKING:
    from examples.demo.stage import Stage


def run(stage: Stage, steps: int) -> None:
    """Start the trainer of `examples/rl_loop` and follow what it prints until it is done."""
    stage.act(f"policy: a trainer starts, {steps} updates; it lends its GPU between them")
    stage.policy.patch({"mode": "Auto"})
    pod = TrainerPod(stage.installation, stage.policy.name)
    pod.start(["--steps", str(steps)])
    for fact in pod.facts():
        batch = read(fact, stage.sampler.now())
        if isinstance(batch, Step):
            stage.record.steps.append(batch)
        else:
            stage.record.frozen.append(batch)

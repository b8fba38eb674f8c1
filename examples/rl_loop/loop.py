"""Runs the loop on a cluster that has PEARL: the fleet, the trainer pod, and what was seen of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from examples.common import local
from examples.common.promises import Promise, of_training
from examples.common.sampler import Sampler
from examples.common.timeline import Timeline
from examples.common.trainer_pod import Batch, Step, TrainerPod, read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pearl_dev.fleet import Api, Fleet
    from pearl_dev.product import Installation

MANIFEST = Path(__file__).with_name("rollout.yaml")
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the loop; it grows while it runs."""

    fleet: Fleet
    timeline: Timeline = field(default_factory=Timeline)
    frozen: list[Batch] = field(default_factory=list)
    """Batches of the untrained policy."""
    steps: list[Step] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Every promise was."""
        return bool(self.promises) and all(one.kept for one in self.promises)


def start(installation: Installation, api: Api) -> Run:
    """Applies the PearlRollout."""
    return Run(local.apply(installation, api, MANIFEST))


def follow(
    run: Run, installation: Installation, *, steps: int, arguments: Sequence[str], say: Callable[[str], None]
) -> None:
    """Waits for the fleet, trains for `steps` updates, and holds what was seen against the promises.

    Args:
        run: Filled.
        installation: Where it runs.
        steps: Updates.
        arguments: More arguments of `trainer/train.py`.
        say: Called with a line for people at each event.
    """
    sampler = Sampler(run.timeline, (run.fleet,))
    try:
        say(f"real vLLM starts in {WORKERS} worker pods")
        run.fleet.wait_ready(WORKERS, seconds=420)
        say("the trainer pod starts; its engine for the lent GPU starts meanwhile")
        _train(run, TrainerPod(installation, run.fleet.name), sampler, [*arguments, "--steps", str(steps)], say)
        lost = run.fleet.stats().counters.lost_turns
    finally:
        sampler.close()
    run.promises.append(Promise("No turn is lost", lost == 0, f"{lost} lost"))
    run.promises.extend(of_training(run.frozen, run.steps, wanted_steps=steps))


def _train(run: Run, pod: TrainerPod, sampler: Sampler, arguments: Sequence[str], say: Callable[[str], None]) -> None:
    pod.start(arguments)
    for fact in pod.facts():
        batch = read(fact, sampler.now())
        if isinstance(batch, Step):
            run.steps.append(batch)
        else:
            run.frozen.append(batch)
        say(told(batch))


def told(batch: Batch) -> str:
    """One line on a batch."""
    words = (
        f"weights {batch.version:2}, reward {batch.reward:.2f}, borrowed {batch.borrowed_turns} of {batch.turns} turns"
    )
    if not isinstance(batch, Step):
        return f"{words}, no update"
    reclaim = f"reclaimed in {batch.reclaim_seconds:.2f} s" if batch.was_lent else "was not lent"
    return f"{words}, {reclaim}, trained {batch.train_seconds:.1f} s, logprobs within {batch.logprob_gap:.0e}"

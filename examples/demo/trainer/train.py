"""The demo's trainer: GRPO on the number game, with rollouts by the PEARL fleet; runs in the trainer pod.

One line of JSON per update on standard output. Between updates the pod's GPU is lent; before each it is reclaimed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from trainer.game import END, NUMBERS, START, TURNS, reply
from trainer.policy import Episode, update, warm_up
from transformers import Qwen3ForCausalLM

from pearl_trainer import AsyncLoan, AsyncPearlClient, Trajectory, Turn

BORROWER_MARK = "-borrower-"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one update printed; see `examples.demo.facts.TrainStep`."""

    step: int
    reward: float
    rollout_seconds: float
    train_seconds: float
    reclaim_seconds: float | None
    deadline_seconds: float
    engine_killed: bool
    lent_seconds: float
    version: int
    logprob_gap: float
    borrowed_turns: int
    turns: int


async def play(pearl: AsyncPearlClient, step: int, hidden: int, sample: int) -> None:
    """One trajectory: up to three turns with the fleet, then its reward to the batch."""
    name, group = f"s{step}-n{hidden}-{sample}", f"s{step}-n{hidden}"
    tokens = [START]
    answer = reply(hidden, [])
    for turn in range(TURNS):
        identity = Turn(name, turn, group=group, step=step)
        made = await pearl.generate(tokens, identity, max_tokens=2, temperature=1.0, stop_token_ids=[END])
        answer = reply(hidden, list(made.token_ids))
        tokens += [*made.token_ids, *([] if answer.token is None else [answer.token])]
        if answer.done:
            break
    await pearl.batches.finish(step, name, group=group, reward=answer.reward)


async def rollout(pearl: AsyncPearlClient, step: int, group_size: int, version: int) -> tuple[Trajectory, ...]:
    """One batch through the batch API, under the newest weights; what comes back is what the gateway logged."""
    await pearl.batches.open(step, groups=len(NUMBERS), group_size=group_size, min_version=version)
    await asyncio.gather(*[play(pearl, step, hidden, sample) for hidden in NUMBERS for sample in range(group_size)])
    trajectories = await pearl.batches.consume(step)
    await pearl.batches.close(step)
    return trajectories


def episode(trajectory: Trajectory) -> Episode:
    """A trajectory of the gateway's export as training data."""
    logprobs = [0.0 if logprob is None else logprob for logprob in trajectory.logprobs]
    return Episode(list(trajectory.token_ids), list(trajectory.loss_mask), logprobs, trajectory.reward or 0.0)


def borrowed_turns(trajectories: tuple[Trajectory, ...]) -> int:
    """Parts of turns that a borrowed worker prefilled or generated."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    return sum(any(BORROWER_MARK in (worker or "") for worker in (s.worker, s.prefill_worker)) for s in segments)


async def publish(loan: AsyncLoan, model: Qwen3ForCausalLM, version: int) -> None:
    """The model's files as the next weight version."""
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        await loan.publish_weights(version, [Path(directory) / "model.safetensors"])


async def train(pearl: AsyncPearlClient, options: argparse.Namespace) -> None:
    """Warm up, then one batch and one update per step."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = Qwen3ForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, weight_decay=0.0)
    async with await pearl.register(rollout=options.rollout) as loan:
        lent_at, batches = time.monotonic(), itertools.count()
        loss = await asyncio.to_thread(warm_up, model, options.warm_up_steps, random.Random(options.seed))  # noqa: S311 - games, not secrets
        say(event="warm-up", loss=loss)
        await publish(loan, model, 1)
        for step in range(options.steps):
            started, version = time.monotonic(), step + 1
            trajectories = await rollout(pearl, next(batches), options.group_size, version)
            while step == 0 and not borrowed_turns(trajectories) and time.monotonic() - started < options.patience:
                # The very first loan starts an engine from nothing, which takes longer than a batch of this game.
                trajectories = await rollout(pearl, next(batches), options.group_size, version)
            rolled = time.monotonic()
            was_lent = loan.lent
            free = await loan.reclaim()
            reclaimed = time.monotonic()
            gap = await asyncio.to_thread(update, model, optimizer, [episode(t) for t in trajectories], options.epochs)
            await publish(loan, model, version + 1)
            trained = time.monotonic()
            await loan.lend()
            say(
                event="step",
                **asdict(
                    StepReport(
                        step=step,
                        reward=sum(t.reward or 0.0 for t in trajectories) / len(trajectories),
                        rollout_seconds=rolled - started,
                        train_seconds=trained - reclaimed,
                        reclaim_seconds=free.total_seconds if was_lent else None,
                        deadline_seconds=loan.registration.reclaim_seconds if loan.registration else 0.0,
                        engine_killed=free.killed,
                        lent_seconds=rolled - lent_at if was_lent else 0.0,
                        version=version,
                        logprob_gap=gap,
                        borrowed_turns=borrowed_turns(trajectories),
                        turns=sum(len(t.segments) for t in trajectories),
                    )
                ),
            )
            lent_at = time.monotonic()


def say(**fact: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point of the trainer pod."""
    parser = argparse.ArgumentParser(description="Train a small policy with rollouts by a PEARL fleet.")
    parser.add_argument("--rollout", required=True)
    parser.add_argument("--model", required=True, help="directory of the tiny model")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warm-up-steps", type=int, default=300)
    parser.add_argument("--patience", type=float, default=150.0, help="seconds that step 0 waits for the borrower")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    async def run() -> None:
        async with AsyncPearlClient.from_env() as pearl:
            await train(pearl, options)

    asyncio.run(run())


if __name__ == "__main__":
    main()

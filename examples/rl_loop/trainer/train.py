"""GRPO on a multi-turn game with rollouts by a PEARL fleet; runs in the trainer pod.

The lines marked `# PEARL` are all that a training loop needs of it. Each batch prints one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pearl_trainer import PearlClient, Turn

from . import report
from .game import END, NUMBERS, START, TURNS, Game, SandboxBrokeError
from .grpo import Policy, Recipe

if TYPE_CHECKING:
    from pearl_trainer import BatchProgress, Trajectory

FIRST_VERSION = 1
WAIT_SECONDS = 2.0
"""Between two more batches without an update, while the engine of the lent GPU starts."""


def train(pearl: PearlClient, policy: Policy, options: argparse.Namespace) -> None:
    """Batch, update, batch, update; before that some batches of the untrained policy, for comparison."""
    games = Games(options.group_size, options.break_rate, random.Random(options.seed))  # noqa: S311 - no secrets
    with pearl.register(  # PEARL: the GPU is lent from here on, whenever the trainer does not train
        rollout=options.rollout, offload=policy.offload, onload=policy.onload
    ) as loan:
        loan.publish_weights(FIRST_VERSION, policy.save())  # PEARL
        played = play_frozen(pearl, games, options)
        for index in range(options.steps):
            version, laps = FIRST_VERSION + index, report.Laps(time.monotonic)
            batch, progress = rollout(pearl, played + index, version, games.batch())
            laps("rollout_seconds")
            was_lent = loan.lent
            with loan.training():  # PEARL: reclaim → onload … offload → lend
                laps("reclaim_seconds")
                gap = policy.update(batch)
                loan.publish_weights(version + 1, policy.save())  # PEARL
                laps("train_seconds")
            laps("lend_seconds")
            deadline = loan.registration.reclaim_seconds if loan.registration else None
            told = report.of_batch(batch, progress, version) | laps.seconds
            report.say(event="step", **told, logprob_gap=gap, was_lent=was_lent, deadline_seconds=deadline)


def play_frozen(pearl: PearlClient, games: Games, options: argparse.Namespace) -> int:
    """Batches without updates, at least until the first loan has started its engine; returns how many."""
    impatient_at = time.monotonic() + options.patience
    for step in itertools.count():
        batch, progress = rollout(pearl, step, FIRST_VERSION, games.batch())
        report.say(event="frozen", **report.of_batch(batch, progress, FIRST_VERSION))
        enough = report.borrowed(batch) or time.monotonic() > impatient_at
        if step + 1 >= options.frozen:
            if enough:
                break
            time.sleep(WAIT_SECONDS)  # where all share a few cores, play would take what the engine starts with
    return step + 1


def rollout(
    pearl: PearlClient, step: int, version: int, tasks: dict[int, list[Game]]
) -> tuple[tuple[Trajectory, ...], BatchProgress]:
    """One batch under weights of `version`: what the gateway logged, token by token, and how the batch ended."""
    size = len(tasks[NUMBERS[0]])
    pearl.batches.open(step, groups=len(tasks), group_size=size, min_version=version)  # PEARL
    with ThreadPoolExecutor(len(tasks) * size) as pool:
        playing = []
        for hidden, games in tasks.items():
            group = f"s{step}-n{hidden}"
            pearl.batches.permit(group, size, step=step)  # PEARL: before the sandboxes start
            for index, game in enumerate(games):
                playing.append(pool.submit(play, pearl, step, group, f"{group}-{index}", game))
        for one in playing:
            one.result()
    batch = pearl.batches.consume(step)  # PEARL
    return batch, pearl.batches.close(step)  # PEARL


def play(pearl: PearlClient, step: int, group: str, name: str, game: Game) -> None:
    """One trajectory: turns with the fleet until the game is over, then its reward, or why it has none."""
    tokens = [START]
    try:
        for number in itertools.count():
            turn = Turn(name, number, group=group, step=step)  # PEARL: the key under which a retry finds its answer
            made = pearl.generate(tokens, turn, max_tokens=2, temperature=1.0, stop_token_ids=[END])  # PEARL
            tokens += [*made.token_ids, *game.answer(made.token_ids)]
            if game.reward is not None:
                break
    except SandboxBrokeError as error:
        pearl.batches.abort(step, name, group=group, cause=str(error))  # PEARL
    else:
        pearl.batches.finish(step, name, group=group, reward=game.reward)  # PEARL


class Games:
    """The data set: every number in every batch, `group_size` games of each; some sandboxes break."""

    def __init__(self, group_size: int, break_rate: float, rng: random.Random) -> None:
        """`break_rate` is the share of games that break."""
        self._size, self._break_rate, self._rng = group_size, break_rate, rng

    def batch(self) -> dict[int, list[Game]]:
        """Fresh games by hidden number."""
        return {hidden: [self._game(hidden) for _ in range(self._size)] for hidden in NUMBERS}

    def _game(self, hidden: int) -> Game:
        breaks = self._rng.random() < self._break_rate
        return Game(hidden, self._rng.randint(1, TURNS) if breaks else None)


def main() -> None:
    """Entry point of the trainer pod."""
    parser = argparse.ArgumentParser(description="Train a small policy with rollouts by a PEARL fleet.")
    parser.add_argument("--rollout", required=True, help="name of the PearlRollout")
    parser.add_argument("--model", required=True, help="directory of the tiny model")
    parser.add_argument("--steps", type=int, default=24, help="updates")
    parser.add_argument("--frozen", type=int, default=12, help="batches before the first update")
    parser.add_argument("--group-size", type=int, default=24, help="games per hidden number and batch")
    parser.add_argument("--break-rate", type=float, default=0.01, help="share of games whose sandbox breaks")
    parser.add_argument("--epochs", type=int, default=4, help="passes over each batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until a borrower must have served")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    recipe = Recipe(options.model, learning_rate=options.learning_rate, epochs=options.epochs, seed=options.seed)
    with TemporaryDirectory() as folder:
        policy = Policy(recipe, Path(folder))
        with PearlClient.from_env() as pearl:  # PEARL
            train(pearl, policy, options)


if __name__ == "__main__":
    main()

"""The parts of the RL loop that need neither a model nor a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples.common.gpu import Span, Use, shares, spans
from examples.common.promises import of_training
from examples.common.timeline import LoanSample
from examples.common.trainer_pod import Batch, Step, read
from examples.rl_loop.trainer.advantages import advantages
from examples.rl_loop.trainer.game import FOUND, HIGHER, LOWER, START, Game, SandboxBrokeError, text, token
from examples.rl_loop.trainer.report import of_batch

from pearl_trainer import BatchProgress, Segment, Trajectory


def guess(number: int) -> list[int]:
    return [token(str(number)), token(";")]


def test_the_game_rewards_the_number_and_nothing_else() -> None:
    game = Game(hidden=3)
    assert game.answer(guess(4)) == [LOWER]
    assert game.answer(guess(2)) == [HIGHER]
    assert game.reward is None
    assert game.answer(guess(3)) == [FOUND]
    assert game.reward == 1.0


def test_three_wrong_guesses_end_the_game_without_reward() -> None:
    game = Game(hidden=7)
    for number in (1, 2, 3):
        game.answer(guess(number))
    assert game.reward == 0.0


@pytest.mark.parametrize("answer", [[], guess(4)[:1], [*guess(4), token(";")], [token("x"), token(";")], [300, 301]])
def test_bad_format_ends_the_game_with_a_penalty(answer: list[int]) -> None:
    game = Game(hidden=4)
    assert game.answer(answer) == []
    assert game.reward == -0.5


def test_a_sandbox_that_breaks_leaves_no_reward() -> None:
    game = Game(hidden=4, breaks_in=2)
    game.answer(guess(1))
    with pytest.raises(SandboxBrokeError):
        game.answer(guess(4))
    assert game.reward is None


def trajectory(written: str, reward: float, *, version: int = 5, worker: str = "rl-loop-w0-0") -> Trajectory:
    """A game as text; the model wrote the digits and `;`."""
    tokens = tuple(token(character) for character in written)
    mask = tuple(int(character not in "G<>=") for character in written)
    versions = tuple(version if wrote else None for wrote in mask)
    logprobs = tuple(-1.0 if wrote else None for wrote in mask)
    segment = Segment(0, worker, version, 0, len(tokens), "complete")
    return Trajectory("t", "g", "finished", reward, None, 2, tokens, mask, logprobs, versions, (segment,))


def test_a_turn_is_compared_with_all_turns_of_the_same_prompt() -> None:
    batch = [trajectory("G4;<2;", 1.0), trajectory("G4;<1;", 0.0), trajectory("G4;>6;", 0.5), trajectory("G7;<5;", 0.0)]
    first = (1.0 + 0.0 + 0.5 + 0.0) / 4
    rows = advantages(batch)
    assert rows[0] == pytest.approx([0, 1 - first, 1 - first, 0, 0.5, 0.5])  # second turn: against the mean of 1 and 0
    assert rows[1] == pytest.approx([0, -first, -first, 0, -0.5, -0.5])
    assert rows[2] == pytest.approx([0, 0.5 - first, 0.5 - first, 0, 0, 0])  # alone with its prompt
    assert rows[3] == pytest.approx([0, -first, -first, 0, 0, 0])


def test_the_facts_of_a_batch_count_foreign_versions_lost_games_and_borrowed_turns() -> None:
    batch = [trajectory("G4;<2;", 1.0), trajectory("G4;", 0.5, version=4, worker="trainer-0-borrower-0")]
    progress = BatchProgress(0, 2, 2, 2, 5, 4, 2, 1, 0, 1.0, closed=True)
    facts = of_batch(batch, progress, version=5)
    assert facts["other_versions"] == 2
    assert (facts["games"], facts["broken_games"], facts["lost_games"]) == (2, 1, 1)
    assert (facts["turns"], facts["borrowed_turns"]) == (2, 1)
    assert (facts["reward"], facts["sample"]) == (0.75, "G4;")
    assert text([START]) == "G"


PLAYED: dict[str, object] = {
    "version": 1,
    "games": 100,
    "broken_games": 1,
    "lost_games": 0,
    "turns": 200,
    "borrowed_turns": 50,
}
PLAYED |= {"other_versions": 0, "sample": "G4;"}
TIMES = {"rollout_seconds": 3.0, "reclaim_seconds": 0.1, "train_seconds": 2.0, "lend_seconds": 0.5}
FROZEN = read({"event": "frozen", "reward": 0.5, **PLAYED}, at=1.0)
UPDATED = {"event": "step", "reward": 0.9, **PLAYED, **TIMES, "was_lent": True, "deadline_seconds": 10.0}
STEP = read({**UPDATED, "logprob_gap": 2e-6}, at=10.0)
assert isinstance(STEP, Step)


def test_the_gpu_trains_when_the_trainer_says_so_and_is_lent_when_the_loan_says_so() -> None:
    looks = [
        LoanSample(0.0, "Offered"),
        LoanSample(1.0, "Waking"),
        LoanSample(3.0, "Serving"),
        LoanSample(8.0, "Draining"),
    ]
    found = spans(looks, [STEP])
    assert found == [
        Span(0.0, 1.0, Use.IDLE),
        Span(1.0, 3.0, Use.WAKING),
        Span(3.0, 7.5, Use.SERVING),
        Span(7.5, 9.5, Use.TRAINING),
        Span(9.5, 10.0, Use.IDLE),
    ]
    assert shares(found)[Use.SERVING] == pytest.approx(0.45)
    assert shares(found, since=7.5) == pytest.approx(
        {Use.TRAINING: 0.8, Use.IDLE: 0.2, Use.SERVING: 0.0, Use.WAKING: 0.0}
    )


def kept(frozen: list[Batch], steps: list[Step]) -> dict[str, bool]:
    return {one.text: one.kept for one in of_training(frozen, steps, wanted_steps=4)}


def test_every_promise_is_kept_by_a_good_run() -> None:
    assert all(kept([FROZEN] * 4, [STEP] * 4).values())


@pytest.mark.parametrize(
    ("broken", "frozen", "steps"),
    [
        ("Training runs to its end", [FROZEN] * 4, [STEP] * 3),
        ("Training GPUs come back on time", [FROZEN] * 4, [replace(STEP, reclaim_seconds=10.1)] * 4),
        ("Training GPUs come back on time", [FROZEN] * 4, [replace(STEP, was_lent=False)] * 4),
        ("Lent GPUs do work", [replace(FROZEN, borrowed_turns=0)] * 4, [replace(STEP, borrowed_turns=0)] * 4),
        ("Every game is accounted for", [replace(FROZEN, lost_games=1)] * 4, [STEP] * 4),
        ("The policy learns", [FROZEN] * 4, [replace(STEP, reward=0.59)] * 4),
        ("And only by its updates", [FROZEN] * 2 + [replace(FROZEN, reward=0.61)] * 2, [STEP] * 4),
        ("And only by its updates", [], [STEP] * 4),
        ("Tokens come from the weights they claim", [FROZEN] * 4, [replace(STEP, logprob_gap=1e-4)] * 4),
        ("No batch mixes weights", [FROZEN] * 4, [replace(STEP, other_versions=1)] * 4),
    ],
)
def test_each_promise_can_be_broken_alone(broken: str, frozen: list[Batch], steps: list[Step]) -> None:
    assert [text for text, held in kept(frozen, steps).items() if not held] == [broken]

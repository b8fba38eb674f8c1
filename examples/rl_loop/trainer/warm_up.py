"""Stands for pre-training: the random tiny model learns the game's format by imitating mediocre play."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .game import DIGITS, NUMBERS, START, Game, token
from .tensors import log_probabilities, padded

if TYPE_CHECKING:
    import random

    from transformers import Qwen3ForCausalLM

ROWS = 64


def warm_up(model: Qwen3ForCausalLM, steps: int, rng: random.Random) -> None:
    """Imitates `steps` batches of games."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        rows, masks = zip(*[mediocre_game(rng) for _ in range(ROWS)], strict=True)
        mask = padded(masks, 0.0)[:, 1:]
        loss = -(log_probabilities(model, padded(rows, 0).long()) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def mediocre_game(rng: random.Random) -> tuple[list[int], list[int]]:
    """Tokens and mask of one game: half of the players ignore the answers, half guess anything that still fits."""
    game, attentive = Game(rng.choice(NUMBERS)), rng.choice((True, False))
    low, high = NUMBERS[0], NUMBERS[-1]
    tokens, mask = [START], [0]
    while game.reward is None:
        guess = rng.randint(low, high) if attentive else rng.choice(NUMBERS)
        low, high = (low, min(high, guess - 1)) if game.hidden < guess else (max(low, guess + 1), high)
        written = [DIGITS[guess - NUMBERS[0]], token(";")]
        answer = game.answer(written)
        tokens += [*written, *answer]
        mask += [1] * len(written) + [0] * len(answer)
    return tokens, mask

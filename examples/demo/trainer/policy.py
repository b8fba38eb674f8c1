"""The small policy and its update: GRPO with turn-level groups (trajectories that share the prompt of a turn)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from trainer.game import DIGITS, END, NUMBERS, START, TURNS, reply

if TYPE_CHECKING:
    import random

    from transformers import Qwen3ForCausalLM

PAD = 0
CLIP = 0.2


@dataclass(slots=True)
class Episode:
    """One trajectory as the trainer consumes it: parallel lists over its tokens."""

    tokens: list[int]
    mask: list[int] = field(default_factory=list)
    """1 where the model wrote the token."""
    logprobs: list[float] = field(default_factory=list)
    """Behaviour logprob where mask is 1, else 0."""
    reward: float = 0.0


def log_probabilities(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Logprob of each next token, shape (batch, length - 1)."""
    logits = model(tokens[:, :-1]).logits
    return torch.gather(functional.log_softmax(logits, -1), 2, tokens[:, 1:, None])[..., 0]


def warm_up(model: Qwen3ForCausalLM, steps: int, rng: random.Random) -> float:
    """Teaches the game's format by imitating mediocre play; returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = [_mediocre_play(rng) for _ in range(64)]
        tokens, mask, _, _ = _tensors(rows)
        chosen = log_probabilities(model, tokens)
        loss = -(chosen * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def _mediocre_play(rng: random.Random) -> Episode:
    """Half of the games ignore the answers, half guess anything that still fits."""
    hidden, smart = rng.choice(NUMBERS), rng.random() < 0.5  # noqa: PLR2004 - a coin
    episode = Episode([START], [0], [0.0])
    low, high = NUMBERS[0], NUMBERS[-1]
    for _ in range(TURNS):
        guess = rng.randint(low, high) if smart else rng.choice(NUMBERS)
        low, high = (low, min(high, guess - 1)) if hidden < guess else (max(low, guess + 1), high)
        answer = reply(hidden, [DIGITS[guess - 1], END])
        episode.tokens += [DIGITS[guess - 1], END]
        episode.mask += [1, 1]
        if answer.token is not None:
            episode.tokens.append(answer.token)
            episode.mask.append(0)
        if answer.done:
            break
    episode.logprobs = [0.0] * len(episode.tokens)
    return episode


def _tensors(episodes: list[Episode]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Tokens (batch, length), and mask and behaviour logprobs of the next tokens (batch, length - 1)."""
    length = max(len(episode.tokens) for episode in episodes)

    def padded(values: list[int] | list[float], fill: float) -> list[float]:
        return [*values, *[fill] * (length - len(values))]

    tokens = torch.tensor([padded(episode.tokens, PAD) for episode in episodes], dtype=torch.long)
    mask = torch.tensor([padded(episode.mask, 0) for episode in episodes], dtype=torch.float)[:, 1:]
    behaviour = torch.tensor([padded(episode.logprobs, 0.0) for episode in episodes], dtype=torch.float)[:, 1:]
    return tokens, mask, behaviour, length


def _turn_starts(mask: list[int]) -> list[int]:
    return [i for i in range(1, len(mask)) if mask[i] and not mask[i - 1]]


def _advantages(episodes: list[Episode], length: int) -> torch.Tensor:
    """Reward minus the mean reward of all trajectories that reached the same turn with the same prompt."""
    baselines: dict[tuple[int, ...], list[float]] = {}
    for episode in episodes:
        for start in _turn_starts(episode.mask):
            baselines.setdefault(tuple(episode.tokens[:start]), []).append(episode.reward)
    rows = torch.zeros(len(episodes), length)
    for row, episode in zip(rows, episodes, strict=True):
        for start in _turn_starts(episode.mask):
            group = baselines[tuple(episode.tokens[:start])]
            row[start : start + 2] = episode.reward - sum(group) / len(group)
    return rows[:, 1:]


def update(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, episodes: list[Episode], epochs: int) -> float:
    """Some clipped policy-gradient steps on one batch.

    Returns:
        Largest difference between the behaviour logprobs that the fleet reported and the trainer's own, before
        the first step: it shows that the tokens were sampled from exactly these weights.
    """
    tokens, mask, behaviour, length = _tensors(episodes)
    advantage = _advantages(episodes, length)
    advantage = advantage / (advantage[mask > 0].std() + 1e-3)
    gap = 0.0
    for epoch in range(epochs):
        current = log_probabilities(model, tokens)
        if epoch == 0:
            gap = ((current - behaviour).abs() * mask).max().item()
        ratio = (current - behaviour).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = -(torch.min(ratio * advantage, clipped * advantage) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return gap

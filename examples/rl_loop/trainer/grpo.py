"""The policy and its update: GRPO with a clipped ratio, in plain PyTorch."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen3ForCausalLM

from .advantages import advantages
from .tensors import log_probabilities, padded
from .warm_up import warm_up

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pearl_trainer import Trajectory

CLIP = 0.2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the policy is made and trained."""

    model: str
    """Directory of the model whose shape it has."""
    learning_rate: float = 1e-3
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 4
    """Gradient steps of each pass."""
    warm_up_steps: int = 300
    seed: int = 0


class Policy:
    """A small model that plays the game."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        """Fresh weights that know the game's format; `folder` is where `save` writes."""
        torch.manual_seed(recipe.seed)
        torch.set_num_threads(1)
        self._recipe, self._folder = recipe, folder
        self._model = Qwen3ForCausalLM.from_pretrained(recipe.model, dtype=torch.float32)
        for parameter in self._model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        warm_up(self._model, recipe.warm_up_steps, random.Random(recipe.seed))  # noqa: S311 - games, not secrets
        self._optimizer = torch.optim.AdamW(self._model.parameters(), recipe.learning_rate, weight_decay=0.0)

    def onload(self) -> None:
        """Model and optimizer to the GPU, where there is one."""
        self._move(DEVICE)

    def offload(self) -> None:
        """Model and optimizer off the GPU."""
        self._move("cpu")
        torch.cuda.empty_cache()

    def _move(self, device: str) -> None:
        self._model.to(device)
        states: list[dict[str, Any]] = list(self._optimizer.state.values())
        for state, name in itertools.product(states, ("exp_avg", "exp_avg_sq")):
            state[name] = state[name].to(device)

    def update(self, batch: Sequence[Trajectory]) -> float:
        """Some clipped policy-gradient steps on one batch.

        Returns:
            Largest difference between the behaviour logprobs of the batch and this policy's own before the first
            step: near 0 shows that every token was sampled from exactly these weights.
        """
        tokens = padded([one.token_ids for one in batch], 0).long().to(DEVICE)
        mask = padded([one.loss_mask for one in batch], 0.0)[:, 1:].to(DEVICE)
        behaviour = padded([one.logprobs for one in batch], 0.0)[:, 1:].to(DEVICE)
        advantage = padded(advantages(batch), 0.0)[:, 1:].to(DEVICE)
        advantage = advantage / (advantage[mask > 0].std() + 1e-3)
        with torch.no_grad():
            own = log_probabilities(self._model, tokens)
        gap = float(((own - behaviour).abs() * mask).max())
        for _ in range(self._recipe.epochs):
            for rows in torch.randperm(len(batch)).chunk(self._recipe.minibatches):
                self._step(tokens[rows], mask[rows], behaviour[rows], advantage[rows])
        return gap

    def _step(self, tokens: torch.Tensor, mask: torch.Tensor, behaviour: torch.Tensor, advantage: torch.Tensor) -> None:
        ratio = (log_probabilities(self._model, tokens) - behaviour).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = -(torch.min(ratio * advantage, clipped * advantage) * mask).sum() / mask.sum()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def save(self) -> list[Path]:
        """Writes the weights; returns the files to publish."""
        self._model.save_pretrained(self._folder)
        return sorted(self._folder.glob("*.safetensors"))

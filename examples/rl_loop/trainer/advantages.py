"""How much better each turn came out than its group: GRPO over turns.

All trajectories that reached a turn with the same prompt form its group, so a lucky first guess does not pay for the
second. Reward minus the group's mean is the advantage of every token that the model wrote in the turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_trainer import Trajectory


def turn_starts(mask: Sequence[int]) -> list[int]:
    """Indices at which the model begins to write."""
    return [index for index in range(1, len(mask)) if mask[index] and not mask[index - 1]]


def advantages(batch: Sequence[Trajectory]) -> list[list[float]]:
    """Advantage per token of each trajectory; 0 where the model did not write."""
    groups: dict[tuple[int, ...], list[float]] = {}
    for one in batch:
        for start in turn_starts(one.loss_mask):
            groups.setdefault(one.token_ids[:start], []).append(one.reward or 0.0)
    means = {prompt: sum(rewards) / len(rewards) for prompt, rewards in groups.items()}
    return [_row(one, means) for one in batch]


def _row(one: Trajectory, means: dict[tuple[int, ...], float]) -> list[float]:
    row, advantage = [0.0] * len(one.token_ids), 0.0
    for index, wrote in enumerate(one.loss_mask):
        if index and wrote and not one.loss_mask[index - 1]:
            advantage = (one.reward or 0.0) - means[one.token_ids[:index]]
        row[index] = advantage if wrote else 0.0
    return row

"""Rows of unequal length as one tensor, and the logprobs of a model on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Qwen3ForCausalLM


def padded(rows: Sequence[Sequence[float | None]], fill: float) -> torch.Tensor:
    """Shape (rows, longest row); `fill` stands after the end of a row and in place of None."""
    length = max(len(row) for row in rows)
    full = [[*(fill if value is None else value for value in row), *[fill] * (length - len(row))] for row in rows]
    return torch.tensor(full)


def log_probabilities(model: Qwen3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Logprob of each next token, shape (rows, length - 1)."""
    logits = model(tokens[:, :-1]).logits
    return torch.gather(functional.log_softmax(logits, -1), 2, tokens[:, 1:, None])[..., 0]

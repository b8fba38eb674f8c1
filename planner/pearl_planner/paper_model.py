"""The PEARL paper's own model (arXiv 2609.35158v1): Equations 1–3 and 7, as published.

Kept for its Table 2 and as a policy to compare with; the planner itself predicts with `predict.py`. Notation of the
paper: B trajectories, S turns of the slowest one, ΔL new and r generated tokens per turn, A and b of the decode
iteration, t_pre per prefilled token, θ = (1 − f)/f with f the share of trajectories that decode, K KV bytes per token,
BW bytes per second between the pools. docs/models.md, "The paper's model".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pearl_planner.types import Mode, Shape


@dataclass(frozen=True, slots=True)
class PaperModel:
    """The fitted parameters of Equations 1–3. Seconds and tokens."""

    trajectories: float
    """B, at least 1."""
    turns: float
    """S."""
    new_tokens: float
    """ΔL per turn, after prefix-cache hits."""
    generated_tokens: float
    """r per turn."""
    decode_fixed_seconds: float
    """A."""
    decode_per_sequence_seconds: float
    """b at the mean context length."""
    prefill_per_token_seconds: float
    """t_pre."""
    environment_seconds: float
    """T_env: of the whole slowest trajectory."""
    overlap_seconds: float = 0.0
    """T_over: residual of prefill and decode sharing a worker, per turn."""
    bubble_ratio: float | None = None
    """θ as measured in the present fleet; None = the one that is consistent with each fleet, see `bubble_ratio_of`."""
    kv_bytes_per_token: float = 0.0
    transfer_bytes_per_second: float = math.inf
    sequence_tokens: float = 0.0
    """Context of one trajectory, for the KV limit."""
    worker_kv_tokens: float | None = None
    """H_max: KV room of one worker in tokens; None = unknown, then it limits nothing."""

    def colocated_seconds(self, workers: int) -> float:
        """T_coloc, Equation 1, of N workers."""
        prefill = self.trajectories * self.new_tokens / workers * self.prefill_per_token_seconds
        step = self.decode_fixed_seconds + self.decode_per_sequence_seconds * self.trajectories / workers
        return self.turns * (prefill + self.generated_tokens * step + self.overlap_seconds) + self.environment_seconds

    def decode_seconds(self, decode: int) -> float:
        """T_decode, Equation 2, of N_D decode workers."""
        theta = self.bubble_ratio_of(decode)
        step = self.decode_fixed_seconds
        step += self.decode_per_sequence_seconds * self.trajectories / (decode * (1 + theta))
        return self.turns * self.generated_tokens * step * (1 + theta)

    def prefill_seconds(self, prefill: int) -> float:
        """T_prefill, Equation 3, of N_P prefill workers; the hand-off of the batch's KV is not shared by them."""
        work = self.trajectories * self.new_tokens
        transfer = work * self.kv_bytes_per_token / self.transfer_bytes_per_second
        return self.turns * (work / prefill * self.prefill_per_token_seconds + transfer)

    def disaggregated_seconds(self, prefill: int, decode: int) -> float:
        """T_dis, Equation 3: the slower stage, and the environment."""
        return max(self.prefill_seconds(prefill), self.decode_seconds(decode)) + self.environment_seconds

    def seconds(self, shape: Shape) -> float:
        """Predicted makespan of the batch; infinite for no workers or where its KV does not fit."""
        if shape.workers < 1 or not self.feasible(shape):
            return math.inf
        if shape.mode is Mode.COLOCATED:
            return self.colocated_seconds(shape.colocated)
        return self.disaggregated_seconds(shape.prefill, shape.decode)

    def feasible(self, shape: Shape) -> bool:
        """B·K_seq ≤ N_D·H_max (§2 of the paper), with every colocated worker a holder.

        Colocated fleets queue what does not fit, so only the split ones are ruled out.
        """
        if shape.mode is Mode.COLOCATED or self.worker_kv_tokens is None:
            return True
        return self.trajectories * self.sequence_tokens <= shape.decode * self.worker_kv_tokens

    def bubble_ratio_of(self, decode: int) -> float:
        """θ of N_D decode workers: the measured one, or where a turn of x seconds leaves f = x/(x + Z) decoding.

        x = r(A + b·f·B/N_D) and Z = T_env/S give c·f² + (a + Z − c)·f − a = 0 with a = r·A, c = r·b·B/N_D.
        """
        if self.bubble_ratio is not None:
            return self.bubble_ratio
        waiting = self.environment_seconds / self.turns if self.turns > 0 else 0.0
        if waiting <= 0:
            return 0.0
        alone = self.generated_tokens * self.decode_fixed_seconds
        crowd = self.generated_tokens * self.decode_per_sequence_seconds * self.trajectories / decode
        half = alone + waiting - crowd
        if crowd <= 0:
            return waiting / alone
        f = (-half + math.sqrt(half * half + 4 * alone * crowd)) / (2 * crowd)
        return (1 - f) / f


def ranked(model: PaperModel, workers: int, *, colocated: bool = True) -> tuple[tuple[Shape, float], ...]:
    """Feasible shapes of `workers` with their makespans, fastest first: N_P in 1 … N−1, and colocated."""
    shapes = [Shape(0, p, workers - p) for p in range(1, workers)]
    if colocated or not shapes:
        shapes.append(Shape(colocated=workers))
    timed = [(shape, model.seconds(shape)) for shape in shapes]
    usable = [one for one in timed if math.isfinite(one[1])]
    return tuple(sorted(usable, key=lambda one: (one[1], one[0].prefill)))


def worth_borrowing(
    *, unfinished: float, trajectories: float, without_seconds: float, with_seconds: float, toggle_seconds: float
) -> bool:
    """Equation 7: (R/B)(T_ded − T_full) > T_toggle."""
    if trajectories <= 0:
        return False
    return unfinished / trajectories * (without_seconds - with_seconds) > toggle_seconds

"""The bins that sketches count in: turn numbers, token counts, environment seconds, stages and lengths."""

from __future__ import annotations

import math

MAX_EXACT_TURN = 64
"""Turn numbers with a bin of their own; later ones share bins of doubling width."""
TURN_BINS = MAX_EXACT_TURN + 6
TOKEN_BINS = 20
"""Appended tokens by powers of two: bin k holds [2^k, 2^(k+1)), bin 0 also 0 and 1."""
WAIT_BINS = 48
WAITS_PER_DOUBLING = 2
WAIT_LOW = 2.0**-8
"""Environment seconds by powers of √2: bin k holds [low·√2^k, low·√2^(k+1)) seconds, the ends also what is beyond."""
STAGES = 8
"""Turn numbers 1, 2, 3–4, 5–8, … 65 and more: lengths of turns depend on the progress of a trajectory."""


def turn_bin(turn: int) -> int:
    """Bin of a turn number (from 1): exact up to 64, then 65–128, 129–256, … in one bin each."""
    if turn <= MAX_EXACT_TURN:
        return max(turn, 1) - 1
    doublings = (turn - 1).bit_length() - MAX_EXACT_TURN.bit_length()
    return min(MAX_EXACT_TURN + doublings, TURN_BINS - 1)


def token_bin(tokens: float) -> int:
    """Bin of a token count, see `TOKEN_BINS`."""
    return min(max(int(tokens), 1).bit_length() - 1, TOKEN_BINS - 1)


def wait_bin(seconds: float) -> int:
    """Bin of environment seconds, see `WAIT_BINS`."""
    if seconds <= WAIT_LOW:
        return 0
    return min(int(WAITS_PER_DOUBLING * math.log2(seconds / WAIT_LOW)), WAIT_BINS - 1)


def wait_at(place: float) -> float:
    """Seconds at a place of the bins: `k` is the lower end of bin k."""
    return float(WAIT_LOW * 2.0 ** (place / WAITS_PER_DOUBLING))


def stage(turn: int) -> int:
    """Stage of a turn number (from 1), also the bin of a trajectory's length, see `STAGES`."""
    return min((turn - 1).bit_length(), STAGES - 1) if turn > 1 else 0

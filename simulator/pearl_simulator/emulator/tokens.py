"""Which token comes next: a pure function of the weights and of every token before it.

So an answer is the same whether it is computed in one go, resumed after a crash, prefilled elsewhere or preempted:
the emulator can be held against an undisturbed run token for token. Temperature, seed, top-p and penalties are
accepted and change nothing; n samples of one prompt are equal.

`state` is the CRC-32 of the token ids as 32-bit words, so it grows token by token and a prompt costs one C call.
Tokens are the 94 printable ASCII characters without the space (ids 0..93 of the tokenizer): each has one character.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GENERATED = 94
"""Tokens that are ever generated, but for the end of the answer."""
_WORD = 2**32
_STARTED = "default"
"""What an engine calls the weights it started with; they are version 0 for the rest of the project."""


def prompt_state(token_ids: Sequence[int]) -> int:
    """State after these tokens."""
    return zlib.crc32(array("I", token_ids).tobytes())


def push(state: int, token_id: int) -> int:
    """State after one more token."""
    return zlib.crc32(token_id.to_bytes(4, "little"), state)


def weights_salt(version: str) -> int:
    """What weights of this label contribute to every token: equal labels are equal weights."""
    number = int(version) if version.isdigit() else zlib.crc32(version.encode()) if version != _STARTED else 0
    return _mixed(number * 2 + 1)


def _mixed(word: int) -> int:
    """A 32-bit word whose bits all depend on all bits of `word` (Wang and Jenkins' integer hash)."""
    word = (word ^ 61 ^ (word >> 16)) * 9 % _WORD
    word = (word ^ (word >> 4)) * 0x27D4EB2D % _WORD
    return word ^ (word >> 15)


def next_token(state: int, salt: int) -> int:
    """The most likely token after `state` under the weights of `salt`."""
    return _mixed(state ^ salt) % GENERATED


def ends_here(state: int, salt: int, mean_tokens: int) -> bool:
    """Whether the answer ends after `state`, on average after `mean_tokens` tokens; 0 = never."""
    return mean_tokens > 0 and _mixed(state ^ salt ^ 0x5BD1E995) % mean_tokens == 0


def top_logprob(state: int, salt: int) -> float:
    """Log-probability of the most likely token, −1.96…−0.46."""
    return -0.46 - (_mixed(state ^ salt) >> 8) % 1501 / 1000


def candidates(state: int, salt: int, count: int) -> list[tuple[int, float]]:
    """The `count` most likely tokens and their log-probabilities, which sum to less than 1 as probabilities."""
    first, top = next_token(state, salt), top_logprob(state, salt)
    return [((first + 37 * rank) % GENERATED, top - rank) for rank in range(min(count, GENERATED))]


def prompt_logprob(state: int, token_id: int) -> float:
    """Log-probability of a prompt token after `state`: never one of the likely ones."""
    return -8.0 - _mixed(state ^ token_id) / _WORD

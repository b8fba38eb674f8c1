"""A three-turn game with a verifiable reward: guess a number from 1 to 7; the game says lower or higher.

Text of one trajectory: `G4;<2;>3;=`. The model writes a digit and `;`, the game answers `<`, `>` or `=`. Three guesses
are enough for whoever halves the range. Token ids are those of the byte-level tiny model: a printable character c is
token `ord(c) - 33`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS = range(1, 8)
TURNS = 3
FOUND_REWARD, MISSED_REWARD, BAD_FORMAT_REWARD = 1.0, 0.0, -0.5


def token(character: str) -> int:
    """Id of a printable character."""
    return ord(character) - 33


START, END = token("G"), token(";")
LOWER, HIGHER, FOUND = token("<"), token(">"), token("=")
DIGITS = [token(str(number)) for number in NUMBERS]


def text(tokens: Sequence[int]) -> str:
    """Token ids as one reads them."""
    return "".join(chr(one + 33) for one in tokens)


class SandboxBrokeError(RuntimeError):
    """The environment failed: the game has no reward, whatever the model did."""


@dataclass(slots=True)
class Game:
    """One hidden number. Like any sandbox it may break: in turn `breaks_in`, counted from 1; None = it does not."""

    hidden: int
    breaks_in: int | None = None
    turn: int = 0
    reward: float | None = None
    """None while the game goes on."""

    def answer(self, guess: Sequence[int]) -> list[int]:
        """What the game appends to the tokens of a guess; anything but one digit and `;` ends it with a penalty.

        Raises:
            SandboxBrokeError: the game is lost for training.
        """
        self.turn += 1
        if self.turn == self.breaks_in:
            raise SandboxBrokeError("sandboxBroke")
        if len(guess) != len((DIGITS[0], END)) or guess[0] not in DIGITS or guess[1] != END:
            self.reward = BAD_FORMAT_REWARD
            return []
        number = NUMBERS[DIGITS.index(guess[0])]
        if number == self.hidden:
            self.reward = FOUND_REWARD
            return [FOUND]
        if self.turn == TURNS:
            self.reward = MISSED_REWARD
        return [LOWER if self.hidden < number else HIGHER]

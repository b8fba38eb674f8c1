"""A three-turn game with a verifiable reward: guess a number from 1 to 7; the environment says lower or higher.

Text of one trajectory: `G4;<2;>3;=`. The model writes a digit and `;`, the environment answers `<`, `>` or `=`.
Token ids are those of the byte-level tiny model: a printable character c is token `ord(c) - 33`.
"""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = range(1, 8)
TURNS = 3
START, END = ord("G") - 33, ord(";") - 33
LOWER, HIGHER, FOUND = ord("<") - 33, ord(">") - 33, ord("=") - 33
DIGITS = [ord(str(number)) - 33 for number in NUMBERS]
BAD_FORMAT_REWARD = -0.5


@dataclass(frozen=True, slots=True)
class Reply:
    """The environment's answer to one turn."""

    token: int | None
    """What it appends; None = the trajectory ends here."""
    reward: float
    done: bool


def reply(hidden: int, answer: list[int]) -> Reply:
    """The answer to a guess; anything but one digit and `;` ends the game with a small penalty."""
    if len(answer) != len((DIGITS[0], END)) or answer[0] not in DIGITS or answer[1] != END:
        return Reply(None, BAD_FORMAT_REWARD, done=True)
    guess = DIGITS.index(answer[0]) + 1
    if guess == hidden:
        return Reply(FOUND, 1.0, done=True)
    return Reply(LOWER if hidden < guess else HIGHER, 0.0, done=False)

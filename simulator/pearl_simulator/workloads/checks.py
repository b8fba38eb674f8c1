"""Numbers that a user gave: usable, or one sentence that names the field and the fix."""

from __future__ import annotations

import math

from pearl_simulator.errors import InputError

MANY = 1e9
"""Above it a number of tokens or seconds is a mistake."""


def number(value: object, field: str, *, low: float = 0.0, high: float = MANY) -> float:
    """A finite number within `low`..`high`.

    Raises:
        InputError: it is none; the message names the field.
    """
    if value is None:
        raise InputError(f"{field} is missing; give a number from {low:g} to {high:g}")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{field} is {value!r}; give a number from {low:g} to {high:g}")
    if not low <= value <= high:
        raise InputError(f"{field} is {value:g}; give a number from {low:g} to {high:g}")
    return float(value)


def whole(value: object, field: str, *, low: int = 0, high: int = int(MANY)) -> int:
    """A whole number within `low`..`high`.

    Raises:
        InputError: it is none; the message names the field.
    """
    found = number(value, field, low=low, high=high)
    if found != int(found):
        raise InputError(f"{field} is {value}; give a whole number from {low} to {high}")
    return int(found)


def text(value: object, field: str, choices: tuple[str, ...] = ()) -> str:
    """A text, of `choices` if there are any.

    Raises:
        InputError: it is none of them; the message names the field.
    """
    if not isinstance(value, str) or not value or (choices and value not in choices):
        wanted = f"one of: {', '.join(choices)}" if choices else "a text"
        problem = "is missing" if value is None else f"is {value!r}"
        raise InputError(f"{field} {problem}; give {wanted}")
    return value
